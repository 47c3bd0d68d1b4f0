"""The answers to a reader's questions on one kind of model, such as how sure its verdicts are. Their values are found
here, templates/answers.txt.j2 has the words."""

import math
import re
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import jinja2
import pandas as pd
from parity_certify.result_rows import ALPHA, describe_confidence

from parity.metrics.estimates import PERCENT, estimate_of
from parity.report.blocks import format_text, is_missing
from parity.report.collect import Gathered
from parity.report.front_table import describe_quality, find_reference, is_judged_here
from parity.report.order import rank_verdict
from parity.report.tables import doubt_speed, show_bound

GPU_SECONDS = Path(__file__).parents[3] / "docs/figures/gpu-seconds.csv"  # where this is a clone, with its docs


@cache
def load_words() -> Any:
    """Load the macros of templates/answers.txt.j2. They escape nothing: the page escapes all text."""
    loader = jinja2.FileSystemLoader(Path(__file__).parent / "templates")
    templates = jinja2.Environment(loader=loader, undefined=jinja2.StrictUndefined)
    templates.globals["percent"] = PERCENT
    return templates.get_template("answers.txt.j2").module


def find_largest(rows: list[dict[str, Any]], name: str) -> dict[str, Any] | None:
    """Find the row with the largest figure `name`; None if no row has it."""
    return max((r for r in rows if not is_missing(r.get(name))), key=lambda r: r[name], default=None)


def answer_questions(g: Gathered, kind: str, rows: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Answer a reader's questions on one kind of model, such as "How sure": pairs of a question and its answer."""
    words = load_words()

    def list_names(*ranks: int) -> str:
        """Join the names of the methods whose verdict has one of these ranks (`rank_verdict`)."""
        return ", ".join(dict.fromkeys(r["name"] for r in rows if rank_verdict(r) in ranks))

    exact, lines = [r for r in rows if rank_verdict(r) in (0, 1)], []
    if not exact:
        lines.append(("Lossless", "none"))
    if list_names(1):
        lines.append(("No difference found", f"{list_names(1)}; too few sequences to certify"))
    if list_names(2, 3):
        lines.append(("Not decided", list_names(2, 3)))
    if bounded := find_largest(exact, "tv_bound"):
        models = format_text(exact[0].get("tested_models"), "small models")
        small, _, long = models.partition("; ")
        confidence = describe_confidence(g.settings.equality.alpha)
        bound = show_bound(bounded["tv_bound"]).text
        sure = words.sure(bound, confidence, small, long, is_teacher_forced(g, exact))
        lines.append(("How sure of the distribution", sure))
        longest = re.findall(r"(\d+) tokens", models)
        lines.append(("Not tested", words.untested(longest[-1] if longest else "")))
    if kind == "discrete":
        if sizes := describe_sizes(g, rows):
            lines.append(("Networks", sizes))
    elif fewest := find_largest(exact, "gain"):
        count = "calls one after another" if kind == "continuous" else "passes"
        saved = words.fewest(fewest["label"], fewest["gain"], g.find_baseline(kind))
        lines.append((f"Fewest {count}", saved))
    item = "text" if kind == "anysubset" else "image"
    lines += [
        (f"Fastest lossless, {question}", name_fastest(rows, exact, speed, g.find_baseline(kind) or "plain decoding"))
        for question, speed in ((f"one {item}", "speedup_single"), ("a batch", "speedup")) if find_largest(exact, speed)
    ]  # fmt: skip
    if kind == "discrete" and (compiled := describe_compiled_baseline(find_reference(g, rows[0]), exact)):
        lines.append(("Plain decoding compiled", compiled))
    if kind == "discrete" and GPU_SECONDS.is_file():
        lines.append(("On a GPU", describe_gpu(GPU_SECONDS)))
    if error := describe_predictions(rows):
        lines.append(("Predicted speeds", error))
    if level := describe_level(g.settings.equality.alpha, rows):
        lines.append(("Level of the tests", level))
    lines.append(("Quality", describe_quality(g, kind, rows)))
    if is_judged_here(rows):
        lines.append(("Who judges it", JUDGES[kind]))
    return lines


def describe_gpu(file: Path) -> str:
    """Describe which methods should be fastest on the GPU that was measured for the docs (docs/results/gpu.md), where a
    method's own work counts, for each network."""
    table = pd.read_csv(file).sort_values("times captured plain", ascending=False)
    device = table["device"].iloc[0]
    gains: dict[str, list[str]] = {}
    for label, times in zip(table["label"], table["times captured plain"], strict=True):
        network, _, method = label.rpartition(", ")
        if method != "ar":
            gains.setdefault(network, []).append(f"{method} {times:.1f}")
    return load_words().gpu(device, gains)


def describe_predictions(rows: list[dict[str, Any]]) -> str:
    """Say how measured speeds, of one row and of a batch, compare with predicted ones; "" where none was timed."""
    pairs = [
        (r[f"{name}_predicted"], r[name])
        for r in rows
        for name in ("speedup_single", "speedup")
        if r.get(f"{name}_how") == "timed"
    ]
    shares = [measured / predicted for predicted, measured in pairs]
    return load_words().predictions(len(shares), median(shares), min(shares), max(shares)) if shares else ""


def describe_compiled_baseline(plain: dict[str, Any], exact: list[dict[str, Any]]) -> str:
    """Say how fast plain decoding of one image is with compiled passes, and which lossless methods, `exact`, are surely
    faster without: their interval lies above its own. "" where it was not timed."""
    if is_missing(plain.get("speedup_compiled")):
        return ""
    figure = estimate_of(plain, "speedup_compiled")
    upper_end = figure.value if figure.high is None else figure.high
    faster = [r["label"] for r in exact if (estimate_of(r, "speedup_single").low or 0) > upper_end]
    return load_words().compiled(figure, faster)


def name_fastest(
    rows: list[dict[str, Any]], exact: list[dict[str, Any]], speed: str, baseline: str = "plain decoding"
) -> str:
    """Write which lossless method was measured to be the fastest by the column `speed`, how sure that is, which may be
    faster but were measured too roughly, and a faster lossy one. rows: all methods; exact: the lossless ones; baseline:
    what the speeds are relative to. All are taken over plain decoding in its fastest way, whatever theirs is."""
    rows, exact = ([put_on_one_scale(r, speed) for r in some] for some in (rows, exact))
    sure = [r for r in exact if not is_missing(r.get(speed)) and not doubt_speed(r, speed)]
    best = find_largest(sure or exact, speed)
    assert best is not None
    figure = estimate_of(best, speed)
    lowest = math.inf if figure.low is None else figure.low
    rivals = [r["label"] for r in sure if r is not best and (estimate_of(r, speed).high or 0) > lowest]
    predicted = f"{speed}_predicted"  # like is compared with like: predictions miss all methods in one direction
    least = figure.value if is_missing(best.get(predicted)) else best[predicted]
    guessed = {r["label"]: r.get(speed if is_missing(r.get(predicted)) else predicted) for r in exact if r not in sure}
    rough = [label for label, value in guessed.items() if label != best["label"] and (value or 0) > least]
    lossy = find_largest([r for r in rows if rank_verdict(r) > 1 and not doubt_speed(r, speed)], speed)
    ahead = (lossy["label"], lossy[speed]) if lossy and lossy[speed] > max(1, best[speed]) else None
    return load_words().fastest(best["label"], figure, baseline, doubt_speed(best, speed), rivals, rough, ahead)


def put_on_one_scale(row: dict[str, Any], speed: str) -> dict[str, Any]:
    """Return a row with its speed over plain decoding with CUDA graphs in place of that over plain decoding without, if
    it has both."""
    if is_missing(row.get(f"{speed}_over_captured")):
        return row
    return row | {
        f"{speed}{end}": row.get(f"{speed}_over_captured{end}") for end in ("", "_low", "_high", "_predicted")
    }


def describe_sizes(g: Gathered, rows: list[dict[str, Any]]) -> str:
    """List the parameters of the target and of each speculator with the methods that need it; "" if none is stored."""
    cells = g.map_cells("discrete")
    sizes: dict[str, int] = {}  # parameters by network; `users` has the methods that need it
    users: dict[str, list[str]] = {}
    for row in rows:
        parameters = g.files.read_provenance(cells[row["label"]]).get("parameters") or {}
        for network, size in parameters.items():
            sizes[network] = size
            users.setdefault(network, []).append(row["method"])
    lines = [
        (NETWORKS.get(name, name), shorten_count(sizes[name]), [] if name == "target" else dict.fromkeys(users[name]))
        for name in sorted(sizes, key=lambda name: -sizes[name])
    ]
    return load_words().networks(lines) if lines else ""


def shorten_count(count: float) -> str:
    """Shorten a count of parameters: "3.2 M"."""
    unit, name = next(((unit, name) for unit, name in UNITS if count >= unit), (1, ""))
    return f"{count / unit:.3g} {name}".strip()


def describe_level(alpha: float, rows: list[dict[str, Any]]) -> str:
    """Describe what an unusual level `alpha` of the tests means for their power; "" at the usual level."""
    if alpha == ALPHA:
        return ""
    weakest = find_largest(rows, "minimum_detectable_effect")
    smallest = show_bound(weakest["minimum_detectable_effect"]).text if weakest else ""
    return load_words().level(alpha, ALPHA, smallest)


def is_teacher_forced(g: Gathered, rows: list[dict[str, Any]]) -> bool:
    """Return whether all rows were tested on the model they decoded, each token given the tokens before it."""
    compared = set(g.equality.loc[g.equality["layer"] == "teacher-forced", "key"])
    return {r["key"] for r in rows} <= compared


NETWORKS = {"target": "target", "drafter": "drafter", "draft": "draft model", "heads": "heads"}
UNITS = ((1e9, "billion"), (1e6, "million"), (1e3, "thousand"))
JUDGES = {
    "discrete": "small networks trained here on Scenes, not the published CLIP and Inception: Scenes-CLIP and"
    " Scenes-FID compare rows of this page, and nothing with a paper",
    "anysubset": "a small network trained here on Stories: its perplexity compares rows of this page, and nothing with"
    " a paper",
    "continuous": "a small classifier trained here on Scenes: its figures compare rows of this page, and nothing with a"
    " paper",
}
