"""The front page: what was found in a few lines, pictures, a table and a figure for each kind of model; and the files
behind the page, with the command that makes a row again.
"""

import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from parity.experiment import paths
from parity.experiment.options import KINDS
from parity.metrics.estimates import Z, estimate_of
from parity.report import tables
from parity.report.blocks import Entry, Gallery, Section, Terms, Words, excerpt, missing, records, words
from parity.report.collect import Gathered, effect_of_interest
from parity.report.figures import Drawing, Named, look_of, name_points, plot
from parity.report.pictures import thumbnail
from parity.report.shared_sections import TITLES
from parity.report.tables import ABSENT, Column, Row, bound, grey, mismatch, pill, show, unmeasured
from parity.report.verdicts import failures

# Of each kind the figure of quality: its column of the records, its column of the summary, its name.
QUALITY = {
    "discrete": ("clip", "clip_score", "CLIP-score"),
    "anysubset": ("perplexity", "perplexity", "perplexity"),
    "continuous": ("right", "right", "share of right classes"),
}
BY_INCEPTION = ("fid", "fid", "FID")  # of published continuous models, whose classes no classifier of ours reads
MOVED = "a change"  # what the detail of a change ends in, if its interval leaves out 0
GPU = "gpu.json"  # of `python benchmarks/gpu.py`, where someone has run it
PROMPTS = 4  # whose pictures stand on the first screen
RANK = {"certified": 0, "consistent": 1, "inconclusive": 2, "lossy": 4}  # of verdicts; 3 where there is none


def verdicts(g: Gathered) -> Section:
    """The first screen: what was found in a few lines, pictures, then a table and a figure for each kind of model."""
    doubt = failures(g.equality)
    body: list[Any] = [*([Words(doubt, "warning")] if doubt else [])]
    gpu = predicted(g.files.local / GPU)
    for kind in g.kinds:
        own = [{**r, "change": change(g, kind, r)} for r in records(g.rows(kind)) if r["role"] == "method"]
        rows = sorted((r | {"gain": gain(g, kind, r)} for r in own), key=lambda r: (rank(r), -np.nan_to_num(r["gain"])))
        body += [Words(TITLES[kind], "heading")] if len(g.kinds) > 1 else []
        if not rows:
            body.append(Words("no method but plain decoding.", "empty"))
            continue
        if kind == "discrete":
            body.append(gallery(g, rows))
        name = quality(g, kind)[2]
        body.append(Terms(answers(kind, rows, name, gpu)))
        body.append(show(rows, columns(kind, rows, name, gpu), CALLS if kind == "continuous" else READING, "front"))
        drawn = headline(g, kind)
        if drawn is not None:
            title, caption = f"{TITLE}: {TITLES[kind].lower()}", AGAIN
            if kind == g.kinds[0]:
                caption = FIGURE.format(margin=g.settings.equality.margin_tv)
            body.append(plot(f"headline-{KINDS[kind]}", title, drawn, caption))
    return Section("verdicts", "Verdicts", FOUND, *body)


def gain(g: Gathered, kind: str, row: Row) -> float:
    """How many times fewer passes than plain decoding; of vectors, fewer calls one after another. NaN where unknown."""
    if kind == "continuous" and "depth" in row:
        base = reference(g, row).get("depth")
        return np.nan if missing(base) or missing(row["depth"]) else float(base / row["depth"])
    return np.nan if missing(row.get("nfe_ratio")) else 1 / float(row["nfe_ratio"])


def reference(g: Gathered, row: Row) -> dict[str, Any]:
    """The summary row of plain decoding that a row is compared with."""
    return records(g.summary[g.summary["key"] == row["reference"]])[0]


def rank(row: Row) -> int:
    return 3 if missing(row.get("value")) else RANK[row["value"].kind]


def most(rows: list[dict[str, Any]], name: str) -> dict[str, Any] | None:
    """The row with the largest figure of this name."""
    return max((r for r in rows if not missing(r.get(name))), key=lambda r: r[name], default=None)


def answers(kind: str, rows: list[dict[str, Any]], name: str, gpu: Mapping[str, str]) -> list[tuple[str, str]]:
    """The questions that a reader comes with, answered for one kind of model. name: of the figure of quality."""

    def listed(*ranks: int) -> str:
        return ", ".join(r["label"] for r in rows if rank(r) in ranks)

    exact = [r for r in rows if rank(r) in (0, 1)]
    lines = [("Certified lossless", listed(0) or "none")]
    if listed(1):
        lines.append(("No difference found", f"{listed(1)}; too few sequences to certify"))
    figures = [(r["label"], r["pill"].removeprefix("lossy").removeprefix(", ")) for r in rows if rank(r) == 4]
    lossy = ", ".join(f"{label} ({figure})" if figure else label for label, figure in figures)
    lines.append(("Lossy", lossy or "none"))
    if listed(2, 3):
        lines.append(("Not decided", listed(2, 3)))
    if bounded := most(exact, "tv_bound"):
        models = words(exact[0].get("tested_models"), "small models")
        small, _, long = models.partition("; ")
        sure = f"total variation at most {bound(bounded['tv_bound']).text} with 95% confidence, on {small}"
        sure += f"; on {long}, no difference found" * bool(long)
        lines.append(("How sure", f"{sure}; with the options that stand below each verdict"))
        longest = re.findall(r"(\d+) tokens", models)
        never = f"sequences of more than {longest[-1]} tokens, " if longest else ""
        lines.append(("Not tested", f"{never}other models than the one decoded here and those small ones"))
    if fewest := most(exact, "gain"):
        count = "calls one after another" if kind == "continuous" else "passes"
        lines.append((f"Fewest {count}", f"{fewest['label']}, {fewest['gain']:.1f} times fewer"))
    item = "text" if kind == "anysubset" else "image"
    for question, speed in ((f"one {item}", "speedup_single"), ("a batch", "speedup")):
        if best := most(exact, speed):
            answer = f"{best['label']}, {best[speed]:.2f} times the speed of plain decoding"
            answer = answer if best[speed] > 1 else "none is faster than plain decoding"
            if (lossy_one := most([r for r in rows if rank(r) == 4], speed)) and lossy_one[speed] > max(1, best[speed]):
                answer += f" (of the lossy ones: {lossy_one['label']}, {lossy_one[speed]:.2f} times)"
            lines.append((f"Fastest lossless, {question}", answer))
    moved = ", ".join(r["label"] for r in rows if r["change"].detail.endswith(MOVED))
    change = f"{name} moved with {moved}" if moved else f"no change of {name} seen"
    lines.append(("Quality", f"{change}; smaller changes than the intervals below would not show"))
    lines.append(("On a GPU", "predicted below" if gpu else "not measured: speeds are of this machine"))
    return lines


def gallery(g: Gathered, rows: list[dict[str, Any]]) -> Gallery:
    """The first prompts' pictures by plain decoding, by the two best lossless methods that drew different ones, and by
    the lossy method with the fewest passes."""
    cells, first, drawn = g.cells("discrete"), rows[0], set()
    left = {"lossless": 3, "lossy": 1}  # pictures to show; plain decoding is lossless
    parts = []
    for row in [reference(g, first), *(r for r in rows if rank(r) in (0, 1, 4))]:
        group = "lossy" if rank(row) == 4 else "lossless"
        pixels = g.files.pixels(cells[row["label"]], PROMPTS)
        if row["model"] == first["model"] and pixels.tobytes() not in drawn and left[group]:
            drawn.add(pixels.tobytes())
            left[group] -= 1
            plain = row["role"] == "reference"
            note = "plain decoding" if plain else f"{row['pill']}; {row['gain']:.1f} times fewer passes"
            parts.append((row["label"], note, [thumbnail(p, 192) for p in pixels]))
    captions = [excerpt(c) for c in g.files.features(cells[first["label"]])["captions"][:PROMPTS].tolist()]
    return Gallery(parts, captions)


# --- the table


def columns(kind: str, rows: list[dict[str, Any]], name: str, gpu: Mapping[str, str]) -> list[Column]:
    """name: of the figure of quality."""
    item = "text" if kind == "anysubset" else "image"
    batches = {r["batch"] for r in rows if not missing(r.get("batch"))}
    batch = f"Batch of {batches.pop():.0f}" if len(batches) == 1 else "Whole batch"
    heading, meaning = ("Calls in sequence", DEPTH) if kind == "continuous" else ("Passes", PASSES)
    there = {method: Entry(seconds, "predicted") for method, seconds in gpu.items()}
    on_gpu = Column("On a GPU", lambda r: there.get(r["method"], ABSENT), "passes counted here × time of a pass there")
    return [
        Column("Method", claimed),
        Column("Verdict", found_where, "does it draw from plain decoding's distribution? Below: where this was tested"),
        Column(heading, fewer_calls, meaning),
        Column(f"One {item}, here", tables.alone, "speed at batch 1 on this machine; plain decoding's is 1"),
        Column(f"{batch}, here", tables.speed, "speed of a whole batch on this machine; plain decoding's is 1"),
        Column(f"Change of {name}", lambda r: r["change"], "difference from plain decoding, with its 95% interval"),
        *([on_gpu] if gpu else []),
    ]


def found_where(row: Row) -> Entry:
    """The verdict, and where it was reached, or why there is none."""
    return pill(row)._replace(detail=words(row.get("scope")) or words(row.get("note")))


def claimed(row: Row) -> Entry:
    """The label, and what the method's paper claims."""
    broken = ", which does not hold" * (mismatch(row) and row["claim"] != "lossy")
    return Entry(words(row.get("label"), "any"), f"claims to be {words(row.get('claim'), 'nothing')}{broken}", "name")


def fewer_calls(row: Row) -> Entry:
    """The gain, and the counts behind it."""
    ratio = row["gain"]
    if not np.isfinite(ratio):
        return ABSENT
    text = f"{ratio:.2f}× fewer" if ratio >= 1 else f"{1 / ratio:.2f}× more"
    depth = row.get("depth")
    return Entry(text, f"{100 / ratio:.0f}% of plain decoding's" if missing(depth) else f"{depth:,.0f} an image")


def quality(g: Gathered, kind: str) -> tuple[str, str, str]:
    """The figure of quality of a kind's rows, as in QUALITY."""
    published = kind == "continuous" and "right" not in g.rows(kind)
    return BY_INCEPTION if published else QUALITY[kind]


def change(g: Gathered, kind: str, row: Row) -> Entry:
    """The change of a method's quality from its reference's with its 95% interval, by prompt where both have the same
    ones; in grey if the interval holds an effect of interest to either side."""
    column, name, _ = quality(g, kind)
    own, base = (g.records[g.records["key"] == row[key]].set_index("id") for key in ("key", "reference"))
    if column in g.records and own[column].notna().any() and set(own.index) == set(base.index):
        gap = (own[column].astype(float) - base[column].astype(float)).dropna()
        middle, error, n = float(gap.mean()), float(gap.std()) / max(1, len(gap)) ** 0.5, len(gap)
    else:
        figure, other = estimate_of(row, name), estimate_of(reference(g, row), name)
        if figure.missing or other.missing or figure.error is None or other.error is None:
            return unmeasured(figure)
        middle, error, n = figure.value - other.value, float(np.hypot(figure.error, other.error)), int(row["n"])
    reach = Z * error
    wanted = None if missing(row.get(name)) else effect_of_interest(name, row[name], g.settings.equality)
    entry = describe_change(middle, reach, n)
    return grey(entry) if wanted is not None and not reach < wanted else entry


def describe_change(middle: float, reach: float, n: int) -> Entry:
    """A change with its interval, and whether the interval leaves out 0."""
    if not np.isfinite(reach):
        return Entry(f"{middle:+.3g}", f"n = {n}")
    digits = max(0, min(4, 1 - int(np.floor(np.log10(reach))))) if reach > 0 else 3
    low, high = middle - reach, middle + reach
    outcome = "none seen" if low <= 0 <= high else MOVED
    return Entry(f"{middle:+.{digits}f}", f"{low:+.{digits}f} to {high:+.{digits}f}, n = {n}: {outcome}")


def predicted(file: Path) -> dict[str, str]:
    """Of each decoder the seconds an image, predicted by `benchmarks/gpu.py`; {} where it was not run."""
    content, seconds = json.loads(file.read_text()) if file.is_file() else {}, "seconds an image, predicted"
    rows = [r for r in content.get("decoders", []) if content.get("measured") and r.get(seconds) is not None]
    rows = [r for r in rows if r["network"] == rows[0]["network"]]
    fastest_last = sorted(rows, key=lambda r: -r[seconds])  # compiled or not: the faster replaces the slower
    return {r["method"]: f"{r[seconds]:.2f} s an image of {r['network']}" for r in fastest_last}


# --- the figure


def points(g: Gathered, kind: str) -> pd.DataFrame:
    """A row per method whose distance from the target's law the exact layer measured or bounded."""
    rows = []
    for r in records(g.summary):
        if r["kind"] != kind or r["role"] != "method" or missing(r["value"]) or not np.isfinite(gain(g, kind, r)):
            continue
        lossy = r["value"].kind == "lossy"
        tv = r["value"].estimate if lossy else r["value"].bound
        place = {name: r[name] for name in ("kind", "label", "method", "key", "tv_low", "tv_high")}
        rows += [{**place, "fewer": gain(g, kind, r), "bound": not lossy, "tv": tv}] if tv is not None else []
    return pd.DataFrame(rows)


def headline(g: Gathered, kind: str) -> Drawing | None:
    """Passes against distance from the target's law, the methods of one kind."""
    own, look = points(g, kind), look_of(g.rows(kind))
    if own.empty:
        return None
    figure = Figure(figsize=(8.4, 3.4), layout="constrained")
    ax = figure.subplots()
    for r in records(own):
        colour, marker = look[r["label"]]
        reach = None if r["bound"] else [[max(0, r["tv"] - r["tv_low"])], [max(0, r["tv_high"] - r["tv"])]]
        marks: dict[str, Any] = {"fmt": "v", "mfc": "white", "mew": 1.5} if r["bound"] else {"fmt": marker}
        ax.errorbar(r["fewer"], r["tv"], reach, color=colour, ms=7, capsize=2, label=r["label"], **marks)
    ax.axhline(g.settings.equality.margin_tv, color="#8a94a0", lw=1, ls="--")
    ax.set(xscale="log", yscale="log", ylim=(min(own["tv"].min() / 2, 0.005), 1.3))
    count = "calls in sequence" if kind == "continuous" else "passes"
    ax.set(xlabel=f"times fewer {count} than plain decoding", ylabel="total variation\nfrom the target's law")
    ax.set_xlim(min(0.9, own["fewer"].min() / 1.1), max(2.0, own["fewer"].max() * 1.25))
    ax.xaxis.set_major_locator(FixedLocator([0.25, 0.5, 1, 1.5, 2, 3, 4, 6, 8, 16, 32]))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter("{x:g}×")
    ax.yaxis.set_major_formatter("{x:g}")
    names = []  # one for all marks in one place
    for _, rows in own.groupby([own["fewer"].round(2), own["tv"].round(4)], sort=False):
        labels = rows["label"].tolist()
        name = f"{labels[0]} and {len(labels) - 1} more" if len(labels) > 2 else ", ".join(labels)
        names.append(Named(rows["fewer"].iloc[0], rows["tv"].iloc[0], name, look[labels[0]][0]))
    name_points(figure, {ax: names})
    return figure, own


FOUND = "For each method: does it keep plain decoding's distribution, how many passes does it save, what does it cost?"
TITLE = "Passes against distance from the target's law"
FIGURE = (
    "Right: fewer passes. Down: nearer to the target's law. Filled marks are the total variation measured on the worst"
    " small model, with its 95% interval. A hollow mark is an upper bound: no difference was found. Below the broken"
    " line, the margin {margin:g}, a decoder is certified; whether one is lossy is decided by all tests together."
)
AGAIN = "Marks as in the figure above."
READING = (
    "Lossless methods first, then by passes saved. Speeds are those of this machine. On a GPU with few"
    " images a pass over sixteen tokens takes about as long as one over a single token, so compare passes there. On a"
    " CPU time grows with the tokens."
)
CALLS = (
    "Lossless methods first, then by calls in sequence saved. These set the time of one image on an idle GPU. On a CPU,"
    " and on a busy GPU, time follows the work of all calls together."
)
PASSES = "passes of the target, counted: plain decoding's divided by the method's"
DEPTH = "calls of network and head that one image waits for, one after another; compared with plain decoding"


# --- files


TABLES = ("summary.csv", "equality.csv", "self_tests.csv", "published.csv", "records.parquet")  # beside the page
WHAT = {
    "index.html": "the verdicts, and links to the rest",
    "report.html": "the whole page in one file",
    "summary.csv": "a row per cell",
    "equality.csv": "a row per test of a method",
    "self_tests.csv": "a row per test of the tests",
    "published.csv": "the papers' figures beside ours",
    "records.parquet": "a row per image or text",
}
KEEP = ("--configfile", "--configfiles", "--config", "-C")  # flags that decide which cells an experiment has


def command(typed: str, target: str) -> str:
    """The command that makes a file, under the configuration of the command that was typed."""
    kept, on = [], False
    for word in shlex.split(typed):
        on = word.partition("=")[0] in KEEP or (on and not word.startswith("-"))
        kept += [word] if on else []
    return shlex.join(["uv", "run", "snakemake", "--cores", "all", *kept, "--", target])


def files(g: Gathered) -> Section:
    """Links to every table, and the folder of every cell: by name, for a link breaks when the page is copied."""
    typed = g.environment.get("run", {}).get("command", "")
    folders = {c.key: paths.folder(c) for c in g.files.cells}
    columns = [
        Column("Method", lambda r: Entry(r["label"], style="name")),
        Column("Cell", lambda r: Entry(folders[r["key"]], style="file")),
        Column(
            "Command that makes the row again",
            lambda r: Entry(command(typed, f"{folders[r['key']]}/metrics.json"), style="code"),
        ),
    ]
    table = show(records(g.summary[["label", "key", "method"]]), columns, CELLS)
    return Section("files", "Files and commands", BEHIND, Terms(list(WHAT.items())), Words("Cells", "heading"), table)


BEHIND = "The data behind this page, and for each row the command that makes it again."
CELLS = (
    "The samples, records and figures of each row, and the command that makes them, to be run in the project's folder."
    " Up-to-date files are not made twice: to make a cell again, delete its folder first."
)
