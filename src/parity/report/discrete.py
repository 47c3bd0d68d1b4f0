"""Images: quality and cost of every cell, where decoders gain, and the images on which they lose most."""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from parity.experiment import weights
from parity.experiment.cells import Cell
from parity.metrics.estimates import PERCENT, Estimate
from parity.report import images, maps, tables
from parity.report import shared_sections as shared
from parity.report.blocks import Details, Entry, Section, Sides, Words, format_settings, is_missing, list_records
from parity.report.collect import Gathered
from parity.report.figures import choose_look, draw_quality, plot
from parity.report.front_table import SCENES, is_judged_here
from parity.report.settings import SummaryRow, parse_settings
from parity.report.tables import Column, format_number, show_measured, show_number, show_table, show_value

KIND = "discrete"
SLOTS = 8  # each of the first slots of a pass has a column


def show_perplexity(row: SummaryRow) -> Entry:
    """Show the perplexity, beneath it the share of tokens left out because the target gives them probability 0."""
    entry = show_measured("perplexity")(row)
    if is_missing(row.get("excluded")) or not row["excluded"] > 0:
        return entry
    excluded = f"{format_number(100 * row['excluded'], 2)}% of tokens excluded"
    return entry._replace(detail=f"{entry.detail} {excluded}".strip())


def show_time(row: SummaryRow) -> Entry:
    """Show the median milliseconds of a pass (the mean, if only that was recorded), and the quartiles over batches."""
    median, low, high = (row.get(f"ms_per_forward_{end}") for end in ("median", "q1", "q3"))
    entry = show_number(row.get("ms_per_forward") if is_missing(median) else median, 3)
    return entry if is_missing(low) else entry._replace(detail=f"{format_number(low, 3)} to {format_number(high, 3)}")


def show_batch(row: SummaryRow) -> Entry:
    entry = show_number(row.get("batch"))
    return entry if is_missing(row.get("batches")) else entry._replace(detail=f"{int(row['batches'])} timed")


def make_slot_column(j: int) -> Column:
    """Make a column of the share of drafts accepted in slot j of a pass, given that the slot before was."""

    def show(row: SummaryRow) -> Entry:
        shares = json.loads(row["acceptance_by_slot"])
        return tables.show_percent(Estimate(shares[j - 1])) if j <= len(shares) else tables.NONE

    return Column(f"Slot {j}", show, "share of drafts accepted, if the slot before was" if j == 1 else "")


QUALITY = [
    tables.METHOD,
    Column("n", "n", "number of images"),
    Column("CLIP-score", "clip_score", "mean cosine of image and prompt, ± standard error"),
    Column("FID", "fid", "± standard error over images; it is biased by n, so only rows of equal n compare"),
    Column("Precision", "precision", "± standard error"),
    Column("Recall", "recall", "± standard error"),
    Column("Perplexity", show_perplexity, "of the tokens under the target, without tokens of probability 0 (excluded)"),
]
BATCH = Column("Batch", show_batch, "images decoded at once, and the number of batches timed")
COST = [
    tables.METHOD,
    Column("Passes", "nfe", "target passes per image, ± standard error"),
    Column("Step compression", "step_compression", f"tokens per pass, {PERCENT} bootstrap interval"),
    Column("TPF", "tpf", "tokens per pass after the first, as VVS counts them"),
    Column("Calls", "calls", "target passes and calls of a speculator (a drafter, a draft model), one after another"),
    *tables.COST[2:],
    *tables.CLOCK,
    Column("Nodes per pass", "nodes_per_pass", "tokens that the target evaluates in a pass"),
    Column("Nodes per token", "nodes_per_token", "tokens evaluated per token kept; 1 means that nothing is wasted"),
    Column("ms per forward", show_time, "time of a batch divided by its passes: median and quartiles over batches"),
    BATCH,
    Column("Device", show_value("device")),
    Column("Dtype", show_value("dtype")),
]
SERVING = [
    Column("Alone", show_value("tokens_per_second_single", 3), "tokens per second of an image decoded alone"),
    Column("In the batch", "request_tokens_per_second", "tokens per second of one image of the batch"),
    Column("Whole batch", "tokens_per_second", "tokens per second of all images of the batch"),
    BATCH,
    Column("First token", show_value("first_token_seconds", 3), "median of the seconds to the first tokens of a batch"),
]
SHOWN = {"clip_score", "fid", "precision", "recall", "perplexity", "excluded", "nfe", "step_compression", "tpf"}
SHOWN |= {"nodes_per_pass", "nodes_per_token", "speedup", "speedup_single", "network_share", "acceptance_length"}


def make_sections(g: Gathered) -> Iterator[Section]:
    rows = g.select_rows(KIND)
    clouds = [
        plot(f"quality-{model}", f"Quality of each method, {model}", draw_quality(own, name_figures(own)), CLOUD)
        for model, own in rows.groupby("model", sort=False)
    ]
    quality, cost = show_groups(g, QUALITY, PLAIN), show_groups(g, COST, SPEEDS, cost=True)
    table = shared.show_verdicts(g, KIND, PLAIN)
    yield Section("image-pictures", "Images: replay", REPLAYS, *images.show_images(g))
    yield Section("image", "Images: quality", IMAGES, *quality, *images.list_identical(g), *clouds)
    yield Section("image-cost", "Images: passes and time", COSTS, *cost)
    yield Section("image-acceptance", "Images: where decoders gain", GAINS, *show_acceptance(g, rows))
    yield Section("image-verdicts", "Images: verdicts in full", VERDICTS, BOUNDS, table, folded=True)


def name_figures(rows: pd.DataFrame) -> dict[str, str]:
    """Name figures of quality by the small networks trained here, where these judge; {} where published ones do."""
    return SCENES if is_judged_here(list_records(rows)) else {}


def show_groups(g: Gathered, columns: list[Column], caption: str, cost: bool = False) -> Iterator[Any]:
    """Yield a table of `columns` for each model and sampling settings, then what other figures of quality, or of
    `cost`, were measured."""
    of_quality, of_cost = shared.split_figures(KIND)
    groups = list(g.select_rows(KIND).groupby(["model", "sampling"], sort=False))
    for (model, sampling), group in groups:
        if len(groups) > 1:
            yield Words(f"{model}, {format_settings(parse_settings(sampling), ' ')}", "heading")
        rows = shared.label_rows(group)
        names = name_figures(group)
        named = [c._replace(heading=names.get(str(c.entry), c.heading)) for c in columns]
        yield show_table(rows, named, f"{caption} {shared.name_protocol(rows)}".strip())
        if cost:
            yield from show_serving(rows)
        yield from shared.show_other_figures(KIND, rows, SHOWN | (of_quality if cost else of_cost))


def show_serving(rows: list[dict[str, Any]]) -> Iterator[Details]:
    """Yield a table of acceptance by slot and of the speed of a request, of the rows that record them, if any does."""
    rows_with_slots = [row for row in rows if not is_missing(row.get("acceptance_by_slot"))]
    if rows_with_slots:
        deepest = max(len(json.loads(row["acceptance_by_slot"])) for row in rows_with_slots)
        length = Column("Acceptance length", "acceptance_length", "tokens that a pass makes final")
        columns = [tables.METHOD, length, *map(make_slot_column, range(1, min(deepest, SLOTS) + 1)), *SERVING]
        yield Details("Acceptance by slot, and speed of a request", [show_table(rows_with_slots, columns, REQUESTS)])


class ByCell(Mapping[str, np.ndarray]):
    """An array of each cell by its label, read when it is asked for and not kept: all together do not fit in memory."""

    def __init__(self, cells: Mapping[str, Cell], read: Callable[[Cell], np.ndarray]):
        self.cells, self.read = cells, read

    def __getitem__(self, label: str) -> np.ndarray:
        return self.read(self.cells[label])

    def __iter__(self) -> Iterator[str]:
        return iter(self.cells)

    def __len__(self) -> int:
        return len(self.cells)


def show_acceptance(g: Gathered, rows: pd.DataFrame) -> list[Any]:
    """Draw where and when tokens become final, and the target's largest probability. rows: summary rows of images."""
    cells, look, models = g.map_cells(KIND), choose_look(rows), weights.list_models(g.settings, KIND)
    traced = {label: c for label, c in cells.items() if "step" not in g.files.read_provenance(c).get("lacks", ())}
    steps = ByCell(traced, lambda cell: g.files.read_decoded(cell, "step")["step"])
    top1 = ByCell(cells, g.files.read_top1)
    widths = {label: weights.count_positions(models[cell.spec["model"]]).width for label, cell in cells.items()}
    plain = next(label for label, cell in cells.items() if cell.role == "reference")
    pixels = g.files.read_pixels(cells[plain], maps.FIRST)
    maps_of_steps = maps.draw_acceptance_maps(steps, widths)
    compression = maps.draw_compression(steps, top1, look)
    by_pass = maps.draw_passes(steps, look)
    top1_map = maps.draw_top1_maps(top1, pixels, plain, widths)
    top1_shares = maps.draw_top1_shares(top1, look)
    return [
        plot("acceptance", "Tokens made final in one pass, by place in the image", maps_of_steps, MAPS),
        Sides([
            [plot("step-compression", "Step compression over images", compression, OVER_IMAGES)],
            [plot("accepted-by-pass", "Tokens made final, pass by pass", by_pass, BY_PASS)],
        ]),
        Words("How sure is the target?", "heading"),
        plot("top-1", "Top-1 probability of the target, by place in the image", top1_map, TOP1),
        plot("top-1-share", "Share of tokens by the target's top-1 probability", top1_shares, SHARES),
    ]  # fmt: skip


PLAIN = "Grey rows are plain decoding with two seeds: their difference is chance."
IMAGES = "How good the images of each method are, beside what they cost."
REPLAYS = "The same prompts decoded by every method, and a replay of each decoding, pass by pass."
COSTS = "How many passes each method needs, and how long they take."
GAINS = "Where in the image, and when, each method makes many tokens final at once, and how sure the target is there."
VERDICTS = "The verdict on every cell, with its bound, and on which options and models it was reached."
BOUNDS = (
    "A bound says how large a difference is still possible. 'Inconclusive' means that the tests could not have seen an"
    " effect that matters, not that there is none."
)
REQUESTS = (
    "The more images a batch has, the more tokens per second the device makes, and the fewer each image gets: 'alone'"
    " and 'in the batch' are two points of that trade. Seconds of different jobs do not compare."
)
SPEEDS = (
    "Fewer passes help only if a pass costs the same, so compare nodes per pass too. A speed holds for one device and"
    " batch size."
)
CLOUD = (
    f"{PERCENT} intervals, in the colour of the verdict. The grey band is where another seed of plain decoding falls: a"
    " method inside it shows no loss of quality that this many images can detect. The equality tests, which pair images"
    " by prompt, see smaller losses."
)
MAPS = (
    "How many tokens became final in the same pass as the one at each place. A decoder is fast in bright regions, where"
    " the model is sure or neighbours are similar; dark regions cost a pass for nearly every token. Bands along or"
    " across the rows show that drafts depend on the row, as drafts copied from the left or above do."
)
OVER_IMAGES = (
    "Tokens per pass of single images: the median, the middle half (box) and 5 to 95% of them (whiskers). A narrow box"
    " means that all images gain alike; long whiskers to the right mean that a few easy ones raise the mean. A batch is"
    " as slow as its slowest image, at the left end."
)
BY_PASS = (
    "Mean tokens made final per pass, with intervals over images, as long as half of the images take part. A rise"
    " means that later parts of the image are easier given the earlier ones; a drop at the end comes from the window,"
    " which shrinks there."
)
TOP1 = (
    "The largest probability of the sampled distribution at each place, given the tokens before it: the mean over plain"
    " decoding's images, and the first few images with theirs. Drafts are easy to guess in bright places; in dark ones"
    " a draft of one token is nearly always rejected, and grouping similar tokens gains most."
)
SHARES = (
    "The target's largest probability at the tokens of each decoder: median, middle half and 5 to 95%. A lossless"
    " decoder's box is plain decoding's. A box further right means that the decoder prefers tokens of which the target"
    " is surer than along its own samples."
)
