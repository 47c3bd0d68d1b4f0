"""The answers to a reader's questions on one kind of model, such as how sure its verdicts are."""

import math
import re
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd
from parity_certify.result_rows import ALPHA, describe_confidence

from parity.metrics.estimates import PERCENT, Estimate, estimate_of
from parity.report.blocks import format_text, is_missing
from parity.report.collect import Gathered
from parity.report.front_table import ABOUT, describe_quality, find_reference, is_judged_here
from parity.report.order import rank_verdict
from parity.report.tables import doubt_speed, show_bound

GPU_SECONDS = Path(__file__).parents[3] / "docs/figures/gpu-seconds.csv"  # where this is a clone, with its docs


def find_largest(rows: list[dict[str, Any]], name: str) -> dict[str, Any] | None:
    """Find the row with the largest figure `name`; None if no row has it."""
    return max((r for r in rows if not is_missing(r.get(name))), key=lambda r: r[name], default=None)


def answer_questions(g: Gathered, kind: str, rows: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Answer a reader's questions on one kind of model, such as "How sure": pairs of a question and its answer."""

    def list_names(*ranks: int) -> str:
        """Join the names of the methods whose verdict has one of these ranks (`rank_verdict`)."""
        return ", ".join(dict.fromkeys(r["name"] for r in rows if rank_verdict(r) in ranks))

    exact, baseline = [r for r in rows if rank_verdict(r) in (0, 1)], g.find_baseline(kind)
    bounded = find_largest(exact, "tv_bound")
    answers = {
        "Lossless": "" if exact else "none",
        "No difference found": list_names(1) and f"{list_names(1)}; too few sequences to certify",
        "Not decided": list_names(2, 3),
        "How sure of the distribution": describe_bound(g, exact, bounded) if bounded else "",
        "Not tested": describe_untested(exact) if bounded else "",
    }
    if kind == "discrete":
        answers["Networks"] = describe_sizes(g, rows)
    elif fewest := find_largest(exact, "gain"):
        saved = f"{fewest['label']}, {fewest['gain']:.1f} times fewer" + (f" than {baseline}" if baseline else "")
        answers[f"Fewest {ABOUT[kind].saved}"] = saved if fewest["gain"] > 1 else "none saves any"
    for question, speed in ((f"one {ABOUT[kind].item}", "speedup_single"), ("a batch", "speedup")):
        if find_largest(exact, speed):
            named = name_fastest(rows, exact, speed, baseline or "plain decoding")
            answers[f"Fastest lossless, {question}"] = named
    if kind == "discrete":
        answers["Plain decoding compiled"] = describe_compiled_baseline(find_reference(g, rows[0]), exact)
        answers["On a GPU"] = describe_gpu(GPU_SECONDS) if GPU_SECONDS.is_file() else ""
    answers["Predicted speeds"] = describe_predictions(rows)
    answers["Level of the tests"] = describe_level(g.settings.equality.alpha, rows)
    answers["Quality"] = describe_quality(g, kind, rows)
    answers["Who judges it"] = ABOUT[kind].judge if is_judged_here(rows) else ""
    return [(question, answer) for question, answer in answers.items() if answer]


def describe_bound(g: Gathered, exact: list[dict[str, Any]], bounded: dict[str, Any]) -> str:
    """Describe how sure the distribution of the lossless methods is, and where; `bounded` has the largest bound."""
    small, _, long = format_text(exact[0].get("tested_models"), "small models").partition("; ")
    text = (
        f"total variation (0: the same distribution, 1: another) at most {show_bound(bounded['tv_bound']).text} with"
        f" {describe_confidence(g.settings.equality.alpha)} confidence, on {small} a sequence and at the small options"
        " that the table names"
    )
    if long:
        text += f"; at the run's own, no difference found on {long}"
    compared = set(g.equality.loc[g.equality["layer"] == "teacher-forced", "key"])
    if {r["key"] for r in exact} <= compared:
        text += "; on the decoded model, tested token by token, no difference found"
    return text


def describe_untested(exact: list[dict[str, Any]]) -> str:
    """Describe what no test of the lossless methods tells."""
    lengths = re.findall(r"(\d+) tokens", format_text(exact[0].get("tested_models")))
    longest = f"sequences of more than {lengths[-1]} tokens; " if lengths else ""
    return f"{longest}the joint distribution of the decoded model, which cannot be listed; other models"


def describe_gpu(file: Path) -> str:
    """Describe, for each network, which methods should be fastest on the GPU of the docs (docs/results/gpu.md)."""
    table = pd.read_csv(file).sort_values("times captured plain", ascending=False)
    gains: dict[str, list[str]] = {}
    for label, times in zip(table["label"], table["times captured plain"], strict=True):
        network, _, method = label.rpartition(", ")
        if method != "ar":
            gains.setdefault(network, []).append(f"{method} {times:.1f}")
    listed = "".join(f" {', '.join(methods)} ({network});" for network, methods in gains.items())
    return (
        f"times as fast as captured plain decoding on one {table['device'].iloc[0]}, predicted from passes timed there"
        f" on random weights and the docs' counts of passes:{listed} docs/results/gpu.md"
    )


def describe_predictions(rows: list[dict[str, Any]]) -> str:
    """Say how measured speeds, of one row and of a batch, compare with predicted ones; "" where none was timed."""
    names = ("speedup_single", "speedup")
    shares = [r[n] / r[f"{n}_predicted"] for r in rows for n in names if r.get(f"{n}_how") == "timed"]
    if not shares:
        return ""
    return (
        f"measured speeds, of which there are {len(shares)}, are {median(shares):.2f} of the predicted ones at the"
        f" median, and {min(shares):.2f} to {max(shares):.2f}"
    )


def format_interval(figure: Estimate) -> str:
    return "" if figure.low is None else f" ({PERCENT} interval {figure.low:.2f} to {figure.high:.2f})"


def describe_compiled_baseline(plain: dict[str, Any], exact: list[dict[str, Any]]) -> str:
    """Say how fast compiled plain decoding of one image is, and which lossless methods are surely faster uncompiled:
    their interval lies above its own. "" where it was not timed."""
    figure = estimate_of(plain, "speedup_compiled")
    if figure.missing:
        return ""
    upper_end = figure.value if figure.high is None else figure.high
    faster = [r["label"] for r in exact if (estimate_of(r, "speedup_single").low or 0) > upper_end]
    return (
        f"one image at {figure.value:.2f} times the speed of plain decoding as it is here{format_interval(figure)},"
        " timed in turn; lossless methods that are surely faster than that, uncompiled:"
        f" {', '.join(faster) or 'none'}"
    )


def name_fastest(
    rows: list[dict[str, Any]], exact: list[dict[str, Any]], speed: str, baseline: str = "plain decoding"
) -> str:
    """Write which lossless method, of `exact`, was measured to be the fastest by the column `speed`, how sure that is,
    which others may be faster, and a faster lossy one of `rows`; all over plain decoding in its fastest way."""
    rows, exact = ([put_on_one_scale(r, speed) for r in some] for some in (rows, exact))
    sure = [r for r in exact if not is_missing(r.get(speed)) and not doubt_speed(r, speed)]
    best = find_largest(sure or exact, speed)
    assert best is not None
    figure, doubt = estimate_of(best, speed), doubt_speed(best, speed)
    lowest = math.inf if figure.low is None else figure.low
    rivals = [r["label"] for r in sure if r is not best and (estimate_of(r, speed).high or 0) > lowest]
    predicted = f"{speed}_predicted"  # like is compared with like: predictions miss all methods in one direction
    least = figure.value if is_missing(best.get(predicted)) else best[predicted]
    guessed = {r["label"]: r.get(speed if is_missing(r.get(predicted)) else predicted) for r in exact if r not in sure}
    rough = [label for label, value in guessed.items() if label != best["label"] and (value or 0) > least]
    lossy = find_largest([r for r in rows if rank_verdict(r) > 1 and not doubt_speed(r, speed)], speed)

    text = f"{best['label']}, {figure.value:.2f} times the speed of {baseline}{format_interval(figure)}"
    if figure.value <= 1:
        text = f"none is {'surely ' if rough else ''}faster than {baseline}; the nearest: {text}"
    if (figure.value if figure.low is None else figure.low) > 1:
        text += f"; a guess ({doubt})" if doubt else ""
    elif figure.value > 1:
        text += "; not sure to be faster at all" + (f" ({doubt})" if doubt else "")
    if rivals:
        text += f"; intervals that overlap: {', '.join(rivals)}"
    if rough:
        text += f"; perhaps faster, but not measured well: {', '.join(rough)}"
    if lossy and lossy[speed] > max(1, best[speed]):
        text += f" (of the others: {lossy['label']}, {lossy[speed]:.2f} times)"
    return text


def put_on_one_scale(row: dict[str, Any], speed: str) -> dict[str, Any]:
    """Replace a row's speed by that over plain decoding with CUDA graphs, where it has both."""
    if is_missing(row.get(f"{speed}_over_captured")):
        return row
    ends = ("", "_low", "_high", "_predicted")
    return row | {f"{speed}{end}": row.get(f"{speed}_over_captured{end}") for end in ends}


def describe_sizes(g: Gathered, rows: list[dict[str, Any]]) -> str:
    """List the parameters of the target and of each speculator with the methods that need it; "" if none is stored."""
    cells = g.map_cells("discrete")
    sizes: dict[str, int] = {}  # parameters by network; `users` has the methods that need it
    users: dict[str, dict[str, None]] = {}
    for row in rows:
        for network, size in (g.files.read_provenance(cells[row["label"]]).get("parameters") or {}).items():
            sizes[network] = size
            users.setdefault(network, {})[row["method"]] = None
    users["target"] = {}  # which all need
    words = {"draft": "draft model"}
    lines = []
    for name in sorted(sizes, key=lambda name: -sizes[name]):
        needed_by = f" ({', '.join(users[name])})" if users[name] else ""
        lines.append(f"{words.get(name, name)} {shorten_count(sizes[name])}{needed_by}")
    return f"parameters: {'; '.join(lines)}" if lines else ""


def shorten_count(count: float) -> str:
    """Shorten a count of parameters: "3.2 million"."""
    units = ((1e9, " billion"), (1e6, " million"), (1e3, " thousand"))
    unit, name = next(((unit, name) for unit, name in units if count >= unit), (1, ""))
    return f"{count / unit:.3g}{name}"


def describe_level(alpha: float, rows: list[dict[str, Any]]) -> str:
    """Describe what an unusual level `alpha` of the tests means for their power; "" at the usual level."""
    if alpha == ALPHA:
        return ""
    text = "fewer correct methods are rejected, and a fault must be larger to be found"
    if alpha > ALPHA:
        text = "more correct methods are rejected, and smaller faults are found"
    weakest = find_largest(rows, "minimum_detectable_effect")
    if weakest:
        text += f": a total variation of {show_bound(weakest['minimum_detectable_effect']).text} four times in five"
    return f"{alpha:g}, where {ALPHA:g} is usual: {text}"
