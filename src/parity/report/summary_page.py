"""The front page: what was found in a few lines, images, a table and a figure for each kind of model; and the files
after the page, with the command that makes a row again."""

import shlex
from typing import Any

import pandas as pd

from parity.experiment import paths
from parity.experiment.made import is_made
from parity.experiment.options import KINDS, options
from parity.metrics.estimates import PERCENT
from parity.report import cost
from parity.report.answers import answer_questions, find_largest
from parity.report.blocks import (
    Entry,
    Gallery,
    Section,
    Sides,
    Terms,
    Words,
    cut_caption,
    format_setting,
    format_settings,
    is_missing,
    list_records,
)
from parity.report.collect import Gathered, follows_plain, group_same, name_group
from parity.report.continuous import describe_baseline
from parity.report.figures import draw_gain_bars, draw_speed, draw_speed_by_distance, plot
from parity.report.front_table import ABOUT, IMAGE_COLUMNS, make_columns, show_budgets
from parity.report.images import make_thumbnail
from parity.report.order import order_images, rank_verdict
from parity.report.settings import NAMED, SummaryRow, explain_decoder, find_varying, parse_settings
from parity.report.shared_sections import label_rows
from parity.report.tables import BUSY, Column, count_cores, format_number, show_table

PROMPTS = 4  # prompts whose images are on the first screen


def make_verdicts_section(g: Gathered) -> Section:
    body: list[Any] = []
    for kind in g.kinds:
        rows = order_methods(g, kind)
        body += [Words(ABOUT[kind].title, "heading")] if len(g.kinds) > 1 else []
        body += describe_baseline(g) if kind == "continuous" else []
        if not rows:
            body.append(Words("no method but plain decoding.", "empty"))
        elif kind == "discrete":
            body += show_images(g, rows)
        else:
            count, caption = ABOUT[kind].saved, CALLS if kind == "continuous" else READING
            body.append(show_table(rows, make_columns(g, kind, rows), caption, "front"))
            bars = draw_gain_bars(pd.DataFrame(rows), count)
            body.append(plot(f"headline-{KINDS[kind]}", f"Times fewer {count}", bars, BARS))
            body.append(Terms(answer_questions(g, kind, rows)))
        if meanings := explain_options(kind, rows):
            body += [NAMED_OPTIONS, Terms(meanings)]
    return Section("verdicts", "Verdicts", FOUND, *body)


def show_images(g: Gathered, rows: list[dict[str, Any]]) -> list[Any]:
    """Make the blocks on images: speed against distance beside images, the tables, figures and answers."""
    all_rows = g.select_rows("discrete")
    first = all_rows[(all_rows["model"] == rows[0]["model"]) & (all_rows["sampling"] == rows[0]["sampling"])]
    plain = next(row for row in order_images(all_rows) if row["key"] == rows[0]["reference"])
    table = show_table([plain, *rows], IMAGE_COLUMNS, "", "front")
    widest = find_largest(rows, "nodes_per_pass")
    budget = f"At most {widest['nodes_per_pass']:.0f} tokens a pass." if widest else ""
    caption = " ".join(filter(None, [RANKED, budget, describe_load(rows)]))
    answers = answer_questions(g, "discrete", rows)
    above = [pair for question in ABOVE for pair in answers if pair[0] == question]
    by_distance = plot("speed-by-distance", "Speed against distance", draw_speed_by_distance(first), BY_DISTANCE)
    body: list[Any] = [Terms(above)] if above else []
    body += [Sides([[by_distance], [make_gallery(g, rows), *describe_same(rows)]]), *show_budgets(first)]
    body.append(table._replace(caption=caption))
    by_passes = plot("speed-by-passes", "Speed against passes", draw_speed(first, "nfe"), BY_PASSES)
    machines = cost.list_machines(first, g.files.local / cost.GPU)
    drawn = cost.draw_gains(first, machines)
    by_cost = plot("gain-by-cost", "Predicted gain by the cost of a pass", drawn, cost.BY_COST)
    body.append(Sides([[by_passes], [by_cost]]))
    return [*body, *cost.show_fastest(first), Terms([pair for pair in answers if pair not in above])]


def order_methods(g: Gathered, kind: str) -> list[dict[str, Any]]:
    """List a kind's methods as summary rows in the order of its table, without plain decoding. Adds `name`: the label
    without the task of a text."""
    all_rows = g.select_rows(kind)
    if kind == "discrete":
        return [row for row in order_images(all_rows) if row["role"] == "method"]
    groups = all_rows.groupby(["task", "settings"], sort=False) if kind == "anysubset" else ()
    names = {r["key"]: r["label"] for _, group in groups for r in label_rows(group)}
    methods = [r for r in list_records(all_rows) if r["role"] == "method"]
    return [{**r, "name": names.get(r["key"], r["label"])} for r in methods]


def describe_load(rows: list[dict[str, Any]]) -> str:
    """Describe the machine's load while speeds were measured, and whether that is busy; "" where it is not known."""
    loads = [r["load"] for r in rows if not is_missing(r.get("load"))]
    cores = max((count_cores(r) for r in rows), default=0)
    if not loads or not cores:
        return ""
    low, high = format_number(min(loads), 2), format_number(max(loads), 2)
    state = "busy" if max(loads) > BUSY * cores else "not busy"
    return f"Load while timing: {low if low == high else f'{low} to {high}'} on {cores} cores ({state})."


def make_gallery(g: Gathered, rows: list[dict[str, Any]]) -> Gallery:
    """Make the gallery of the first prompts' images: plain decoding with each seed, the best lossless method of other
    images, and the lossy one of most gain."""
    cells = g.map_cells("discrete")
    first = rows[0]
    like_first = [r for r in list_records(g.select_rows("discrete")) if is_like(r, first)]
    plain = [r for r in like_first if r["role"] in ("reference", "control")]
    groups = group_same([r for r in rows if is_like(r, first)])
    shared = [group for group in groups if follows_plain(group)]
    other_groups = [group for group in groups if group not in shared]
    chosen = [*([r] for r in plain), *shared[:1], *[o for o in other_groups if rank_verdict(o[0]) in (0, 1)][:1]]
    chosen += [o for o in other_groups if rank_verdict(o[0]) == 4][:1]
    strips = []
    for group in chosen:
        row = group[0]
        label, note = f"plain decoding, seed {row['seed']:.0f}", ""
        if row["role"] == "method" and follows_plain(group):
            note = f"as drawn by {name_group(group)}"
        elif row["role"] == "method":
            label, note = name_group(group), row["pill"]
        pixels = g.files.read_pixels(cells[row["label"]], PROMPTS)
        strips.append((label, note, [make_thumbnail(p, 128) for p in pixels]))
    captions = [cut_caption(c) for c in g.files.read_features(cells[first["label"]])["captions"][:PROMPTS].tolist()]
    return Gallery(strips, captions)


def is_like(row: SummaryRow, base: SummaryRow) -> bool:
    return (row["model"], row["sampling"]) == (base["model"], base["sampling"])


def describe_same(rows: list[dict[str, Any]]) -> list[str]:
    """Write a sentence for each group of methods that drew the same images, with the reason if it is shared noise."""
    lines = []
    for group in (group for group in group_same(rows) if len(group) > 1):
        reason = f": those of plain decoding with their seed, {group[0]['seed']:.0f}" if follows_plain(group) else ""
        lines.append(f"The same images{reason}: {name_group(group)}. Their change of quality is one figure.")
    return lines


# --- meanings of options, and what was measured on a GPU


def explain_options(kind: str, rows: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """List each option in which a method's variants differ, with its meaning in the decoder's docstring and default."""
    variants_by_method: dict[str, list[dict[str, Any]]] = {}
    for row in (r for r in rows if not is_made(kind, r["method"])):
        variants_by_method.setdefault(row["method"], []).append(parse_settings(row["options"]))
    lines = []
    for method, variants in variants_by_method.items():
        default, meanings, names = options(kind, method, {}), explain_decoder(kind, method)[1], find_varying(variants)
        for label, chosen in NAMED.items():
            if any(chosen.items() <= variant.items() for variant in variants):
                lines.append((f"{method} {label}", f"with the options of the released code: {format_settings(chosen)}"))
                names = [name for name in names if name not in chosen]
        for name in names:
            meaning = meanings.get(name, "").replace("`", "").rstrip(".")
            lines.append((f"{method} {name}", f"{meaning}. Default: {format_setting(default[name])}"))
    return lines


ABOVE = ("Fastest lossless, one image", "How sure of the distribution")  # questions that are answered above the table
FOUND = "For each method: does it keep plain decoding's distribution, what does it spend, and how fast is it?"
NAMED_OPTIONS = "Options in the names:"
RANKED = (
    "Lossless methods first, then by the gain if every pass cost the same, as on an idle GPU. Grey: predicted, or timed"
    " on a busy machine."
)
BY_DISTANCE = (
    "Speed of one image against the total variation from the model's distribution, in the colour of the verdict: up and"
    " to the left is better. Pale marks: predicted. Broken line: plain decoding."
)
BY_PASSES = (
    "Speed of one image against target passes, in the colour of the verdict; larger marks evaluate more nodes a pass."
    " Pale marks: predicted. Broken line: plain decoding."
)
BARS = (
    f"Bars: plain decoding's count divided by the method's, with its {PERCENT} interval. Beside them the total"
    " variation from the model's distribution on small models: at most (TV ≤), or as measured on the one where the"
    " fault is surest; 0 is the same, 1 another altogether. It tells whether the distribution is kept; what a change"
    " costs is measured as quality."
)
READING = "Lossless methods first, then by passes saved. Speeds are those of this machine."
CALLS = (
    "Lossless methods first, then by calls in sequence saved. Calls in sequence bound the time of one image on any"
    " machine. On a CPU time follows the work of all calls together."
)


# --- the section of files


TABLES = ("summary.csv", "equality.csv", "published.csv", "records.parquet")  # these files are written beside the page
WHAT = {
    "index.html": "the verdicts, and links to the rest",
    "report.html": "the whole page in one file, except what has a file of its own",
    "published.html": "the papers' figures beside ours",
    "observations.html": "what methods rest on, measured along plain decoding, where the run observed it",
    "summary.csv": "a row per cell",
    "equality.csv": "a row per test of a method",
    "published.csv": "the same as a table",
    "records.parquet": "a row per image or text",
}
KEEP = ("--configfile", "--configfiles", "--config", "-C")  # these flags decide which cells an experiment has


def make_command(typed: str, target: str) -> str:
    """Write the command that makes the file `target`, with those flags of the command `typed` that choose the cells."""
    words: list[str] = []
    is_kept = False
    for word in shlex.split(typed):
        is_kept = word.partition("=")[0] in KEEP or (is_kept and not word.startswith("-"))
        words += [word] if is_kept else []
    return shlex.join(["uv", "run", "snakemake", "--cores", "all", *words, "--", target])


def make_files_section(g: Gathered) -> Section:
    """Make the section of files and commands. Names are no links, which break when a page is copied."""
    typed = g.environment.get("run", {}).get("command", "")
    folders = {c.key: paths.folder(c) for c in g.files.cells}
    columns = [
        Column("Method", lambda r: Entry(r["label"], style="name")),
        Column("Cell", lambda r: Entry(folders[r["key"]], style="file")),
        Column(
            "Command that makes the row again",
            lambda r: Entry(make_command(typed, f"{folders[r['key']]}/metrics.json"), style="code"),
        ),
    ]
    table = show_table(list_records(g.summary[["label", "key", "method"]]), columns, CELLS)
    return Section("files", "Files and commands", FILES, Terms(list(WHAT.items())), Words("Cells", "heading"), table)


FILES = "The data of this page, and for each row the command that makes it again."
CELLS = (
    "The samples, records and figures of each row, and the command that makes them, to be run in the project's folder."
    " Up-to-date files are not made twice: to make a cell again, delete its folder first."
)
