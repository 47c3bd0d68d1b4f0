"""The papers' figures beside ours: one matcher for every kind of model.

A published row has: kind, paper, table, model, method, options, conditions, metric, value. `options` and `conditions`
are JSON; a list stands for any of its values, null for any at all. An option that is not stated is the default, which
is the papers'. Conditions that a cell has too (its model, task and the task's settings, cache, batch,
"sampling.<field>", "guided") must agree with it; the others (prompts, device) are shown to the reader."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from parity.experiment.options import is_plain_decoding, list_bounds, methods, options
from parity.report.blocks import is_missing, list_records
from parity.report.settings import NAMED, SummaryRow, list_settings, parse_settings

COLUMNS = ["kind", "paper", "table", "model", "method", "options", "conditions", "metric", "value"]
COLUMNS += ["change", "ours", "our_change", "difference", "our_options", "key"]
# Ratios to plain decoding and shares are compared directly; other figures by their change from plain decoding.
RATIOS = ("step_compression", "tpf", "speedup", "nfe_per_token", "perplexity_ratio", "acceptance")
APART = ("seconds", "nfe", "aux")  # not compared: seconds depend on the machine, counts on the length
NOT_RUN = "the paper's"  # marks a number of a network that is not run
PaperRow = Mapping[str, Any]  # a published number, by COLUMNS
Sizes = Mapping[str, Mapping[str, int]]  # by model its sizes that bound options: "length", "vocab"
RELEASED = NAMED["as released"]
OPEN = {"continuous": {"prefill", "gamma", *RELEASED}}  # if a paper does not state these options, any value matches


def read_published(files: Sequence[Path]) -> pd.DataFrame:
    papers = [pd.read_csv(f, keep_default_na=False) for f in files]
    return pd.concat(papers, ignore_index=True) if papers else pd.DataFrame(columns=COLUMNS[:9])


def is_wanted(wanted: Any, value: Any) -> bool:
    """Return whether a value is what a paper states: None stands for any value, a list for any of its values."""
    return wanted is None or value in (wanted if isinstance(wanted, list) else [wanted])


def is_match(paper: PaperRow, row: SummaryRow, sizes: Sizes) -> bool:
    """Return whether a published number describes a summary row: same method and options, no condition contradicts."""
    if (paper["kind"], paper["method"]) != (row["kind"], row["method"]):
        return False
    settings, our_options = list_settings(row), parse_settings(row["options"])
    size = sizes.get(row["model"], {}).get("vocab", 0)
    settings.pop("batch", None)  # the batch need not agree; the nearest is preferred
    is_capped = row.get("stand_in") is True
    if our_options.get("iterations") and not is_capped:
        settings["tokens_per_step"] = count_tokens_per_step(row, sizes)
    if "sampling.guidance" in settings:
        settings["guided"] = settings["sampling.guidance"] != 1
    for name, wanted in parse_settings(paper["conditions"]).items():
        value = settings.get(name)
        if name == "sampling.top_k" and name in settings:  # top_k of 0, or above the vocabulary, keeps all tokens
            wanted, value = (min(k, size) if k else size for k in (wanted, value))
        if name in settings and not is_wanted(wanted, value):
            return False
    stated = parse_settings(paper["options"])
    free = OPEN.get(paper["kind"], set()) - set(stated)
    defaults = options(paper["kind"], paper["method"], {}) if paper["method"] else {}
    required = {name: wanted for name, wanted in (defaults | stated).items() if name not in free}
    if is_capped:
        bounds = list_bounds(row["kind"], row["method"], sizes.get(row["model"], {})) if row["method"] else {}
        required |= {name: cap(required[name], bound) for name, bound in bounds.items() if name in required}
    return all(is_wanted(wanted, our_options.get(name)) for name, wanted in required.items())


def count_tokens_per_step(row: SummaryRow, sizes: Sizes) -> float:
    return float(sizes[row["model"]]["length"] / parse_settings(row["options"])["iterations"])


def cap(wanted: Any, most: int) -> Any:
    """Cap what a paper states of an option: a number, a list of them, or None for any."""
    if isinstance(wanted, list):
        return [cap(value, most) for value in wanted]
    return min(wanted, most) if isinstance(wanted, int) else wanted


def rate_likeness(paper: PaperRow, row: SummaryRow, sizes: Sizes) -> tuple[float, ...]:
    """Rate how like a row is to what the paper ran. Of text, longest first; of vectors by the options of the paper's
    code, pre-filling, batch, and tokens a step."""
    if paper["kind"] == "anysubset":
        return (list_settings(row).get("length", 0),)
    our_options = parse_settings(row["options"])
    batch = parse_settings(paper["conditions"]).get("batch")
    wanted = (options(paper["kind"], paper["method"], {}) | parse_settings(paper["options"])).get("prefill")
    released = sum(our_options.get(name) == v for name, v in RELEASED.items())
    batch_likeness = 0.0 if batch is None else -abs(math.log(row["batch"] / batch))
    tokens = parse_settings(paper["conditions"]).get("tokens_per_step")
    step_likeness = 0.0
    if tokens is not None and our_options.get("iterations"):
        step_likeness = -abs(math.log(count_tokens_per_step(row, sizes) / tokens))
    return released, our_options.get("prefill") == wanted, batch_likeness, step_likeness


def find_matches(paper: PaperRow, rows: Sequence[SummaryRow], sizes: Sizes) -> list[SummaryRow]:
    """Find our rows beside a published number: of images all that match, of others the most alike with the figure."""
    described = [row for row in rows if is_match(paper, row, sizes)]
    if paper["kind"] == "discrete" or not described:
        return described
    metric = paper["metric"]
    return [max(described, key=lambda row: (not is_missing(row.get(metric)), *rate_likeness(paper, row, sizes)))]


def compute_changes(
    paper: PaperRow, row: SummaryRow, baseline: float | None, base: SummaryRow | None, is_same: bool
) -> dict[str, Any]:
    """Compute the change from plain decoding of the paper's figure (`baseline` its own) and of ours (`base` our row)
    and, if both are of the same network, ours less theirs: of ratios themselves, else of the changes. {} without."""
    metric = paper["metric"]
    value = row.get(metric)
    if is_missing(value):
        return {}
    if metric in RATIOS:
        return {"difference": value - paper["value"]} if is_same else {}
    if base is None or row is base or is_missing(base.get(metric)) or any(word in metric for word in APART):
        return {}
    ours = value - base[metric]
    theirs = None if baseline is None else paper["value"] - baseline
    difference = ours - theirs if is_same and theirs is not None else None
    return {"our_change": ours, "change": theirs, "difference": difference}


def join_published(
    papers: pd.DataFrame, summary: pd.DataFrame, sizes: Sizes, extra_rows: Sequence[SummaryRow] = (),
    networks: Mapping[str, str] | None = None,
) -> pd.DataFrame:  # fmt: skip
    """Join the papers' figures with ours, a row for each pair of a published number and a matching cell. extra_rows:
    ours of no cell, answers of the text model itself; networks: our models that are a paper's own network, by its
    name."""
    table = ["paper", "table", "model", "conditions", "metric"]
    baselines = {tuple(p[name] for name in table): p["value"] for p in list_records(papers[::-1]) if is_plain(p)}
    cells: list[SummaryRow] = [*list_records(summary), *extra_rows]
    by_key = {row["key"]: row for row in cells}
    rows = [row for row in cells if row["role"] != "control"]
    result = []
    for paper in list_records(papers):
        baseline = None if is_plain(paper) else baselines.get(tuple(paper[name] for name in table))
        for row in find_matches(paper, rows, sizes):
            same_network = (networks or {}).get(row.get("model", "")) == paper["model"]
            is_relative = is_missing(row.get("baseline"))  # whether ours are relative to plain decoding, too
            figure = row.get(paper["metric"]) if is_relative or paper["metric"] != "speedup" else None
            ours = {"ours": figure, "our_options": row["options"], "key": row["key"]}
            base = by_key.get(row.get("reference")) if is_relative else None
            changes = compute_changes(paper, row, baseline, base, same_network)
            result.append({**paper, **ours, **changes})
    # A table that has a row of ours shows what it prints of networks that are not run, too.
    tables, run = ({tuple(row[n] for n in names) for row in result} for names in (table[:2], table[:3]))
    for paper in list_records(papers):
        network = tuple(paper[name] for name in table[:3])
        if network[:2] in tables and network not in run:
            result.append({**paper, "key": NOT_RUN})
    return pd.DataFrame(result, columns=COLUMNS)


def is_plain(paper: PaperRow) -> bool:
    kind, method = paper["kind"], paper["method"]
    return method in methods(kind) and is_plain_decoding(
        kind, method, options(kind, method, {}) | parse_settings(paper["options"])
    )


def list_answers(accuracy: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """List the accuracies of text models themselves, which are of no method, as rows for `join_published`."""
    empty = {"kind": "anysubset", "method": "", "options": "{}", "role": "method"}
    named = [(a.get("model", ""), a["task_kind"], a["accuracy"]) for a in accuracy]
    return [
        {**empty, "model": model, "task": task, "key": f"{task} {model}".strip(), "accuracy": share}
        for model, task, share in named
    ]
