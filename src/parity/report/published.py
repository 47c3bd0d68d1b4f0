"""The papers' figures beside ours: one matcher for every kind of model.

A published row says: kind, paper, table, model, method, options, conditions, metric, value. `options` and `conditions`
are JSON; a list stands for any of its values, null for any at all. What options leave unsaid is the default, which is
the papers'. Conditions that a cell has too (its model, task and the task's settings, cache, batch, "sampling.<field>",
"guided") must agree with it; the others (prompts, device) are told to the reader.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from parity.experiment.options import methods, options, plain
from parity.report.blocks import missing
from parity.report.settings import NAMED, read, records, settings_of

Row = Mapping[str, Any]
COLUMNS = ["kind", "paper", "table", "model", "method", "options", "conditions", "metric", "value"]
COLUMNS += ["change", "ours", "our_change", "difference", "our_options", "key"]
# Ratios to plain decoding and shares compare as they are; of other figures the changes from plain decoding do.
RATIOS = ("step_compression", "speedup", "nfe_per_token", "perplexity_ratio", "acceptance")
APART = ("seconds", "nfe", "aux")  # seconds are of a machine, counts of a text's length: their changes do not compare
RELEASED = NAMED["as released"]
OPEN = {"continuous": {"prefill", "gamma", *RELEASED}}  # options that are open where a paper says nothing of them
NEAREST = ("batch",)  # conditions that need not agree: the nearest comes first


def read_published(files: Sequence[Path]) -> pd.DataFrame:
    """Every published number."""
    papers = [pd.read_csv(f, keep_default_na=False) for f in files]
    return pd.concat(papers, ignore_index=True) if papers else pd.DataFrame(columns=COLUMNS[:9])


def cut(top_k: int, vocab: int) -> int:
    """How many tokens top-k leaves: 0, and more than there are, leave all."""
    return min(top_k, vocab) if top_k else vocab


def any_of(wanted: Any, have: Any) -> bool:
    return wanted is None or have in (wanted if isinstance(wanted, list) else [wanted])


def stated(paper: Row, row: Row, vocab: Mapping[str, int]) -> bool:
    """Whether a published number describes a row of ours.

    vocab   size of each discrete model's codebook
    """
    if (paper["kind"], paper["method"]) != (row["kind"], row["method"]):
        return False
    given, size = settings_of(row), vocab.get(row["model"], 0)
    if "sampling.guidance" in given:
        given["guided"] = given["sampling.guidance"] != 1
    for name, wanted in read(paper["conditions"]).items():
        if name == "sampling.top_k" and name in given:
            wanted, given[name] = cut(wanted, size), cut(given[name], size)
        if name in given and name not in NEAREST and not any_of(wanted, given[name]):
            return False
    have, said = read(row["options"]), read(paper["options"])
    free = OPEN.get(paper["kind"], set()) - set(said)
    defaults = options(paper["kind"], paper["method"], {}) if paper["method"] else {}
    return all(any_of(wanted, have.get(name)) for name, wanted in (defaults | said).items() if name not in free)


def longest(paper: Row, row: Row) -> tuple[float, ...]:
    """Of texts of several lengths the longest, for the papers' are longer still."""
    return (settings_of(row).get("length", 0),)


def likest(paper: Row, row: Row) -> tuple[float, ...]:
    """What the paper ran first: its code, then its pre-filling, then its batch."""
    have, batch = read(row["options"]), read(paper["conditions"]).get("batch")
    wanted = (options(paper["kind"], paper["method"], {}) | read(paper["options"])).get("prefill")
    released = sum(have.get(name) == v for name, v in RELEASED.items())
    return released, have.get("prefill") == wanted, 0.0 if batch is None else -abs(math.log(row["batch"] / batch))


# Where several rows of ours match, the likest one stands beside the paper's figure; for images each does.
ONE: dict[str, Callable[[Row, Row], tuple[float, ...]]] = {"anysubset": longest, "continuous": likest}


def matches(paper: Row, rows: Sequence[Row], vocab: Mapping[str, int]) -> list[Row]:
    """Rows of ours to stand beside a published number; one that has the figure comes first."""
    stating = [row for row in rows if stated(paper, row, vocab)]
    if paper["kind"] not in ONE or not stating:
        return stating
    metric, rank = paper["metric"], ONE[paper["kind"]]
    return [max(stating, key=lambda row: (not missing(row.get(metric)), *rank(paper, row)))]


def changes(paper: Row, row: Row, theirs: float | None, base: Row | None, same: bool) -> dict[str, Any]:
    """Both figures' changes from plain decoding, and of the `same` network ours less theirs: of ratios themselves, else
    of the changes. Figures of two networks differ by the networks, so their difference says nothing of the method."""
    metric, value = paper["metric"], row.get(paper["metric"])
    result: dict[str, Any] = dict.fromkeys(("change", "our_change", "difference"))
    if value is None or missing(value):
        return result
    if metric in RATIOS:
        return result | ({"difference": value - paper["value"]} if same else {})
    if base is None or row is base or missing(base.get(metric)) or any(word in metric for word in APART):
        return result
    result["our_change"] = value - base[metric]
    if theirs is not None:
        result["change"] = paper["value"] - theirs
        if same:
            result["difference"] = result["our_change"] - result["change"]
    return result


def beside(
    papers: pd.DataFrame,
    summary: pd.DataFrame,
    vocab: Mapping[str, int],
    more: Sequence[Row] = (),
    networks: Mapping[str, str] | None = None,
) -> pd.DataFrame:
    """The papers' figures with ours beside them, where what they are of is in the experiment.

    change, our_change  from plain decoding: the paper's own in the same table, ours of the cell's reference
    difference          where both are of one network, ours less theirs: of ratios themselves, of others the changes
    networks            our models that are a paper's own network: its name there
    more                rows of ours that are of no cell: answers of the model itself
    """
    table = ["paper", "table", "model", "conditions", "metric"]
    theirs = {tuple(p[name] for name in table): p["value"] for p in records(papers[::-1]) if is_plain(p)}
    cells: list[Row] = [*records(summary), *more]
    by_key = {row["key"]: row for row in cells}
    rows = [row for row in cells if row["role"] != "control"]
    result = []
    for paper in records(papers):
        for row in matches(paper, rows, vocab):
            base = by_key.get(row.get("reference"))
            own = None if is_plain(paper) else theirs.get(tuple(paper[name] for name in table))
            same = (networks or {}).get(row.get("model", "")) == paper["model"]
            mine = {"ours": row.get(paper["metric"]), "our_options": row["options"], "key": row["key"]}
            result.append({**paper, **mine, **changes(paper, row, own, base, same)})
    return pd.DataFrame(result, columns=COLUMNS)


def is_plain(paper: Row) -> bool:
    """Whether a published row is of plain decoding."""
    kind, method, said = paper["kind"], paper["method"], read(paper["options"])
    return method in methods(kind) and plain(kind, method, options(kind, method, {}) | said)


def answers(accuracy: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Accuracies of a text model itself as rows to match: of no method."""
    empty = {"kind": "anysubset", "model": "", "method": "", "options": "{}", "role": "method"}
    return [{**empty, "task": a["task_kind"], "key": a["task_kind"], "accuracy": a["accuracy"]} for a in accuracy]
