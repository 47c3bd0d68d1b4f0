"""The figures an experiment ends in: the names they may use, and what is wrong with one. Imports neither numpy nor a decoder.

A *setting* is what a cell was asked for: "method", "model", "sampling.<field>", or one of its method's options. A *measure* is a column of
summary.csv. A figure shows measures over a setting or over another measure, one line for each combination of the settings in `by`.
"""

import json
from typing import Any

MEASURES = {
    "step_compression": "step compression (tokens per pass)",
    "nfe": "passes per image",
    "nodes_per_pass": "tokens evaluated per pass",
    "nodes_per_token": "tokens evaluated per token kept",
    "tokens": "tokens per image",
    "tokens_per_second": "tokens per second (measured)",
    "seconds_per_image": "seconds per image (measured)",
    "ms_per_forward": "ms per forward (measured)",
    "fid": "FID (lower is better)",
    "kid": "KID (lower is better)",
    "clip_score": "CLIP-score (higher is better)",
    "precision": "precision (higher is better)",
    "recall": "recall (higher is better)",
    "perplexity": "perplexity under the target",
    "logp_mean": "mean log-probability of a token, nats",
    "logp_sd": "sd of log-probability within an image, nats",
    "logp_sd_tokens": "sd of log-probability over all tokens, nats",
    "excluded": "share of tokens the law excludes",
}


def setting(spec: dict[str, Any], name: str) -> Any:
    """A cell's value of a setting; None where its method has no such option."""
    if name in ("method", "model"):
        return spec[name]
    if name.startswith("sampling."):
        return spec["sampling"].get(name.removeprefix("sampling."))
    return spec["options"].get(name)


def settings(specs: list[dict[str, Any]]) -> list[str]:
    """Every setting that some cell has."""
    options = {k for s in specs for k in s["options"]}
    return ["method", "model", *(f"sampling.{k}" for k in specs[0]["sampling"]), *sorted(options)]


def shown(where: dict[str, Any], spec: dict[str, Any]) -> bool:
    """Whether a figure limited by `where` shows a cell; one whose method lacks the option is a point of reference and stays."""
    pairs = [(setting(spec, name), wanted) for name, wanted in where.items()]
    return all(have is None or have in (wanted if isinstance(wanted, list) else [wanted]) for have, wanted in pairs)


def source(paper: str) -> tuple[str, list[str]]:
    """The paper of a text such as "Teng et al. 2024 (SJD), Fig. 8, Table 9", and its tables and figures."""
    name, *places = (part.strip() for part in paper.split(","))
    return name, places


def problem(figure: Any, specs: list[dict[str, Any]]) -> tuple[str, str] | None:
    """What is wrong with a figure of the cells `specs` (the decoders and the reference): the key with its value, and what is allowed."""
    known = settings(specs)
    allowed = f"a setting of these methods ({', '.join(known)})"
    for key in ("by", "where"):
        for name in getattr(figure, key):
            if name not in known:
                return f"{key} = {name!r}", allowed
    if figure.x not in known and figure.x not in MEASURES:
        return f"x = {figure.x!r}", f"{allowed} or a measure ({', '.join(MEASURES)})"
    for name in figure.y:
        if name not in MEASURES:
            return f"y = {name!r}", f"a measure ({', '.join(MEASURES)})"
    for name, wanted in figure.where.items():
        found = {json.dumps(setting(s, name)) for s in specs}
        for value in wanted if isinstance(wanted, list) else [wanted]:
            if json.dumps(value) not in found:
                return (
                    f"where.{name} = {value!r}",
                    f"a value that a variant has ({', '.join(sorted(found - {'null'}))})",
                )
    if figure.x in MEASURES:
        return None
    seen = set()
    for s in (s for s in specs if shown(figure.where, s)):
        place = json.dumps([setting(s, name) for name in (figure.x, *figure.by)])
        if place in seen:
            others = [
                n
                for n in known
                if n not in (figure.x, *figure.by) and len({json.dumps(setting(t, n)) for t in specs}) > 1
            ]
            return (
                f"by = {figure.by}",
                f"settings that tell the variants of one {figure.x} apart (or `where`): {', '.join(others)}",
            )
        seen.add(place)
    return None


def unknown_source(paper: str, published: list[dict[str, str]]) -> str | None:
    """What is wrong with a figure's `paper`, given the rows of workflow/published: a paper, or a table, that no row is of.

    A figure may have no rows: its numbers are not printed.
    """
    name, places = source(paper)
    names = sorted({row["paper"] for row in published})
    if name not in names:
        return f"a paper of workflow/published ({', '.join(names)}), then its tables and figures"
    tables = {row["table"] for row in published if row["paper"] == name}
    missing = [p for p in places if p.startswith("Table") and p not in tables]
    return f"a table of {name} ({', '.join(sorted(t for t in tables if t.startswith('Table')))})" if missing else None
