"""Figures in README and docs, written by a command from a run's tables: machine and commit stand beside each.

    python benchmarks/docs_figures.py results/full   keep what the docs need of a run, and write it
    python benchmarks/docs_figures.py                   write every block anew from what is kept

A block of a page begins with `<!-- figures: NAME -->` and ends with `<!-- end -->`; what stands between is replaced.
A number in a sentence is a link to its table, `[49](docs/figures/full.csv "nfe of mtj")`: the column, and the row's
label. It is replaced, too, with as many digits as it had.
What is kept lies in docs/figures: a CSV a source, and a JSON with commit, date, machine and command. A benchmark keeps
its own table there (`benchmarks/continuous_speed.py --keep continuous-speed`).
"""

import argparse
import heapq
import json
import math
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from parity.base.machine import read_processor
from parity.metrics.estimates import PERCENT, Z
from parity.report.blocks import Entry
from parity.report.collect import follows_plain, group_same, name_group
from parity.report.cost import (
    AXIS,
    BUDGETS,
    PLAIN,
    draw_gains,
    find_fastest,
    format_near,
    format_range,
    measure_cost,
    read_gpu_cost,
    select_best_within,
)
from parity.report.figures import draw_speed_by_distance
from parity.report.front_table import IMAGE_COLUMNS
from parity.report.order import order_images
from parity.report.tables import BUSY, Column, find_mark

ROOT = Path(__file__).resolve().parents[1]
PAGES = ["README.md", *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"(<!-- figures: ([\w-]+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
CITED = re.compile(r"\[([\d.,]+)\]\(((?:\S+/)?figures/([\w-]+)\.csv) \"([^\"]+?) of ([^\"]+)\"\)")
# the labels of README's table: plain decoding, the fastest lossless methods, ours or not, and the fastest lossy ones
FEW = ("ar, seed 0", "sjd", "sjd_coupled", "sjd_pac", "mtj", "mtj_draft", "gsd", "sjd_pp", "sjd_sv")
MAKES = ("src", "certify/src", "decoders/src", "workflow", "config.yaml", "Snakefile")
COLUMNS = [  # columns of a run's summary.csv that are kept
    "kind", "model", "task", "label", "method", "options", "key", "role", "claim", "claimant", "origin", "seed",
    "sampling", "drawn", "verdict", "verdict_kind", "pill", "mismatch", "tv_bound", "tv", "tv_low", "tv_high", "n",
    "batch", "nfe", "nfe_se", "nfe_ratio", "nodes_per_pass", "draft_calls", "draft_nodes", "draft_share", "calls",
    "depth", "depth_ratio", "speedup", "speedup_low", "speedup_high", "speedup_how", "speedup_predicted",
    "speedup_single", "speedup_single_low", "speedup_single_high", "speedup_single_how", "speedup_single_predicted",
    "speedup_compiled", "speedup_compiled_low", "speedup_compiled_high", "pairs", "singles", "pass_cost", "step_cost",
    "load", "machine", "right", "right_se", "drafted", "acceptance", "target_conditions", "steps",
]  # fmt: skip
NOTE = (
    f"{PERCENT} intervals. Verdicts are of small models, not of the decoded one; a lossy row has the TV of"
    " the small model where its fault is surest."
    " Passes: of the target; an image waits for calls of a speculator, too."
    " Predicted, flat cost: times faster than plain decoding where a pass costs the same whatever its tokens (a"
    " captured GPU pass over 32: 1.0 to 1.4 times one's), and a speculator's call its share of the target's"
    " parameters; launch times are left out, which flatters"
    " methods with a speculator. Speed: on this CPU, timed in turns with plain decoding, or predicted from counted"
    " passes and what a pass costs here. Where a speed was timed, it was above its prediction. Scenes-CLIP, by a small"
    " network trained here, is compared with plain sampling with another seed, prompt by prompt; so few prompts cannot"
    " show a small change, and of twenty such intervals one leaves out 0 by chance."
)


# --- tables that are collected from a run and kept in docs/figures


def read_machine() -> dict[str, Any]:
    """Read this machine's processor, its cores, and its load in the last quarter of an hour."""
    cpu = re.sub(r"\((?:R|TM)\)", "", read_processor())
    return {"cpu": " ".join(cpu.split()), "cores": os.cpu_count(), "load": round(os.getloadavg()[2], 1)}


def find_commit(folder: Path) -> str:
    """Find the last commit that changed what a run is made of; ", edited" is added if files differ from it."""

    def run_git(*words: str) -> str:
        """Run a git command on what a run is made of, and return its output."""
        command = ["git", "-C", str(folder), *words, "--", *(f":/{name}" for name in MAKES)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    return run_git("log", "-1", "--format=%h", "--abbrev=10") + ", edited" * bool(run_git("status", "--porcelain"))


def keep(name: str, table: pd.DataFrame, **source: Any) -> None:
    """Write a table to docs/figures/NAME.csv, and its `source`, such as commit and date, to NAME.json."""
    file = ROOT / "docs/figures" / f"{name}.csv"
    table.to_csv(file, index=False, lineterminator="\n", float_format="%.6g")
    file.with_suffix(".json").write_text(json.dumps(source, indent=1) + "\n")


def keep_benchmark(name: str, rows: list[dict[str, Any]]) -> None:
    """Keep the rows of the running benchmark by `keep`, with its command line, today's date, commit and machine."""
    command = "python benchmarks/" + shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
    date = datetime.now(UTC).date().isoformat()
    keep(name, pd.DataFrame(rows), command=command, commit=find_commit(ROOT), date=date, **read_machine())


def collect_run(results: Path) -> pd.DataFrame:
    """Collect a row for each cell of a results folder: columns of summary.csv, the change of CLIP-score, at how many
    places the distribution of one token was rejected, and shares of passes that a queue would save."""
    cells = pd.read_csv(results / "summary.csv").reindex(columns=COLUMNS).set_index("key", drop=False)
    tests = pd.read_csv(results / "equality.csv", low_memory=False)
    clip = tests[(tests["test"] == "CLIP: paired t") & (tests["repeat"] == 0)].set_index("key")
    for column, source in (("clip", "effect"), ("clip_low", "low"), ("clip_high", "high")):
        cells[column] = clip[source].reindex(cells.index)
    probs = tests[(tests["kind"] == "continuous") & (tests["layer"] == "teacher-forced") & (tests["decides"] == True)]  # noqa: E712
    final = probs[probs["repeat"] == probs.groupby("key")["repeat"].transform("max")]
    rejected = final.assign(hit=final["verdict"] == "rejected").groupby(["key", "model"])["hit"].any().groupby("key")
    cells["depth_ratio"] = cells["depth"] / cells["depth"].groupby(cells["model"]).transform("first")
    cells["places"] = rejected.count().reindex(cells.index)
    cells["rejected"] = rejected.sum().reindex(cells.index)
    cells["runs"] = probs.groupby("key")["repeat"].nunique().reindex(cells.index)
    shares = measure_waiting(pd.read_parquet(results / "records.parquet"), cells)
    cells["waits"], cells["waits_long"] = (cells["key"].map(share) for share in shares)
    return cells.reset_index(drop=True)


def measure_waiting(records: pd.DataFrame, cells: pd.DataFrame) -> tuple[dict[str, float], dict[str, float]]:
    """Measure, by key of the cell, which share of passes would be saved if a row that ends were replaced from a queue:
    of these images, and of an endless queue. Only cells of two or more batches, all whole, are measured."""
    of_images = {}
    of_queue = {}
    for key, images in records[records["kind"] == "discrete"].groupby("key"):
        batch = int(cells["batch"][key])
        n_passes = images["nfe"].tolist()
        batches = [max(n_passes[i : i + batch]) for i in range(0, len(n_passes) - batch + 1, batch)]
        if len(batches) < 2 or len(n_passes) % batch:
            continue
        slots = [0.0] * batch
        for count in n_passes:
            heapq.heapreplace(slots, slots[0] + count)
        of_images[key] = 1 - max(slots) / sum(batches)
        of_queue[key] = 1 - sum(n_passes) / batch / sum(batches)
    return of_images, of_queue


# --- Markdown that is written from the kept tables


def format_images(t: pd.DataFrame) -> str:
    """Write the page's front table of images with the change of Scenes-CLIP beside it. Draws the figure
    docs/headline.svg, if single images were timed, and puts it above."""
    is_drawn = draw_headline(t, ROOT / "docs/headline.svg")
    rows = order_images(t[t["kind"] == "discrete"])
    table = format_entries(rows, SPEED_COLUMNS)
    table = table.replace(" on small models", "").replace("| Verdict |", "| Verdict, on small models |")
    groups = group_same(t[t["kind"] == "discrete"].to_dict("records"))
    repeats = " ".join(describe_same(group) for group in groups if group[1:])
    repeats += " These groups differ from one another by rounding." * (sum(map(follows_plain, groups)) > 1)
    note = f"{rows[0]['n']:.0f} prompts, {rows[0]['nfe']:.0f} tokens an image. {NOTE} {describe_clip(rows)} {repeats}"
    image = "![Speed of one image against the distance from the model's distribution](../headline.svg)\n\n"
    return f"{image * is_drawn}{table}\n\n{note.strip()}"


def format_few(t: pd.DataFrame) -> str:
    """Write the page's front table of images for the methods in FEW."""
    rows = order_images(t[t["kind"] == "discrete"])
    return format_entries([row for row in rows if row["label"] in FEW], SPEED_COLUMNS)


def show_timed(row: dict[str, Any]) -> Entry:
    """Show how many times faster than plain decoding an image was, with its interval, if it was timed."""
    if row["speedup_single_how"] != "timed":
        return Entry("")
    interval = (
        ""
        if pd.isna(row["speedup_single_low"])
        else f"{row['speedup_single_low']:.2f} to {row['speedup_single_high']:.2f}"
    )
    return Entry(f"{row['speedup_single']:.2f}×", interval)


SPEED_COLUMNS = [  # of image methods: timed speeds and predicted ones apart
    *IMAGE_COLUMNS[:4],
    Column("One image, timed", show_timed, ""),
    Column("One image, predicted", lambda row: Entry(f"{row['speedup_single_predicted']:.2f}×"), ""),
]


def format_entries(rows: list[dict[str, Any]], columns: list[Column]) -> str:
    """Write rows of a page's table: each entry's text and mark, after it its detail in brackets, except for names and
    verdicts, whose details are on the page."""

    def write(number: int, row: dict[str, Any]) -> str:
        """Write an entry of a row."""
        entry = columns[number].entry(row)
        text = f"`{entry.text}`" if entry.style == "name" else entry.text.replace("|", "\\|")
        mark = f" *({entry.mark})*" * bool(entry.mark)
        return text + mark + f" ({entry.detail})" * bool(entry.detail and number > 1)

    lines = [tuple(column.heading for column in columns)]
    return format_table([*lines, *(tuple(write(i, row) for i in range(len(columns))) for row in rows)])


def describe_clip(rows: list[dict[str, Any]]) -> str:
    """Say by how much Scenes-CLIP changes, and of which methods the interval of the change leaves out 0."""
    changed = [row for row in rows if not pd.isna(row.get("clip", math.nan))]
    apart = [
        f"`{row['label']}` ({row['clip_low']:+.3f} to {row['clip_high']:+.3f})"
        for row in changed
        if row["clip_low"] > 0 or row["clip_high"] < 0
    ]
    changes = [row["clip"] for row in changed]
    size = f"Its change is {min(changes):+.3f} to {max(changes):+.3f}, lossy methods included"
    return f"{size}; the interval leaves out 0 of {', '.join(apart) or 'none'}."


def mark(r: Any) -> str:
    """Write the mark of a method that is ours or made from others' account, in italics; "" for other methods."""
    found = find_mark(r._asdict())
    return f" *({found})*" if found else ""


def format_passes(r: Any) -> str:
    """Write the mean passes of an image, with the half-width of its interval unless that is zero."""
    return f"{r.nfe:.0f} ± {Z * r.nfe_se:.0f}" if r.nfe_se else f"{r.nfe:.0f}"


def describe_same(rows: list[dict[str, Any]]) -> str:
    """Say that the methods of these rows drew the same images, and whether they are those of plain decoding."""
    reason = ", those of plain decoding with their seed, up to rounding" if follows_plain(rows) else ""
    names = name_group([{**r, "name": f"`{r['label']}`"} for r in rows])
    return f"{names} drew the same images{reason}."


def format_budgets(t: pd.DataFrame) -> str:
    """Write a table of passes and predicted gain of each lossless method on images, at its best options within each
    budget; of the lossy ones the fewest and the most."""
    rows = t[t["kind"] == "discrete"]
    best = {budget: select_best_within(rows, budget) for budget in BUDGETS}
    by_budget = {b: {(r.method, r.claim): r for r in table.itertuples()} for b, table in best.items()}
    pairs = dict.fromkeys(pair for b in reversed(BUDGETS) for pair in by_budget[b])
    widest = {pair: next(by_budget[b][pair] for b in reversed(BUDGETS) if pair in by_budget[b]) for pair in pairs}
    lines = [("method", *(f"within {b} nodes" for b in BUDGETS))]
    lossless = {pair: r for pair, r in widest.items() if r.claim == "lossless"}
    for pair, r in sorted(lossless.items(), key=lambda one: -one[1].gain):
        cells = [by_budget[b].get(pair) for b in BUDGETS]
        spent = [f"{format_passes(c)}, {c.gain:.1f}×{name_coupling(c)}" if c else "no such setting" for c in cells]
        lines.append((f"`{r.method}`{mark(r)}", *spent))
    lossy = sorted((r for r in widest.values() if r.claim == "lossy"), key=lambda r: -r.gain)
    ends = " to ".join(f"{format_passes(r)} and {r.gain:.1f}× (`{r.method}`)" for r in (lossy[0], lossy[-1]))
    note = (
        "Passes an image of the setting that gains most within this many tokens evaluated a pass, and the predicted"
        " gain at flat cost, speculators' calls counted. This study draws too few sequences for verdicts: those are in"
        f" the table of [every decoder](decoders.md). Lossy methods, within {BUDGETS[-1]} nodes: {ends}."
    )
    return f"{format_table(lines)}\n\n{note}"


def name_coupling(row: Any) -> str:
    """Name a coupling that does not make plain decoding's images; "" without one."""
    return ", `coupling=maximal`" if json.loads(row.options).get("coupling") == "maximal" else ""


def format_fastest(t: pd.DataFrame) -> str:
    """Write a table of the fastest lossless method on images by the cost of a pass. Draws the figure docs/fastest.svg,
    with this run's machine and the GPU of docs/figures/gpu-passes.json, and puts it above."""
    rows = t[t["kind"] == "discrete"]
    gpu = read_gpu_cost(json.loads((ROOT / "docs/figures/gpu-passes.json").read_text()))
    drawn = draw_gains(rows, [cost for cost in (measure_cost(rows), gpu) if cost])
    if drawn is None:
        return "This run has no passes of plain decoding."
    drawn[0].savefig(ROOT / "docs/fastest.svg", metadata={"Date": None})
    lines = [(f"a pass over {AXIS} tokens costs", "fastest lossless", "times plain decoding", "may be as fast")]
    for s in find_fastest(rows):
        costs = f"{format_range(s.low, s.high)} passes over one"
        name = s.name if s.name == PLAIN else f"`{s.name}`"
        lines.append((costs, name, format_range(*s.gains), format_near(s, "`{}`")))
    image = "![Predicted gain of each method by the cost of a pass, the fastest in colour](../fastest.svg)"
    return f"{image}\n\n{format_table(lines)}"


def format_continuous(t: pd.DataFrame) -> str:
    """Write a table of the methods on vectors: share of images whose class is read right, accepted drafts,
    evaluations of the target, speed, and tests of the distribution of one token."""
    lines = [
        (
            "variant",
            "class read",
            "drafts accepted",
            "target evaluations an image",
            "speed",
            "distribution of one token",
        )
    ]
    for r in t[t["kind"] == "continuous"].itertuples():
        drafts = f"{100 * r.acceptance:.0f}% of {r.drafted:,.0f}" if r.drafted else ""
        probs = "not tested" if pd.isna(r.places) else f"rejected at {r.rejected:.0f} of {r.places:.0f} places"
        probs = probs.replace("rejected at 0", "not rejected at any") + (", twice" if r.rejected and r.runs > 1 else "")
        evaluations = f"{r.target_conditions:,.0f} in {r.steps:.0f} rounds"
        read = f"{100 * r.right:.0f}% ± {100 * r.right_se:.0f}"
        name = "plain sampling" + ", another seed" * (r.role == "control") if r.role != "method" else f"`{r.label}`"
        how = " (predicted)" * (r.speedup_how == "predicted")
        lines.append((name, read, drafts, evaluations, f"{r.speedup:.2f}{how}", probs))
    return format_table(lines)


def format_continuous_speed(t: pd.DataFrame) -> str:
    """Write a table by batch of times faster than one token at a time, median and range, and what the paper prints."""
    batches = sorted(set(t["batch"]))
    lines = [("times faster than one token at a time", *(f"batch {b}" for b in batches), "paper, batch 1")]
    for name, rows in t[t["name"] != "target alone"].groupby("name", sort=False):
        cells = {r.batch: f"{r.ratio:.2f} ({r.low:.2f} to {r.high:.2f})" for r in rows.itertuples()}
        lines.append((str(name), *(cells.get(b, "") for b in batches), PAPER_SPEEDUPS.get(str(name), "")))
    return format_table(lines)


def format_generate(t: pd.DataFrame) -> str:
    """Write a table of the speeds of plain decoding and of `generate` of transformers, by batch."""
    names = {"generate()": "`generate()`, eager", "plain": "`ar`, eager (the default on a CPU)"}
    lines = [("", "batch", "tokens per CPU-second", "times `generate(guidance_scale=1.8)`")]
    for r in t.itertuples():
        lines.append((names.get(r.name, "`ar`, passes compiled"), f"{r.batch}", f"{r.rate:.0f}", f"{r.ratio:.2f}"))
    return format_table(lines)


def format_overhead(t: pd.DataFrame) -> str:
    """Write a sentence on the share of a step that is not the networks': the methods with the least and the most,
    and `sjd`, for which there is a goal of its own."""
    shares = (100 * t["overhead"]).round()
    ends = []
    for end in (shares.min(), shares.max()):
        names = ", ".join(f"`{name}`" for name in t["name"][shares == end])
        ends.append(f"{end:.0f}% ({names})")
    own = shares[t["name"] == "sjd"].iloc[0]
    return f"Of {len(t)} methods {' to '.join(ends)}, the median {shares.median():.0f}%; `sjd` {own:.0f}%."


def name_option_set(variant: str) -> str:
    """Name a method with its options, `mtj window=16`, of their YAML, "mtj: {window: 16}"."""
    method, _, chosen = variant.partition(": ")
    return f"`{' '.join([method, *chosen.strip('{}').replace(': ', '=').split(', ')]).strip()}`"


def format_length_networks(t: pd.DataFrame) -> str:
    """Write a table by method of the passes an image at each length, and of how its tokens compare with plain
    decoding's in float64 and float32."""
    images = t.drop_duplicates("layout")
    heads = [f"{r.model}: {r.positions:,}" for r in images.itertuples()]
    lines = [("method", *heads, "tokens")]
    for variant, rows in t.groupby("variant", sort=False):
        counted = rows.drop_duplicates("layout").set_index("layout")["passes"]
        passes = [f"{counted[layout]:,.0f}" if layout in counted else "" for layout in images["layout"]]
        lines.append((name_option_set(str(variant)), *passes, describe_tokens(rows)))
    return format_table(lines)


def describe_tokens(rows: pd.DataFrame) -> str:
    """Say how the tokens of a method, of all layouts in float64 and float32, compare with plain decoding's under the
    same noise."""
    if not rows["coupled"].any():
        return "its own"
    n = int(rows["differ"].sum())
    return "plain decoding's" if not n else f"except {n} tie{'s' * (n > 1)}, of {rows['gap'].max():.0e}"


GROWING = {
    "plan": "planning",
    "store": "rows of a cell",
    "measure": "its metrics and paired tests",
    "test": "its teacher-forced tests, beside the network",
    "report": "the report of all cells",
}


def format_growth(t: pd.DataFrame) -> str:
    """Write a sentence by part on CPU-seconds and peak MiB at the least and the most images."""
    ends = t["images"].min(), t["images"].max()
    parts = []
    for part, rows in t.groupby("part", sort=False):
        of = rows.set_index("images")
        cells = [f"{of['cpu_seconds'][end]:,.0f} s and {of['mib'][end]:,.0f} MiB" for end in ends]
        parts.append(f"{GROWING[str(part)]} {' to '.join(cells)}")
    return f"CPU-seconds and MiB from {ends[0]:,} to {ends[1]:,} images: {'; '.join(parts)}."


def format_smollm2(t: pd.DataFrame) -> str:
    """Write a table for each dtype of the text decoders on SmolLM2: at each sampling the passes a token after a prompt
    that begins a text and after one that repeats itself, and CPU-seconds, and how many texts are those of `ar`. Below
    it are the verdicts that are not consistent."""
    parts = []
    for dtype in ("float32", "bfloat16"):
        rows = t[t["dtype"] == dtype]
        names = list(dict.fromkeys(rows["law"]))
        columns = {"open": "beginning", "repeating": "repeating", "ratio": "CPU-seconds"}
        columns = columns if dtype == "float32" else {"ratio": "CPU-seconds"}
        heads = [f"{head}, T={name.partition(',')[0]}" for name in names for head in columns.values()]
        lines = [("method", *heads, f"equal to `ar`, of {rows['rows'].iloc[0]}")]
        for method, of in rows.groupby("method", sort=False):
            of = of.set_index("law")
            cells = [f"{of[key][name]:.2f}" for name in names for key in columns]
            name = f"`{method}`" if str(method).isidentifier() else str(method)
            lines.append((name, *cells, " and ".join(f"{of['equal'][name]}" for name in names)))
        others = [f"`{r.method}` at T = {r.law}: {r.verdict}" for r in rows.itertuples() if r.verdict != "consistent"]
        verdicts = "Every verdict is consistent, except " + "; ".join(others)
        parts.append(f"In {dtype}:\n\n{format_table(lines)}\n\n{verdicts}.")
    return "\n\n".join(parts)


def format_speculator_sizes(t: pd.DataFrame) -> str:
    """Write a table with a line for each speculator of a network of a published size: its share of the target, memory
    asked and taken, CPU-seconds, and passes of an image drawn with it."""
    lines = [
        (
            "network, random", "speculator", "of the target", "memory asked, MiB", "taken", "CPU-seconds",
            "an image, MiB", "passes", "tokens of `ar`",
        )
    ]  # fmt: skip
    for r in t.itertuples():
        drawing = f"{r.drawing_taken:,}"
        equal = "yes" if r.equal else "no"
        passes = f"{r.passes:.0f} by `{r.method}`, of {r.side**2} tokens"
        network = f"{r.model}, {r.dtype}"
        memory = f"{r.asked:,}", f"{r.taken:,}", f"{r.seconds:.0f}", drawing
        lines.append((network, f"`{r.speculator}`", f"{r.share}%", *memory, passes, equal))
    return format_table(lines)


PAPER_SPEEDUPS = {f"cspd as released, gamma {g}": x for g, x in ((4, "1.11"), (8, "1.26"), (16, "1.37"), (32, "1.44"))}


def format_table(lines: list[tuple[str, ...]]) -> str:
    """Write a Markdown table of cells, the head first; columns in which no row has a value are left out."""
    shown = [i for i in range(len(lines[0])) if any(line[i] for line in lines[1:])]
    lines = [tuple(line[i] for i in shown) for line in lines]
    rows = ["| " + " | ".join(line) + " |" for line in lines]
    return "\n".join([rows[0], "|" + "---|" * len(lines[0]), *rows[1:]])


FEW_NETWORKS = ("as it is", "temperature 2", *(f"weights disturbed by {scale}" for scale in (0.2, 0.3, 0.4, 0.5)))


def read_paper_gains() -> dict[str, tuple[float, float]]:
    """Read how many tokens a pass `sjd` draws by tables 1 to 5 of its paper: the least and the most, by network."""
    t = pd.read_csv(Path(__file__).parents[1] / "workflow/published/sjd.csv")
    t = t[(t["method"] == "sjd") & (t["metric"] == "step_compression") & t["table"].str.fullmatch("Table [1-5]")]
    by_network = t.groupby(t["model"].str.extract(r"^(LlamaGen|Anole|Lumina-mGPT)", expand=False))["value"]
    return {str(network): (values.min(), values.max()) for network, values in by_network}


def read_expected_gains(t: pd.DataFrame, low: float, high: float) -> pd.DataFrame:
    """Read from the table of gain-by-network what other methods gain where `sjd` gains `low` to `high`: the columns
    "low" and "high" by method, interpolated between networks that are neighbours by the gain of `sjd`."""
    wide = t.pivot(index="network", columns="method", values="times").sort_values("sjd")
    ends = {name: [np.interp(x, wide["sjd"], wide[name]) for x in (low, high)] for name in wide if name != "sjd"}
    return pd.DataFrame(ends, index=["low", "high"]).T


def format_gain_by_network(t: pd.DataFrame) -> str:
    """Write what to expect of the paper's networks, the same rule beside counts on random networks, and a table of
    networks by the gain of `sjd`. Draws the figure docs/gain.svg and puts it above; keeps what to expect in
    docs/figures/gain-expected.csv."""
    draw_gain_by_network(t, ROOT / "docs/gain.svg")
    wide = t.pivot(index="network", columns="method", values="times").sort_values("sjd", ascending=False)
    names = ["sjd", *(name for name in wide if name != "sjd")]
    predicted = [("network", "`sjd`, in its paper", *(f"`{name}`, predicted" for name in names[1:]))]
    kept = []
    for network, (low, high) in read_paper_gains().items():
        ends = read_expected_gains(t, low, high).loc[names[1:]]
        predicted.append((network, f"{low} to {high}", *(f"{a:.1f} to {b:.1f}" for a, b in ends.values)))
        kept += [{"label": f"{network}, {name}", "low": a, "high": b} for name, (a, b) in ends.T.items()]
    pd.DataFrame(kept).to_csv(ROOT / "docs/figures/gain-expected.csv", index=False, float_format="%.6g")
    counted = count_random_gains()
    shown = ("sjd_coupled", "mtj")
    checked = [("layout, random weights", "`sjd`", *(f"`{name}`, by the rule and counted" for name in shown))]
    for layout, row in counted.iterrows():
        ruled = read_expected_gains(t, row["sjd"], row["sjd"])["low"]
        pairs = (f"{ruled[name]:.2f}, {row[name]:.2f}" for name in shown)
        checked.append((str(layout), f"{row['sjd']:.2f}", *pairs))
    lines = [("network", "TV moved", "entropy, nats", *(f"`{name}`" for name in names))]
    of_network = t.drop_duplicates("network").set_index("network")
    for network, row in wide.loc[[name for name in wide.index if name in FEW_NETWORKS]].iterrows():
        measures = (f"{of_network.loc[network, key]:.2f}" for key in ("moved", "entropy"))
        lines.append((str(network), *measures, *(f"{row[name]:.2f}" for name in names)))
    left_out = f"If a network is left out, its neighbours miss its gains by up to {100 * miss_most(t):.0f} %."
    image = "![Gain of lossless decoders against the gain of sjd, and against how far distributions move](../gain.svg)"
    tables = (format_table(rows) for rows in (predicted, checked, lines))
    return "\n\n".join([image, *tables, left_out])


def count_random_gains() -> pd.DataFrame:
    """Count the tokens a pass of methods on random networks in published layouts (docs/figures/length-networks.csv)."""
    t = pd.read_csv(ROOT / "docs/figures/length-networks.csv")
    t = t[t["dtype"] == "float32"].assign(method=t["variant"].str.partition(":")[0])
    plainly = t["model"].map(t[t["method"] == "ar"].set_index("model")["passes"])
    t = t.assign(times=plainly / t["passes"])
    t = t[~t["variant"].str.contains("coupling|verify")]
    return t.pivot(index="model", columns="method", values="times")


def miss_most(t: pd.DataFrame) -> float:
    """Measure by what share of a gain its neighbours miss it at most, for each network that has neighbours."""
    misses = []
    for network in t[t["method"] == "sjd"].sort_values("times")["network"].iloc[1:-1]:
        own = t[t["network"] == network].set_index("method")["times"]
        ruled = read_expected_gains(t[t["network"] != network], own["sjd"], own["sjd"])["low"]
        misses.append(((ruled - own.drop("sjd")) / own.drop("sjd")).abs().max())
    return max(misses)


def draw_gain_by_network(t: pd.DataFrame, file: Path) -> None:
    """Draw the gain of each method against that of `sjd`, with the paper's networks, and against `moved`."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    by_sjd = t["network"].map(t[t["method"] == "sjd"].set_index("network")["times"])
    for axes, x, label in (
        (left, by_sjd, "tokens a pass by sjd"),
        (right, t["moved"], "TV by which distributions move"),
    ):
        for name, rows in t.assign(x=x).sort_values("x").groupby("method"):
            axes.plot(rows["x"], rows["times"], "o-" if axes is left else "o", markersize=4, linewidth=1, label=name)
        axes.set_xlabel(label)
        axes.spines[["top", "right"]].set_visible(False)
    for name, (low, high) in read_paper_gains().items():
        left.axvspan(low, high, color="0.85", linewidth=0)
        left.annotate(name, ((low + high) / 2, t["times"].max()), rotation=90, ha="center", va="top", fontsize=8)
    left.set_ylabel("tokens a pass")
    left.legend(frameon=False)
    with matplotlib.rc_context({"svg.hashsalt": "gain"}):
        figure.savefig(file, metadata={"Date": None})


def draw_headline(t: pd.DataFrame, file: Path) -> bool:
    """Draw speed against distance of methods on images into a file; return False, without a file, if none was timed."""
    drawn = draw_speed_by_distance(t[t["kind"] == "discrete"])
    if drawn is not None:
        drawn[0].savefig(file, metadata={"Date": None})
    return drawn is not None


BLOCKS: dict[str, tuple[str, Callable[[pd.DataFrame], str]]] = {  # block's name to its table and what writes it
    "few": ("full", format_few),
    "images": ("full", format_images),
    "budgets": ("budget", format_budgets),
    "fastest": ("budget", format_fastest),
    "continuous": ("full", format_continuous),
    "generate": ("generate", format_generate),
    "overhead": ("overhead", format_overhead),
    "smollm2": ("smollm2", format_smollm2),
    "speculator-sizes": ("speculator-sizes", format_speculator_sizes),
    "continuous-speed": ("continuous-speed", format_continuous_speed),
    "length-networks": ("length-networks", format_length_networks),
    "many-pictures": ("many-pictures", format_growth),
    "gain-by-network": ("gain-by-network", format_gain_by_network),
}


def format_block(name: str, root: Path = ROOT) -> str:
    """Write the text of a block by its name: its table, and a line that says where the figures come from and whether
    the machine was busy; or that they were not measured if their file is missing."""
    source, format_rows = BLOCKS[name]
    file = root / "docs/figures" / f"{source}.csv"
    if not file.exists():
        return f"*Not measured yet: no {file.relative_to(root)}, which `python benchmarks/docs_figures.py` keeps.*\n"
    origin = json.loads(file.with_suffix(".json").read_text())
    note = f", {origin['note']}" if origin.get("note") else ""
    busy = origin.get("load", 0) > BUSY * origin["cores"]
    load = f", load {origin['load']}" + " (busy)" * busy if "load" in origin else ""
    facts = f"`{origin['command']}`, {origin['date']}, commit {origin['commit']}, {origin['cpu']}"
    facts += f", {origin['cores']} cores{load}{note}"
    return f"{format_rows(pd.read_csv(file))}\n\n*{facts}. Written by `python benchmarks/docs_figures.py`.*\n"


def fill_blocks(text: str, root: Path = ROOT) -> str:
    """Return a page's text with every block and cited number written anew. Exits with an error for a block whose name
    is unknown."""
    for name in (m[2] for m in BLOCK.finditer(text)):
        if name not in BLOCKS:
            raise SystemExit(f"error: block {name!r} of the docs: allowed: {', '.join(BLOCKS)}")
    text = BLOCK.sub(lambda m: f"{m[1]}{format_block(m[2], root)}{m[4]}", text)
    return CITED.sub(lambda m: f'[{look_up(m, root)}]({m[2]} "{m[4]} of {m[5]}")', text)


def look_up(cited: re.Match[str], root: Path) -> str:
    """Look up a cited number in its table, and write it with as many decimals as it had. Exits with an error if the
    table has no such column, or not one such row."""
    table = pd.read_csv(root / "docs/figures" / f"{cited[3]}.csv")
    found = table.loc[table["label"] == cited[5], cited[4]] if cited[4] in table else []
    if len(found) != 1:
        raise SystemExit(f"error: {cited[0]}: {len(found)} such numbers; allowed: one")
    return f"{found.iloc[0]:,.{len(cited[1].partition('.')[2])}f}"


def main() -> None:
    """Keep the tables of a run if its folder is named; then write all blocks anew and print each page that changed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("results", nargs="?", type=Path, help="folder of a run on this machine, results/<experiment>")
    parser.add_argument("--command", default="snakemake --cores all --resources gpu=1", help="the one that made it")
    parser.add_argument("--note", default="", help="what else must be known, such as 'shared with other work'")
    a = parser.parse_args()
    if a.results:
        machine = read_machine()
        cells = collect_run(a.results)
        origin = {"command": a.command, "commit": find_commit(a.results), **{k: machine[k] for k in ("cpu", "cores")}}
        origin |= {} if cells["load"].isna().all() else {"load": round(float(cells["load"].mean()), 1)}
        seconds = (a.results / "summary.csv").stat().st_mtime
        date = datetime.fromtimestamp(seconds, UTC).date().isoformat()
        keep(a.results.name, cells, **origin, date=date, note=a.note)
    for page in PAGES:
        text = (ROOT / page).read_text()
        if (new := fill_blocks(text)) != text:
            (ROOT / page).write_text(new)
            print(page)


if __name__ == "__main__":
    main()
