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
from parity_certify.result_rows import ALPHA, describe_confidence

from parity.experiment import paths
from parity.experiment.module_metadata import outline
from parity.experiment.options import KINDS, declaration, options
from parity.experiment.study import metrics
from parity.metrics.estimates import PERCENT, Estimate, Z, estimate_of
from parity.report import tables
from parity.report.anysubset import TASKS, describe_task
from parity.report.blocks import Entry, Gallery, Section, Terms, Words, excerpt, missing, pairs, records, words, written
from parity.report.collect import QUALITY as EVERY_FIGURE
from parity.report.collect import Gathered, critical, effect_of_interest, known_changes, rank
from parity.report.figures import gains, plot
from parity.report.pictures import thumbnail
from parity.report.settings import NAMED, explain, read, varying
from parity.report.shared_sections import TITLES, relabelled
from parity.report.tables import (
    ABSENT,
    Column,
    Row,
    bound,
    decimals_for,
    grey,
    mismatch,
    number,
    origin_of,
    pill,
    show,
    state_claim,
    unmeasured,
)
from parity.report.verdicts import failures

# Of each kind the figure of quality whose change is shown of every method. Of published continuous models, whose
# classes no classifier of ours reads, FID.
QUALITY = {"discrete": "clip_score", "anysubset": "perplexity", "continuous": "right"}
SAME = ("kid", "logp_mean")  # figures that say what FID and perplexity do
FIGURES = tuple(name for name in EVERY_FIGURE if name not in SAME)
ALONE = "a single prompt has no error"  # why a change is not known whose figures are
GPU = "gpu.json"  # of `python benchmarks/gpu.py`, where someone has run it
PROMPTS = 4  # whose pictures stand on the first screen


def verdicts(g: Gathered) -> Section:
    """The first screen: what was found in a few lines, pictures, then a table and a figure for each kind of model."""
    doubt = failures(g.equality)
    body: list[Any] = [*([Words(doubt, "warning")] if doubt else [])]
    gpu = predicted(g.files.local / GPU)
    for kind in g.kinds:
        rows = methods(g, kind)
        body += [Words(TITLES[kind], "heading")] if len(g.kinds) > 1 else []
        if not rows:
            body.append(Words("no method but plain decoding.", "empty"))
            continue
        if kind == "discrete":
            body.append(gallery(g, rows))
        body.append(Terms(answers(g, kind, rows, gpu)))
        body.append(show(rows, columns(g, kind, rows, gpu), CALLS if kind == "continuous" else READING, "front"))
        body += [NAMED_OPTIONS, Terms(named)] if (named := option_meanings(kind, rows)) else []
        count = "calls one after another" if kind == "continuous" else "passes"
        caption = BARS if kind == g.kinds[0] else "Bars as above."
        body.append(plot(f"headline-{KINDS[kind]}", f"Times fewer {count}", gains(pd.DataFrame(rows), count), caption))
    return Section("verdicts", "Verdicts", FOUND, *body)


def methods(g: Gathered, kind: str) -> list[dict[str, Any]]:
    """A kind's rows but plain decoding's, in the order of the tables. `name`: the label without the task of a text."""
    every = g.rows(kind)
    parts = every.groupby(["task", "settings"], sort=False) if kind == "anysubset" else [("", every)]
    names = {
        r["key"]: r["label"] for _, own in parts for r in (relabelled(own) if kind == "anysubset" else records(own))
    }
    return [{**r, "name": names[r["key"]]} for r in records(every) if r["role"] == "method"]


def reference(g: Gathered, row: Row) -> dict[str, Any]:
    """The summary row of plain decoding that a row is compared with."""
    return records(g.summary[g.summary["key"] == row["reference"]])[0]


def most(rows: list[dict[str, Any]], name: str) -> dict[str, Any] | None:
    """The row with the largest figure of this name."""
    return max((r for r in rows if not missing(r.get(name))), key=lambda r: r[name], default=None)


def answers(g: Gathered, kind: str, rows: list[dict[str, Any]], gpu: Mapping[str, str]) -> list[tuple[str, str]]:
    """The questions that a reader comes with, answered for one kind of model."""

    def listed(*ranks: int) -> str:
        return ", ".join(dict.fromkeys(r["name"] for r in rows if rank(r) in ranks))

    exact = [r for r in rows if rank(r) in (0, 1)]
    lines = [("Certified lossless", listed(0) or "none")]
    if listed(1):
        lines.append(("No difference found", f"{listed(1)}; too few sequences to certify"))
    figures = {r["name"]: r["pill"].removeprefix("lossy").removeprefix(" ") for r in rows if rank(r) == 4}
    lossy = ", ".join(f"{name} ({figure})" if figure else name for name, figure in figures.items())
    lines.append(("Lossy", lossy or "none"))
    if listed(2, 3):
        lines.append(("Not decided", listed(2, 3)))
    if bounded := most(exact, "tv_bound"):
        models = words(exact[0].get("tested_models"), "small models")
        small, _, long = models.partition("; ")
        sure = f"total variation (0: the same law, 1: another) at most {bound(bounded['tv_bound']).text}"
        sure += f" with {describe_confidence(g.settings.equality.alpha)} confidence, on {small} a sequence and at the"
        sure += " small options that the table names"
        sure += f"; at the run's own no difference found on {long}" * bool(long)
        lines.append(("How sure", sure + ", nor on the decoded model, token by token" * teacher_forced(g, exact)))
        longest = re.findall(r"(\d+) tokens", models)
        never = f"sequences of more than {longest[-1]} tokens; " if longest else ""
        lines.append(("Not tested", f"{never}the joint law of the decoded model, which cannot be listed; other models"))
    if fewest := most(exact, "gain"):
        count = "calls one after another" if kind == "continuous" else "passes"
        lines.append((f"Fewest {count}", f"{fewest['label']}, {fewest['gain']:.1f} times fewer"))
    item = "text" if kind == "anysubset" else "image"
    for question, speed in ((f"one {item}", "speedup_single"), ("a batch", "speedup")):
        if best := most(exact, speed):
            answer = f"{best['label']}, {best[speed]:.2f} times the speed of plain decoding"
            answer = answer if best[speed] > 1 else "none is faster than plain decoding"
            if (other := most([r for r in rows if rank(r) > 1], speed)) and other[speed] > max(1, best[speed]):
                answer += f" (of the others: {other['label']}, {other[speed]:.2f} times)"
            if speed == "speedup_single":
                answer += f"; the median of {best['singles']:.0f}" if best["singles"] > 1 else f"; timed on one {item}"
            lines.append((f"Fastest lossless, {question}", answer))
    if level := describe_level(g.settings.equality.alpha, rows):
        lines.append(("Level of the tests", level))
    lines.append(("Quality", quality(g, kind, rows)))
    lines.append(("On a GPU", "predicted below" if gpu else "not measured: speeds are of this machine"))
    return lines


def describe_level(alpha: float, rows: list[dict[str, Any]]) -> str:
    """What another level of tests than the usual one means for their power; "" at the usual level."""
    if alpha == ALPHA:
        return ""
    less = "fewer correct methods are rejected, and a fault must be larger to be found"
    more = "more correct methods are rejected, and smaller faults are found"
    found = most(rows, "minimum_detectable_effect")
    size = (
        f": a total variation of {bound(found['minimum_detectable_effect']).text} four times in five" if found else ""
    )
    return f"{alpha:g}, where {ALPHA:g} is usual: {less if alpha < ALPHA else more}{size}"


def teacher_forced(g: Gathered, rows: list[dict[str, Any]]) -> bool:
    """Whether all of these were compared on the model they decoded, each token given those before it."""
    compared = set(g.equality.loc[g.equality["layer"] == "teacher-forced", "key"])
    return {r["key"] for r in rows} <= compared


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


def columns(g: Gathered, kind: str, rows: list[dict[str, Any]], gpu: Mapping[str, str]) -> list[Column]:
    item = "text" if kind == "anysubset" else "image"
    batches = {r["batch"] for r in rows if not missing(r.get("batch"))}
    batch = f"Speed of a batch of {batches.pop():.0f}" if len(batches) == 1 else "Speed of a batch"
    heading, meaning = ("Calls in sequence", DEPTH) if kind == "continuous" else ("Passes", PASSES)
    there = {method: Entry(seconds, "predicted") for method, seconds in gpu.items()}
    on_gpu = Column("On a GPU", lambda r: there.get(r["method"], ABSENT), "passes counted here × time of a pass there")
    return [
        Column("Method", claimed),
        Column("Verdict", found_where, "does it draw from plain decoding's distribution? Below: where this was tested"),
        *([Column("Task", task)] if kind == "anysubset" else []),
        Column(heading, fewer_calls, meaning),
        Column(
            f"Speed of one {item}",
            tables.alone,
            "at batch 1 on this machine, the median of the first of each job; plain decoding's is 1",
        ),
        Column(batch, tables.speed, "on this machine; plain decoding's is 1"),
        Column(
            "Quality",
            lambda r: change(g, kind, r),
            CHANGE.format(percent=PERCENT, name=name_of(kind, main_figure(g, kind))),
        ),
        *([on_gpu] if gpu else []),
    ]


def task(row: Row) -> Entry:
    return Entry(TASKS[row["task"]], describe_task(row["task"], read(row["settings"])))


def found_where(row: Row) -> Entry:
    """The verdict, and where it was reached, or why there is none."""
    return pill(row)._replace(detail=words(row.get("scope")) or words(row.get("note")))


def claimed(row: Row) -> Entry:
    """The name with its mark, what is claimed and by whom, and on hovering what the method is."""
    broken = ", which does not hold" * (mismatch(row) and row["claim"] != "lossy")
    about = describe(row["kind"], row["method"])
    return Entry(words(row.get("name"), "any"), state_claim(row) + broken, "name", about, origin_of(row))


def describe(kind: str, method: str) -> str:
    """What a decoder is, and where it is from, as its module says."""
    return f"{outline(f'decoders/{kind}', method).doc.splitlines()[0]} {declaration(kind, method).SOURCE}".strip()


def option_meanings(kind: str, rows: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """The options in the methods' names: what their docstrings say of them, and what holds where none is named."""
    own: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        own.setdefault(row["method"], []).append(read(row["options"]))
    lines = []
    for method, variants in own.items():
        default, meanings, names = options(kind, method, {}), explain(kind, method)[1], varying(variants)
        for label, chosen in NAMED.items():
            if any(chosen.items() <= one.items() for one in variants):
                lines.append((f"{method} {label}", f"with the options of the released code: {pairs(chosen)}"))
                names = [name for name in names if name not in chosen]
        for name in names:
            meaning = meanings.get(name, "").replace("`", "").rstrip(".")
            lines.append((f"{method} {name}", f"{meaning}. Default: {written(default[name])}"))
    return lines


def fewer_calls(row: Row) -> Entry:
    """The gain, and the counts behind it."""
    ratio = row["gain"]
    if not np.isfinite(ratio):
        return ABSENT
    text = f"{ratio:.2f}× fewer" if ratio >= 1 else f"{1 / ratio:.2f}× more"
    depth = row.get("depth")
    return Entry(text, f"{100 / ratio:.0f}% of plain decoding's" if missing(depth) else f"{depth:,.0f} an image")


def main_figure(g: Gathered, kind: str) -> str:
    return QUALITY[kind] if QUALITY[kind] in g.rows(kind) else "fid" if kind == "continuous" else QUALITY[kind]


def name_of(kind: str, figure: str) -> str:
    return next((own[figure][0] for own in metrics(kind).values() if figure in own), figure)


def moves(g: Gathered, row: Row) -> list[str]:
    """The figures of quality that moved, from plain decoding's: "perplexity 4.1 → 17.6"."""
    base, result = reference(g, row), []
    for name in (n for n in words(row.get("moved")).split() if n not in SAME):
        digits = max(0, decimals_for(row[f"{name}_change_se"] or 1) - 1)
        result.append(f"{name_of(row['kind'], name)} {base[name]:.{digits}f} → {row[name]:.{digits}f}")
    return result


def quality(g: Gathered, kind: str, rows: list[dict[str, Any]]) -> str:
    """Which methods move which figures, which figures were compared, how small a change of the first would not show,
    and which figures were not measured and why."""
    lines = [f"{r['label']}: {', '.join(moved)}" for r in rows if (moved := moves(g, r))]
    changes = [known_changes(r) for r in rows]
    compared = [name_of(kind, name) for name in FIGURES if any(name in known for known in changes)]
    if compared:
        name, reach = main_figure(g, kind), critical(rows, g.settings.equality.alpha)
        error = max((known[name][1] for known in changes if name in known), default=0.0)
        base = reference(g, rows[0]).get(name)
        of = f" (of {number(base, 2)})" if not missing(base) else ""
        small = (
            f"; a change of {name_of(kind, name)} below {number(reach * error, 1)}{of} might not show" if error else ""
        )
        lines.append(f"no {'other ' * bool(lines)}change seen in {', '.join(compared)}{small}")
    if reasons := find_unmeasured(kind, rows):
        lines.append(f"not measured: {'; '.join(reasons)}")
    alone = [name_of(kind, name) for name in FIGURES if any(not estimate_of(row, name).missing for row in rows)]
    if alone and not compared:
        lines.append(f"not compared: {', '.join(alone)} ({ALONE})")
    return "; ".join(lines or ["not measured"])


def find_unmeasured(kind: str, rows: list[dict[str, Any]]) -> list[str]:
    """Figures of quality that no row has, by the reason that metrics recorded: "FID, recall (no network: ...)"."""
    names: dict[str, list[str]] = {}
    for name in FIGURES:
        figures = [estimate_of(row, name) for row in rows]
        if all(figure.missing for figure in figures) and (why := next((f.why for f in figures if f.why), "")):
            names.setdefault(why, []).append(name_of(kind, name))
    return [f"{', '.join(figures)} ({why})" for why, figures in names.items()]


def change(g: Gathered, kind: str, row: Row) -> Entry:
    """What moved, and the change of the main figure with its interval; in grey where nothing moved and the interval
    holds an effect of interest to either side."""
    name, moved = main_figure(g, kind), moves(g, row)
    if name not in known_changes(row):
        figure = estimate_of(row, name)
        lacking = unmeasured(figure if figure.missing else Estimate(why=f"not compared: {ALONE}"))
        return lacking._replace(**{"text": ", ".join(moved)} if moved else {})
    value, error = known_changes(row)[name]
    effect = None if missing(row.get(name)) else effect_of_interest(name, row[name], g.settings.equality)
    reach, digits = Z * error, decimals_for(error) if error > 0 else 3
    ends = f"{value - reach:+.{digits}f} to {value + reach:+.{digits}f}"
    detail = f"{name_of(kind, name)} {value:+.{digits}f} ({ends})"
    entry = Entry(", ".join(moved) or "no change seen", detail, "text")
    return grey(entry) if not moved and effect is not None and not reach < effect else entry


def predicted(file: Path) -> dict[str, str]:
    """Of each decoder the seconds an image, predicted by `benchmarks/gpu.py`; {} where it was not run."""
    content, seconds = json.loads(file.read_text()) if file.is_file() else {}, "seconds an image, predicted"
    rows = [r for r in content.get("decoders", []) if content.get("measured") and r.get(seconds) is not None]
    rows = [r for r in rows if r["network"] == rows[0]["network"]]
    fastest_last = sorted(rows, key=lambda r: -r[seconds])  # compiled or not: the faster replaces the slower
    return {r["method"]: f"{r[seconds]:.2f} s an image of {r['network']}" for r in fastest_last}


FOUND = "For each method: does it keep plain decoding's distribution, how many passes does it save, what does it cost?"
NAMED_OPTIONS = "Options in the names:"
BARS = (
    f"Bars: plain decoding's count divided by the method's, with its {PERCENT} interval. Beside them the total"
    " variation from the model's law on the worst small model, at most (TV ≤) or as measured: 0 is the same law, 1"
    " another altogether. It tells whether the law is kept; what a change of it costs is measured as quality."
)
CHANGE = (
    "figures that differ from plain decoding's beyond chance, all comparisons of this table counted; below, the change"
    " of {name} with its own {percent} interval"
)
READING = (
    "Lossless methods first, then by passes saved. Speeds are those of this machine. On a GPU that is not busy a pass"
    " over sixteen tokens takes about as long as one over a single token, so compare passes there. On a CPU time grows"
    " with the tokens."
)
CALLS = (
    "Lossless methods first, then by calls in sequence saved. Calls in sequence bound the time of one image on any"
    " machine. On a CPU time follows the work of all calls together."
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
