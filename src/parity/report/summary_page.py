"""The front page: what was found in a few lines, pictures, a table and a figure for each kind of model; and the files
behind the page, with the command that makes a row again.
"""

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from parity.experiment import paths
from parity.experiment.options import KINDS
from parity.experiment.schema import EqualitySpec
from parity.metrics.estimates import estimate_of
from parity.report import tables
from parity.report.blocks import (
    ABSENT,
    Entry,
    Gallery,
    Section,
    Table,
    Terms,
    Words,
    bound,
    excerpt,
    grey,
    missing,
    pill,
    words,
)
from parity.report.collect import Gathered, effect_of_interest
from parity.report.figures import STYLE, Drawing, Named, label_points, look_of, plot
from parity.report.pictures import thumbnail
from parity.report.settings import records
from parity.report.shared_sections import TITLES
from parity.report.tables import Column, mark, mismatch, show, unmeasured
from parity.report.verdicts import failures

# Of each kind the figure of quality: its column of the records, its column of the summary, its name.
QUALITY = {
    "discrete": ("clip", "clip_score", "CLIP-score"),
    "anysubset": ("perplexity", "perplexity", "perplexity"),
    "continuous": ("right", "right", "share of right classes"),
}
BY_INCEPTION = ("fid", "fid", "FID")  # of published continuous models, whose classes no classifier of ours reads
SAME = "does it draw from plain decoding's distribution? Below: where this was tested"
MOVED = "a change"  # what a change whose interval leaves out 0 ends in
GPU = Path("gpu.json")  # of `python benchmarks/gpu.py`, where someone has run it
PROMPTS = 4  # whose pictures stand on the first screen
RANK = {"certified": 0, "consistent": 1, "inconclusive": 2, "lossy": 4}  # of verdicts; 3 where there is none


def verdicts(g: Gathered) -> Section:
    """The first screen: what was found in a few lines, pictures, then a table and a figure for each kind of model."""
    doubt = failures(g.equality)
    body: list[Any] = [*([Words(doubt, "warning")] if doubt else [])]
    data = points(g)
    gpu = predicted(g.files.around / GPU)
    for kind in g.kinds:
        own = [{**r, "change": change(g, kind, r)} for r in records(g.rows(kind)) if r["role"] == "method"]
        rows = sorted((r | {"gain": gain(g, kind, r)} for r in own), key=order)
        body += [Words(TITLES[kind], "heading")] if len(g.kinds) > 1 else []
        if not rows:
            body.append(Words("no method but plain decoding.", "empty"))
            continue
        if kind == "discrete":
            body += gallery(g, rows)
        body.append(Terms(answers(kind, rows, quality(g, kind)[2], gpu)))
        reading = CALLS if kind == "continuous" else READING
        body.append(show(rows, columns(kind, rows, quality(g, kind)[2], gpu), reading, mark, "front"))
        drawn, name = headline(g, kind, data), KINDS[kind]
        if drawn is not None:
            title, caption = f"{TITLE}: {TITLES[kind].lower()}", FIGURE if kind == g.kinds[0] else AGAIN
            body.append(plot(f"headline-{name}", title, drawn, caption))
    return Section("verdicts", "Verdicts", *body)


def gain(g: Gathered, kind: str, row: Mapping[str, Any]) -> float:
    """How many times fewer passes than plain decoding; of vectors, fewer calls one after another. NaN where unknown."""
    if kind == "continuous" and "depth" in row:
        base: Any = records(g.summary[g.summary["key"] == row["reference"]])[0].get("depth")
        return np.nan if missing(base) or missing(row["depth"]) else float(base / row["depth"])
    return np.nan if missing(row.get("nfe_ratio")) else 1 / float(row["nfe_ratio"])


def order(row: Mapping[str, Any]) -> tuple[int, float]:
    """By verdict, then by gain."""
    return rank(row), -row["gain"] if np.isfinite(row["gain"]) else np.inf


def rank(row: Mapping[str, Any]) -> int:
    return 3 if missing(row.get("value")) else RANK[row["value"].kind]


def answers(kind: str, rows: list[dict[str, Any]], name: str, gpu: Mapping[str, str]) -> list[tuple[str, str]]:
    """The questions that a reader comes with, answered for one kind of model. name: of the figure of quality."""
    exact, lossy = ([r for r in rows if rank(r) in ranks] for ranks in ((0, 1), (4,)))
    single = [r for r in exact if not missing(r.get("speedup_single"))]
    faster = max(single, key=lambda r: r["speedup_single"], default=None)
    fewest = max((r for r in exact if np.isfinite(r["gain"])), key=lambda r: r["gain"], default=None)
    moved = [r["label"] for r in rows if r["change"].detail.endswith(MOVED)]
    bounds = [r["tv_bound"] for r in exact if not missing(r.get("tv_bound"))]
    open_ = [r["label"] for r in rows if rank(r) in (2, 3)]
    item, count = ("text", "passes") if kind == "anysubset" else ("image", "passes")
    count = "calls one after another" if kind == "continuous" else count
    figures = [(r["label"], r["pill"].removeprefix("lossy").removeprefix(", ")) for r in lossy]
    listed = ", ".join(f"{label} ({figure})" if figure else label for label, figure in figures)
    certified, consistent = (", ".join(r["label"] for r in exact if rank(r) == k) for k in (0, 1))
    found = [("Certified lossless", certified or "none")]
    if consistent:
        found.append(("No difference found", f"{consistent}; too few sequences to certify"))
    found.append(("Lossy", listed or "none"))
    if open_:
        found.append(("Not decided", ", ".join(open_)))
    if bounds:
        small, _, long = words(exact[0].get("tested_models"), "small models").partition("; ")
        sure = f"total variation at most {bound(max(bounds)).text} with 95% confidence, on {small}"
        found.append(("How sure", sure + f"; on {long}, no difference found" * bool(long)))
        longest = re.findall(r"(\d+) tokens", words(exact[0].get("tested_models")))
        never = f"sequences of more than {longest[-1]} tokens, " if longest else ""
        found.append(("Not tested", f"{never}other models than the one decoded here and those small ones"))
    if fewest is not None:
        found.append((f"Fewest {count}", f"{fewest['label']}, {fewest['gain']:.1f} times fewer"))
    if faster is not None:
        ratio = faster["speedup_single"]
        best = f"{faster['label']}, {ratio:.2f} times the speed of plain decoding"
        found.append((f"Fastest for one {item} here", best if ratio > 1 else "plain decoding"))
    whole = max((r for r in exact if not missing(r.get("speedup"))), key=lambda r: r["speedup"], default=None)
    if whole is not None:
        best = f"{whole['label']}, {whole['speedup']:.2f} times the speed of plain decoding"
        found.append(("Fastest for a batch here", best if whole["speedup"] > 1 else "plain decoding"))
    change = f"{name} moved with {', '.join(moved)}" if moved else f"no change of {name} seen"
    found.append(("Quality", f"{change}; the intervals below say how small a change would be seen"))
    found.append(("On a GPU", "predicted below" if gpu else "not measured: speeds are of this machine"))
    return found


def gallery(g: Gathered, rows: list[dict[str, Any]]) -> list[Gallery]:
    """The first prompts' pictures by plain decoding, by the two best lossless methods that drew different ones, and by
    the lossy method with the fewest passes."""
    cells = g.cells("discrete")
    first = rows[0]
    plain = [r for r in records(g.rows("discrete")) if r["key"] == first["reference"]]
    chosen: list[tuple[Mapping[str, Any], np.ndarray]] = []
    drawn: set[bytes] = set()
    for r in [*plain, *(r for r in rows if rank(r) in (0, 1)), *(r for r in rows if rank(r) == 4)]:
        pixels = g.files.pixels(cells[r["label"]], PROMPTS)
        lossy = rank(r) == 4
        taken = sum(rank(c) == 4 for c, _ in chosen) if lossy else sum(rank(c) != 4 for c, _ in chosen)
        if r["model"] == first["model"] and pixels.tobytes() not in drawn and taken < (1 if lossy else 3):
            drawn.add(pixels.tobytes())
            chosen.append((r, pixels))
    captions = [excerpt(c) for c in g.files.features(cells[first["label"]])["captions"][:PROMPTS].tolist()]
    parts = []
    for shown, pixels in chosen:
        note = "plain decoding"
        if shown["role"] != "reference":
            note = f"{shown['pill']}; {shown['gain']:.1f} times fewer passes"
        parts.append((shown["label"], note, [thumbnail(p, 192) for p in pixels]))
    return [Gallery(parts, captions)]


def quality(g: Gathered, kind: str) -> tuple[str, str, str]:
    """The figure of quality of a kind's rows, as in QUALITY."""
    published = kind == "continuous" and "right" not in g.rows(kind)
    return BY_INCEPTION if published else QUALITY[kind]


def columns(kind: str, rows: list[dict[str, Any]], name: str, gpu: Mapping[str, str]) -> list[Column]:
    """name: of the figure of quality."""
    item = "text" if kind == "anysubset" else "image"
    batches = {r["batch"] for r in rows if not missing(r.get("batch"))}
    batch = f"Batch of {batches.pop():.0f}" if len(batches) == 1 else "Whole batch"
    calls = kind == "continuous"
    fewer = Column(
        "Calls in sequence" if calls else "Passes",
        fewer_calls,
        "calls of network and head that one image waits for, one after another; against plain decoding"
        if calls
        else "of the target, counted: those of plain decoding over the method's",
    )
    found = [
        Column("Method", claimed),
        Column("Verdict", found_where, SAME),
        fewer,
        Column(f"One {item}, here", tables.alone, "speed at batch 1 on this machine; plain decoding's is 1"),
        Column(f"{batch}, here", tables.speed, "speed of a whole batch on this machine; plain decoding's is 1"),
        Column(f"Change of {name}", lambda r: r["change"], "from plain decoding, with its 95% interval"),
    ]
    predicted_there = Column(
        "On a GPU",
        lambda r: Entry(gpu[r["method"]], "predicted") if r["method"] in gpu else ABSENT,
        "predicted from passes counted here and the time of a pass measured there",
    )
    return [*found, predicted_there] if gpu else found


def found_where(row: Mapping[str, Any]) -> Entry:
    """The verdict, and where it was reached, or why there is none."""
    return pill(row)._replace(detail=words(row.get("scope")) or words(row.get("note")))


def claimed(row: Mapping[str, Any]) -> Entry:
    """The label, and what the method's paper claims."""
    broken = ", which does not hold" * (mismatch(row) and row["claim"] != "lossy")
    return Entry(words(row.get("label"), "any"), f"claims to be {words(row.get('claim'), 'nothing')}{broken}", "name")


def fewer_calls(row: Mapping[str, Any]) -> Entry:
    """The gain, and the counts behind it."""
    ratio = row["gain"]
    if not np.isfinite(ratio):
        return ABSENT
    text = f"{ratio:.2f}× fewer" if ratio >= 1 else f"{1 / ratio:.2f}× more"
    depth = row.get("depth")
    return Entry(text, f"{100 / ratio:.0f}% of plain decoding's" if missing(depth) else f"{depth:,.0f} an image")


def change(g: Gathered, kind: str, row: Mapping[str, Any]) -> Entry:
    """The change of a method's quality from its reference's, by prompt where both have the same ones."""
    column, name, _ = quality(g, kind)
    margins = g.settings.equality
    own, base = (g.records[g.records["key"] == row[key]] for key in ("key", "reference"))
    if column in g.records and own[column].notna().any() and set(own["id"]) == set(base["id"]):
        pair = [pd.to_numeric(rows.set_index("id")[column].astype(float)) for rows in (own, base)]
        gap = (pair[0] - pair[1]).dropna()
        middle, reach = float(gap.mean()), 1.96 * float(gap.std()) / max(1, len(gap)) ** 0.5
        return judged(moved(middle, reach, len(gap)), name, row, reach, margins)
    references = g.summary[g.summary["key"] == row["reference"]]
    own_figure, other = estimate_of(row, name), estimate_of(records(references)[0], name)
    if own_figure.missing or other.missing or own_figure.error is None or other.error is None:
        return unmeasured(own_figure)
    reach = 1.96 * float(np.hypot(own_figure.error, other.error))
    return judged(moved(own_figure.value - other.value, reach, int(row["n"])), name, row, reach, margins)


def judged(entry: Entry, name: str, row: Mapping[str, Any], reach: float, margins: EqualitySpec) -> Entry:
    """A change in grey where an effect of interest to either side lies in its interval."""
    wanted = None if missing(row.get(name)) else effect_of_interest(name, row[name], margins)
    return grey(entry) if wanted is not None and not reach < wanted else entry


def moved(middle: float, reach: float, n: int) -> Entry:
    """A change with its interval, and whether the interval leaves out 0."""
    if not np.isfinite(reach):
        return Entry(f"{middle:+.3g}", f"n = {n}")
    digits = max(0, min(4, 1 - int(np.floor(np.log10(reach))))) if reach > 0 else 3
    low, high = middle - reach, middle + reach
    seen = "none seen" if low <= 0 <= high else MOVED
    return Entry(f"{middle:+.{digits}f}", f"{low:+.{digits}f} to {high:+.{digits}f}, n = {n}: {seen}")


def predicted(file: Path) -> dict[str, str]:
    """Of each decoder the seconds an image, predicted from `benchmarks/gpu.py`; {} where it was not run."""
    if not file.is_file():
        return {}
    found = json.loads(file.read_text())
    rows = found.get("decoders", []) if found.get("measured") else []
    predictions = [r for r in rows if r.get("seconds an image, predicted") is not None]
    first = predictions[0]["network"] if predictions else ""
    return {
        r["method"]: f"{r['seconds an image, predicted']:.2f} s an image of {first}"
        for r in sorted(predictions, key=lambda r: -r["seconds an image, predicted"])  # compiled or not: the faster
        if r["network"] == first
    }


# --- the figure


def points(g: Gathered) -> pd.DataFrame:
    """A row per method whose distance from the target's law the exact layer measured or bounded."""
    found = []
    for r in records(g.summary):
        value = r["value"]
        if r["role"] != "method" or missing(value) or missing(r.get("nfe_ratio")):
            continue
        measured = value.kind == "lossy"
        tv = value.estimate if measured else value.bound
        if tv is None:
            continue
        place = {name: r[name] for name in ("kind", "label", "method", "key", "tv_low", "tv_high")}
        found.append({**place, "fewer": 1 / r["nfe_ratio"], "bound": not measured, "tv": tv})
    return pd.DataFrame(found)


def headline(g: Gathered, kind: str, data: pd.DataFrame) -> Drawing | None:
    """Passes against distance from the target's law, the methods of one kind."""
    own = data[data["kind"] == kind] if len(data) else data
    if own.empty:
        return None
    look = look_of(g.rows(kind))
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(8.4, 3.1), layout="constrained")
        ax = figure.subplots()
        for r in records(own):
            colour, marker = look[r["label"]]
            if r["bound"]:
                ax.plot(r["fewer"], r["tv"], "v", color=colour, ms=7, mfc="white", mew=1.5)
            else:
                reach = [[max(0, r["tv"] - r["tv_low"])], [max(0, r["tv_high"] - r["tv"])]]
                ax.errorbar(r["fewer"], r["tv"], yerr=reach, fmt=marker, color=colour, ms=7, capsize=2)
        ax.axhline(g.settings.equality.margin_tv, color="#8a94a0", lw=1, ls="--")
        ax.set(xscale="log", yscale="log", ylim=(min(own["tv"].min() / 2, 0.005), 1.3))
        ax.set(xlabel="times fewer passes than plain decoding", ylabel="total variation\nfrom the target's law")
        ax.set_xlim(min(0.9, own["fewer"].min() / 1.1), max(2.0, own["fewer"].max() * 1.25))
        ax.xaxis.set_major_locator(FixedLocator([0.25, 0.5, 1, 1.5, 2, 3, 4, 6, 8, 16, 32]))
        ax.xaxis.set_minor_locator(NullLocator())
        ax.xaxis.set_major_formatter("{x:g}×")
        ax.yaxis.set_major_formatter("{x:g}")
        figure.draw_without_rendering()
        label_points(ax, [Named(x, y, name, look[first][0]) for x, y, name, first in together(own)])
    return figure, own


def together(own: pd.DataFrame) -> Iterator[tuple[float, float, str, str]]:
    """Place, name and first label of the points, those that lie on each other as one."""
    for _, rows in own.groupby([own["fewer"].round(2), own["tv"].round(4)], sort=False):
        label, more = rows["label"].iloc[0], len(rows) - 1
        name = f"{label} and {more} more" if more > 1 else ", ".join(rows["label"])
        yield rows["fewer"].iloc[0], rows["tv"].iloc[0], name, label


TITLE = "Passes against distance from the target's law"
FIGURE = (
    "Right: fewer passes. Down: nearer to the target's law. Filled marks are the total variation measured on the worst"
    " small model, with its 95% interval. Hollow marks: no difference was found, and it is at most this large. The"
    " broken line is the margin below which a decoder is certified."
)
AGAIN = "Marks as in the figure above."
READING = (
    "Lossless methods first, then by passes saved. Speeds are those of this machine. For a GPU compare passes: at small"
    " batches a pass over sixteen tokens costs it about as much as a pass over one, while a CPU pays for each token."
)
CALLS = (
    "Lossless methods first, then by calls in sequence saved: what an image waits for on a device that is not busy. On"
    " a CPU, and on a busy GPU, time follows the work of all calls together."
)


TABLES = ("summary.csv", "equality.csv", "self_tests.csv", "published.csv", "records.parquet")  # beside the page
WHAT = {
    "index.html": "the verdicts, and the way to the rest",
    "report.html": "the whole page in one file",
    "summary.csv": "a row per cell",
    "equality.csv": "a row per test of a method",
    "self_tests.csv": "a row per test of the tests",
    "published.csv": "the papers' figures beside ours",
    "records.parquet": "a row per image or text",
}
KEEP = ("--configfile", "--configfiles", "--config", "-C")  # what decides which cells an experiment has


def command(typed: str, target: str) -> str:
    """The command that makes a file, under the configuration of the one that was typed."""
    words, kept, on = shlex.split(typed), [], False
    for word in words:
        name = word.partition("=")[0]
        on = name in KEEP or (on and not word.startswith("-"))
        kept += [word] if on else []
    return shlex.join(["uv", "run", "snakemake", "--cores", "all", *kept, "--", target])


def files(g: Gathered) -> Section:
    """Links to every table, and the folder of every cell: by name, for a link breaks when the page is copied."""
    typed = g.environment.get("run", {}).get("command", "")
    cells = {c.key: c for c in g.files.cells}
    rows = []
    for key, label, method in zip(g.summary["key"], g.summary["label"], g.summary["method"], strict=True):
        folder = paths.folder(cells[key])
        again = command(typed, f"{folder}/metrics.json")
        rows.append({"label": label, "method": method, "folder": folder, "again": again})
    columns = [
        Column("Method", lambda r: Entry(r["label"], style="name")),
        Column("Cell", lambda r: Entry(r["folder"], style="file")),
        Column("Command that makes the row again", lambda r: Entry(r["again"], style="code")),
    ]
    table: Table = show(rows, columns, CELLS)
    return Section("files", "Files and commands", Terms(list(WHAT.items())), Words("Cells", "heading"), table)


CELLS = (
    "Samples, records and figures of each row, and the command that makes them from the project's folder. What is there"
    " and up to date is not made twice: delete the cell's folder first to have it made again."
)
