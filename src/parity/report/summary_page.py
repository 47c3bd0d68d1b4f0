"""The front page: what was found in a few lines, pictures, a table and a figure for each kind of model; and the files
behind the page, with the command that makes a row again."""

import json
import math
import re
import shlex
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd
from parity_certify.result_rows import ALPHA, describe_confidence

from parity.experiment import paths
from parity.experiment.options import KINDS, options
from parity.metrics.estimates import PERCENT, estimate_of
from parity.report.blocks import (
    Entry,
    Gallery,
    Section,
    Sides,
    Table,
    Terms,
    Words,
    cut_caption,
    format_setting,
    format_settings,
    format_text,
    is_missing,
    list_records,
)
from parity.report.collect import Gathered, follows_plain, group_same, name_group, rank_verdict
from parity.report.continuous import describe_baseline
from parity.report.cost import (
    AXIS,
    Stretch,
    draw_gains,
    find_fastest,
    format_near,
    format_range,
    measure_cost,
    read_gpu_cost,
)
from parity.report.figures import draw_gain_bars, draw_speed_by_passes, plot
from parity.report.front_table import (
    describe_quality,
    find_reference,
    is_judged_here,
    make_columns,
    make_image_columns,
    order_images,
    show_budgets,
)
from parity.report.pictures import make_thumbnail
from parity.report.self_tests import warn_of_failures
from parity.report.settings import NAMED, explain_decoder, find_varying, parse_settings
from parity.report.shared_sections import TITLES, label_rows
from parity.report.tables import BUSY, Column, Row, count_cores, doubt_speed, format_number, show_bound, show_table

GPU_SECONDS = Path(__file__).parents[3] / "docs/figures/gpu-seconds.csv"  # where this is a clone, with its docs
GPU = "gpu.json"  # `python benchmarks/gpu_passes.py` writes this file, if it is run
PROMPTS = 4  # pictures of so many prompts are on the first screen


def make_verdicts_section(g: Gathered) -> Section:
    """Make the front section: for each kind of model a table, figures, pictures (of images), and answers to a reader's
    questions; a warning above if self-tests failed."""
    doubt = warn_of_failures(g.self_tests)
    body: list[Any] = [*([Words(doubt, "warning")] if doubt else [])]
    for kind in g.kinds:
        rows = order_methods(g, kind)
        body += [Words(TITLES[kind], "heading")] if len(g.kinds) > 1 else []
        body += describe_baseline(g) if kind == "continuous" else []
        if not rows:
            body.append(Words("no method but plain decoding.", "empty"))
        elif kind == "discrete":
            body += show_images(g, rows)
        else:
            count = "calls one after another" if kind == "continuous" else "passes"
            caption = CALLS if kind == "continuous" else READING
            body.append(show_table(rows, make_columns(g, kind, rows), caption, "front"))
            bars = draw_gain_bars(pd.DataFrame(rows), count)
            body.append(plot(f"headline-{KINDS[kind]}", f"Times fewer {count}", bars, BARS))
            body.append(Terms(answer_questions(g, kind, rows)))
        if meanings := explain_options(kind, rows):
            body += [NAMED_OPTIONS, Terms(meanings)]
    return Section("verdicts", "Verdicts", FOUND, *body)


def show_images(g: Gathered, rows: list[dict[str, Any]]) -> list[Any]:
    """Make the blocks on images: the table (passes at equal budgets first, where the experiment has them), pictures,
    figures and answers. rows: methods in the order of the table."""
    gpu = read_gpu_seconds(g.files.local / GPU)
    all_rows = g.select_rows("discrete")
    first = all_rows[(all_rows["model"] == rows[0]["model"]) & (all_rows["sampling"] == rows[0]["sampling"])]
    plain = next(row for row in order_images(all_rows) if row["key"] == rows[0]["reference"])
    table = show_table([plain, *rows], make_image_columns(rows, gpu), "", "front")
    caption = " ".join(filter(None, [RANKED, describe_budget(rows), describe_load(rows), table.caption]))
    answers = answer_questions(g, "discrete", rows)
    above = [pair for question in ABOVE for pair in answers if pair[0] == question]
    body = [*show_budgets(first), *([Terms(above)] if above else []), table._replace(caption=caption)]
    body += [*describe_same(rows), make_gallery(g, rows)]
    by_passes = plot("speed-by-passes", "Speed against passes", draw_speed_by_passes(first), BY_PASSES)
    machines = [cost for cost in (measure_cost(first), read_gpu_cost(read_gpu(g.files.local / GPU))) if cost]
    by_cost = plot("gain-by-cost", "Predicted gain by the cost of a pass", draw_gains(first, machines), BY_COST)
    body.append(Sides([[by_passes], [by_cost]]))
    body += [show_fastest(stretches)] if (stretches := find_fastest(first)) else []
    return [*body, Terms([pair for pair in answers if pair not in above])]


def show_fastest(stretches: list[Stretch]) -> Table:
    """Show which lossless method is the fastest for which cost of a pass, how much it gains, and which others may be as
    fast."""
    columns = [
        Column(f"A pass over {AXIS} tokens", lambda r: Entry(f"{format_range(r['low'], r['high'])} passes over one")),
        Column("Fastest lossless", lambda r: Entry(r["name"], style="name")),
        Column("Predicted", lambda r: Entry(f"{format_range(*r['gains'])} times plain decoding")),
        Column("May be as fast", lambda r: Entry(r["rivals"], style="text")),
    ]
    rows = [
        {**s._asdict(), "method": s.row["method"], "role": s.row["role"], "rivals": format_near(s)} for s in stretches
    ]
    return show_table(rows, columns, FASTEST)


def describe_budget(rows: list[dict[str, Any]]) -> str:
    """Say how many tokens the methods evaluate in a pass at most, for with more of them others may lead."""
    largest = find_largest(rows, "nodes_per_pass")
    return (
        "" if largest is None else f"No method evaluates more than {largest['nodes_per_pass']:.0f} tokens a pass here."
    )


def order_methods(g: Gathered, kind: str) -> list[dict[str, Any]]:
    """List a kind's methods as summary rows, plain decoding left out, in the table's order: of images that of
    `order_images`, of others lossless ones first, then by gain. Adds `name`: the label without the task of a text."""
    all_rows = g.select_rows(kind)
    if kind == "discrete":
        return [row for row in order_images(all_rows) if row["role"] == "method"]
    groups = all_rows.groupby(["task", "settings"], sort=False) if kind == "anysubset" else [("", all_rows)]
    names = {
        r["key"]: r["label"]
        for _, group in groups
        for r in (label_rows(group) if kind == "anysubset" else list_records(group))
    }
    return [{**r, "name": names[r["key"]]} for r in list_records(all_rows) if r["role"] == "method"]


def find_largest(rows: list[dict[str, Any]], name: str) -> dict[str, Any] | None:
    """Find the row with the largest figure `name`; None if no row has it."""
    return max((r for r in rows if not is_missing(r.get(name))), key=lambda r: r[name], default=None)


def answer_questions(g: Gathered, kind: str, rows: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Answer a reader's questions on one kind of model, such as "How sure": pairs of a question and its answer."""

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
        sure = f"total variation (0: the same law, 1: another) at most {show_bound(bounded['tv_bound']).text}"
        sure += f" with {describe_confidence(g.settings.equality.alpha)} confidence, on {small} a sequence and at the"
        sure += " small options that the table names"
        sure += f"; at the run's own, no difference found on {long}" * bool(long)
        sure += "; none on the decoded model, token by token" * is_teacher_forced(g, exact)
        lines.append(("How sure of the law", sure))
        longest = re.findall(r"(\d+) tokens", models)
        never = f"sequences of more than {longest[-1]} tokens; " if longest else ""
        lines.append(("Not tested", f"{never}the joint law of the decoded model, which cannot be listed; other models"))
    if kind == "discrete":
        if sizes := describe_sizes(g, rows):
            lines.append(("Networks", sizes))
    elif fewest := find_largest(exact, "gain"):
        count = "calls one after another" if kind == "continuous" else "passes"
        of = f" than {g.find_baseline(kind)}" * bool(g.find_baseline(kind))
        saved = f"{fewest['label']}, {fewest['gain']:.1f} times fewer{of}" if fewest["gain"] > 1 else "none saves any"
        lines.append((f"Fewest {count}", saved))
    item = "text" if kind == "anysubset" else "image"
    lines += [
        (f"Fastest lossless, {question}", name_fastest(rows, exact, speed, g.find_baseline(kind) or "plain decoding"))
        for question, speed in ((f"one {item}", "speedup_single"), ("a batch", "speedup")) if find_largest(exact, speed)
    ]  # fmt: skip
    if kind == "discrete" and (compiled := describe_compiled_baseline(find_reference(g, rows[0]), exact)):
        lines.append(("Plain decoding compiled", compiled))
    if kind == "discrete" and (seconds := describe_gpu(GPU_SECONDS)):
        lines.append(("On a GPU", seconds))
    if error := describe_predictions(rows):
        lines.append(("Predicted speeds", error))
    if level := describe_level(g.settings.equality.alpha, rows):
        lines.append(("Level of the tests", level))
    lines.append(("Quality", describe_quality(g, kind, rows)))
    if judge := describe_judge(kind, rows):
        lines.append(("Who judges it", judge))
    return lines


def describe_gpu(file: Path) -> str:
    """Describe which methods should be fastest on the GPU that was measured for the docs (docs/results/gpu.md), where a
    method's own work counts, for each network; "" without the file."""
    if not file.is_file():
        return ""
    table = pd.read_csv(file).sort_values("times captured plain", ascending=False)
    networks: dict[str, list[str]] = {}
    for label, times in zip(table["label"], table["times captured plain"], strict=True):
        network, _, method = label.rpartition(", ")
        if method != "ar":
            networks.setdefault(network, []).append(f"{method} {times:.1f}")
    gains = "; ".join(f"{', '.join(methods)} ({network})" for network, methods in networks.items())
    return (
        f"times as fast as captured plain decoding, predicted from passes measured there: {gains}; docs/results/gpu.md"
    )


def describe_predictions(rows: list[dict[str, Any]]) -> str:
    """Say by which factor predicted speeds, of one row and of a batch, miss measured ones; "" without these."""
    pairs = [
        (r[f"{name}_predicted"], r[name])
        for r in rows
        for name in ("speedup_single", "speedup")
        if r.get(f"{name}_how") == "timed"
    ]
    if not pairs:
        return ""
    factors = [max(predicted / measured, measured / predicted) for predicted, measured in pairs]
    missed = f"by a factor of {median(factors):.2f} at the median and {max(factors):.2f} at most"
    return f"they missed the measured ones, of which there are {len(pairs)}, {missed}"


def describe_compiled_baseline(plain: dict[str, Any], exact: list[dict[str, Any]]) -> str:
    """Say how fast plain decoding of one image is with compiled passes, and which lossless methods, `exact`, are surely
    faster without: their interval lies above its own. "" where it was not timed."""
    if is_missing(plain.get("speedup_compiled")):
        return ""
    figure = estimate_of(plain, "speedup_compiled")
    interval = "" if figure.low is None else f" ({PERCENT} interval {figure.low:.2f} to {figure.high:.2f})"
    upper_end = figure.value if figure.high is None else figure.high
    faster = [r["label"] for r in exact if (estimate_of(r, "speedup_single").low or 0) > upper_end]
    return (
        f"one image at {figure.value:.2f} times the speed of plain decoding as it is here{interval}, timed in turn;"
        f" lossless methods that are surely faster than that, uncompiled: {', '.join(faster) or 'none'}"
    )


def name_fastest(
    rows: list[dict[str, Any]], exact: list[dict[str, Any]], speed: str, baseline: str = "plain decoding"
) -> str:
    """Write which lossless method was measured to be the fastest by the column `speed`, how sure that is, which may be
    faster but were measured too roughly, and a faster lossy one. rows: all methods; exact: the lossless ones; baseline:
    what the speeds are relative to."""
    sure = [r for r in exact if not doubt_speed(r, speed)]
    best = find_largest(sure or exact, speed)
    assert best is not None
    figure = estimate_of(best, speed)
    doubt = doubt_speed(best, speed)
    rough = [r for r in exact if r is not best and r not in sure and (r.get(speed) or 0) > figure.value]
    interval = "" if figure.low is None else f" ({PERCENT} interval {figure.low:.2f} to {figure.high:.2f})"
    is_faster = figure.value > 1 if figure.low is None else figure.low > 1
    answer = f"{best['label']}, {figure.value:.2f} times the speed of {baseline}{interval}"
    if figure.value <= 1:
        answer = f"none is {'surely ' * bool(rough)}faster than {baseline}; the nearest: {answer}"
    elif not is_faster:
        answer += f"; not sure to be faster at all{f' ({doubt})' * bool(doubt)}"
    if doubt and is_faster:
        answer += f"; a guess ({doubt})"
    lowest = math.inf if figure.low is None else figure.low
    rivals = [r["label"] for r in sure if r is not best and (estimate_of(r, speed).high or 0) > lowest]
    answer += f"; intervals that overlap: {', '.join(rivals)}" * bool(rivals)
    answer += f"; perhaps faster, but not measured well: {', '.join(r['label'] for r in rough)}" * bool(rough)
    rival = find_largest([r for r in rows if rank_verdict(r) > 1 and not doubt_speed(r, speed)], speed)
    if rival and rival[speed] > max(1, best[speed]):
        answer += f" (of the others: {rival['label']}, {rival[speed]:.2f} times)"
    return answer


def describe_load(rows: list[dict[str, Any]]) -> str:
    """Describe the machine's load while speeds were measured, and whether that is busy; "" where it is not known."""
    loads = [r["load"] for r in rows if not is_missing(r.get("load"))]
    cores = max((count_cores(r) for r in rows), default=0)
    if not loads or not cores:
        return ""
    low, high = format_number(min(loads), 2), format_number(max(loads), 2)
    state = "busy" if max(loads) > BUSY * cores else "not busy"
    return f"Load while timing: {low if low == high else f'{low} to {high}'} on {cores} cores ({state})."


def describe_sizes(g: Gathered, rows: list[dict[str, Any]]) -> str:
    """List the parameters of the target and of each companion with the methods that need it; "" if none is stored."""
    cells = g.map_cells("discrete")
    sizes: dict[str, int] = {}  # parameters by network; `users` has the methods that need it
    users: dict[str, list[str]] = {}
    for row in rows:
        parameters = g.files.read_provenance(cells[row["label"]]).get("parameters") or {}
        for network, size in parameters.items():
            sizes[network] = size
            users.setdefault(network, []).append(row["method"])

    def describe(network: str) -> str:
        """Write a network's size, and of a companion the methods that need it."""
        note = "" if network == "target" else f" ({', '.join(dict.fromkeys(users[network]))})"
        return f"{NETWORKS.get(network, network)} {shorten_count(sizes[network])}{note}"

    return f"parameters: {'; '.join(map(describe, sorted(sizes, key=lambda name: -sizes[name])))}" if sizes else ""


def shorten_count(count: float) -> str:
    """Shorten a count of parameters: "3.2 M"."""
    unit, name = next(((unit, name) for unit, name in UNITS if count >= unit), (1, ""))
    return f"{count / unit:.3g} {name}".strip()


def describe_judge(kind: str, rows: list[dict[str, Any]]) -> str:
    """Say that small networks trained here judge the quality; "" where a published protocol does."""
    return JUDGES[kind] if is_judged_here(rows) else ""


def describe_level(alpha: float, rows: list[dict[str, Any]]) -> str:
    """Describe what an unusual level `alpha` of the tests means for their power; "" at the usual level."""
    if alpha == ALPHA:
        return ""
    stricter = "fewer correct methods are rejected, and a fault must be larger to be found"
    looser = "more correct methods are rejected, and smaller faults are found"
    weakest = find_largest(rows, "minimum_detectable_effect")
    size = ""
    if weakest:
        size = f": a total variation of {show_bound(weakest['minimum_detectable_effect']).text} four times in five"
    return f"{alpha:g}, where {ALPHA:g} is usual: {stricter if alpha < ALPHA else looser}{size}"


def is_teacher_forced(g: Gathered, rows: list[dict[str, Any]]) -> bool:
    """Return whether all rows were tested on the model they decoded, each token's law given the tokens before it."""
    compared = set(g.equality.loc[g.equality["layer"] == "teacher-forced", "key"])
    return {r["key"] for r in rows} <= compared


def make_gallery(g: Gathered, rows: list[dict[str, Any]]) -> Gallery:
    """Make the gallery of the first prompts' pictures: by plain decoding with each seed (the methods' seed as drawn by
    a method that shares its noise), by the best lossless method of other pictures, and the lossy one of most gain."""
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


def is_like(row: Row, base: Row) -> bool:
    """Return whether two rows decode the same model under the same sampling settings."""
    return (row["model"], row["sampling"]) == (base["model"], base["sampling"])


def describe_same(rows: list[dict[str, Any]]) -> list[str]:
    """Write a sentence for each group of methods that drew the same pictures, with the reason if it is shared noise."""
    lines = []
    for group in (group for group in group_same(rows) if len(group) > 1):
        reason = f": those of plain decoding with their seed, {group[0]['seed']:.0f}" if follows_plain(group) else ""
        lines.append(f"The same pictures{reason}: {name_group(group)}. Their change of quality is one figure.")
    return lines


# --- meanings of options, and times predicted for a GPU


def explain_options(kind: str, rows: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """List each option in which a method's variants differ, with its meaning in the decoder's docstring and default."""
    variants_by_method: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
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


def read_gpu(file: Path) -> dict[str, Any]:
    """Read what `benchmarks/gpu_passes.py` measured on a GPU; {} without its file."""
    return json.loads(file.read_text()) if file.is_file() else {}


def read_gpu_seconds(file: Path) -> dict[str, str]:
    """Read by decoder the time of an image on a GPU, as text, as `benchmarks/gpu_passes.py` predicts it; {} without its
    file."""
    content = read_gpu(file)
    seconds = "seconds an image, predicted"
    rows = [r for r in content.get("decoders", []) if content.get("measured") and r.get(seconds) is not None]
    rows = [r for r in rows if r["network"] == rows[0]["network"]]
    fastest_last = sorted(rows, key=lambda r: -r[seconds])  # of eager and compiled, the faster row replaces the other
    return {r["method"]: f"{r[seconds]:.2f} s an image of {r['network']}" for r in fastest_last}


ABOVE = ("Fastest lossless, one image", "How sure of the law")  # questions that are answered above the table
FOUND = "For each method: does it keep plain decoding's distribution, what does it spend, and how fast is it?"
NAMED_OPTIONS = "Options in the names:"
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
RANKED = (
    "Lossless methods first, then by the predicted gain: how many times faster than plain decoding if every pass cost"
    " the same, as about it does on an idle GPU. Counts hold on any machine, speeds on this one."
)
BY_PASSES = (
    "Speed of one image against target passes, in the colour of the verdict; larger marks evaluate more nodes a pass."
    " Pale marks: predicted. Broken line: plain decoding."
)
BY_COST = (
    f"Predicted times faster than plain decoding, by what a pass over {AXIS} tokens costs where one over a single token"
    f" costs 1: find your machine on this axis. The cost of a pass over n tokens is taken as 1 + (c - 1)(n - 1) /"
    f" {AXIS - 1}; a companion's call costs its share of the target's parameters. Thick: the fastest lossless method."
    " Grey: methods that may be as fast, which the table below names. Dotted: machines that were measured; where no"
    " pass over so many tokens was, their cost is extended in a line."
)
FASTEST = (
    "The fastest lossless method, or plain decoding, by the cost of a pass, predicted as in the figure. What a method"
    " computes beside its networks is left out, and trees compute more: a GPU may have another order"
    " (docs/results/gpu.md). May be as fast: methods whose counts of passes differ by less than their error, and for"
    " which costs."
)
BARS = (
    f"Bars: plain decoding's count divided by the method's, with its {PERCENT} interval. Beside them the total"
    " variation from the model's law on the worst small model, at most (TV ≤) or as measured: 0 is the same law, 1"
    " another altogether. It tells whether the law is kept; what a change of it costs is measured as quality."
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
    "report.html": "the whole page in one file, but for what has a file of its own",
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
    """Make the section that names every file, and for each cell its folder and the command that makes it again. Names
    are not links, because a link breaks when the page is copied."""
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
    return Section("files", "Files and commands", BEHIND, Terms(list(WHAT.items())), Words("Cells", "heading"), table)


BEHIND = "The data behind this page, and for each row the command that makes it again."
CELLS = (
    "The samples, records and figures of each row, and the command that makes them, to be run in the project's folder."
    " Up-to-date files are not made twice: to make a cell again, delete its folder first."
)
