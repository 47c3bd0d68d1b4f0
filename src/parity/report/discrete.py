"""Images: quality and cost of every cell, where decoders gain, and the pictures on which they lose most."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from parity.experiment import weights
from parity.experiment.cells import Cell
from parity.metrics.estimates import Estimate
from parity.report import maps, pictures, shared_sections, tables
from parity.report.blocks import Details, Entry, Plot, Section, Sides, Words, missing, number, pairs, percent, plain
from parity.report.collect import Gathered
from parity.report.figures import look_of, plot, speed_quality
from parity.report.settings import read
from parity.report.tables import Column, mark, measured, show, value

KIND = "discrete"


def perplexity(row: Mapping[str, Any]) -> Entry:
    """With the share of tokens that the target gives no probability."""
    entry = measured("perplexity")(row)
    if missing(row.get("excluded")) or not row["excluded"] > 0:
        return entry
    return entry._replace(detail=f"{entry.detail} {number(100 * row['excluded'], 2)}% of tokens excluded".strip())


def forward(row: Mapping[str, Any]) -> Entry:
    """Median time of a pass, and the quartiles over batches."""
    median, low, high = (row.get(f"ms_per_forward_{end}") for end in ("median", "q1", "q3"))
    entry = plain(row.get("ms_per_forward") if missing(median) else median, 3)
    return entry if missing(low) else entry._replace(detail=f"{number(low, 3)} to {number(high, 3)}")


def batch(row: Mapping[str, Any]) -> Entry:
    entry = plain(row.get("batch"))
    return entry if missing(row.get("batches")) else entry._replace(detail=f"{int(row['batches'])} timed")


QUALITY = [
    tables.METHOD,
    *tables.COST,
    Column("CLIP-score", measured("clip_score"), "mean cosine, ± standard error"),
    Column("FID", measured("fid"), "± standard error over images; biased by n, so only rows of equal n compare"),
    Column("KID ×1000", measured("kid", 1000), "± standard error"),
    Column("Precision", measured("precision"), "± standard error"),
    Column("Recall", measured("recall"), "± standard error"),
    Column("Perplexity", perplexity, "of the tokens under the target; excluded: those it gives no probability"),
]
COST = [
    tables.METHOD,
    Column("NFE", measured("nfe"), "target passes per image, ± standard error"),
    *tables.COST[1:],
    *tables.CLOCK,
    Column("Step compression", measured("step_compression"), "tokens per pass, 95% bootstrap interval"),
    Column("Nodes per pass", measured("nodes_per_pass"), "tokens that the target evaluates in a pass"),
    Column("Nodes per token", measured("nodes_per_token"), "tokens evaluated per token kept: 1 is no waste"),
    Column("ms per forward", forward, "time in a batch / its passes: median and quartiles over this job's batches"),
    Column("Batch", batch, "images decoded at once, and the number of batches timed"),
    Column("Device", value("device")),
    Column("Dtype", value("dtype")),
]
IN_TABLES = {"clip_score", "fid", "kid", "precision", "recall", "perplexity", "excluded", "nfe", "step_compression"}
IN_TABLES |= {"nodes_per_pass", "nodes_per_token", "speedup", "speedup_single", "network_share", "acceptance_length"}
SLOTS = 8  # of a pass that have a column


def slot(j: int) -> Column:
    """The share of drafts accepted in slot j of a pass, given that the slot before was."""

    def entry(row: Mapping[str, Any]) -> Entry:
        shares = json.loads(row["acceptance_by_slot"])
        return percent(Estimate(shares[j - 1])) if j <= len(shares) else tables.NONE

    return Column(f"Slot {j}", entry, "share accepted, if the slot before was" if j == 1 else "")


def serving(rows: list[dict[str, Any]]) -> Iterator[Details]:
    """Acceptance slot by slot, and what a request and a device get, of the methods whose records say it."""
    own = [row for row in rows if not missing(row.get("acceptance_by_slot"))]
    if own:
        deepest = max(len(json.loads(row["acceptance_by_slot"])) for row in own)
        columns = [
            tables.METHOD,
            Column("Acceptance length", measured("acceptance_length"), "tokens that a pass makes final"),
            *map(slot, range(1, min(deepest, SLOTS) + 1)),
            Column("Alone", value("request_tokens_per_second_single", 3), "tokens per second, decoded alone"),
            Column("In the batch", measured("request_tokens_per_second"), "tokens per second of one image of it"),
            Column("Whole batch", measured("tokens_per_second"), "tokens per second of all of them"),
            Column("Batch", batch, "images decoded at once"),
            Column("First token", value("first_token_seconds", 3), "seconds to a batch's first tokens: the median"),
        ]
        yield Details("Acceptance by slot, and speed of a request", [show(own, columns, SERVING, mark)])


def groups(g: Gathered, columns: list[Column], caption: str, others: bool = False) -> Iterator[Any]:
    """A table for each model and sampling settings."""
    every = list(g.rows(KIND).groupby(["model", "sampling"], sort=False))
    for (model, sampling), own in every:
        if len(every) > 1:
            yield Words(f"{model}, {pairs(read(sampling), ' ')}", "heading")
        rows = shared_sections.relabelled(own)
        yield show(rows, columns, f"{caption} {shared_sections.measured_by(rows)}".strip(), mark)
        if others:
            yield from serving(rows)
            yield from shared_sections.other_figures(KIND, rows, IN_TABLES)


def sections(g: Gathered) -> Iterator[Section]:
    rows = g.rows(KIND)
    clouds = [
        plot(f"speed-quality-{model}", f"Quality against speed, {model}: a point per method", speed_quality(own), CLOUD)
        for model, own in rows.groupby("model", sort=False)
    ]
    yield Section("image", "Images", *groups(g, QUALITY, QUALITIES), *pictures.alike(g), *clouds)
    yield Section("image-pictures", "Images: pictures and replay", *pictures.blocks(g))
    yield Section("image-cost", "Images: passes and time", *groups(g, COST, COSTS, others=True))
    yield Section("image-acceptance", "Images: where decoders gain", *acceptance(g, rows))
    yield Section("image-verdicts", "Images: verdicts in full", shared_sections.verdict_table(g, KIND, VERDICTS))


VERDICTS = (
    "A verdict with its bound says how large a difference is still possible. 'Inconclusive' means that the tests could"
    " not have seen an effect that matters, not that there is none. Grey rows are plain decoding with two seeds; their"
    " difference is chance."
)
QUALITIES = "Quality of the pictures beside their cost. Grey rows are plain decoding with two seeds."
SERVING = (
    "The more images a batch has, the more tokens a second the device makes and the fewer each image gets: alone and in"
    " the batch are two points of that trade. Seconds are of one job and do not compare between jobs."
)
COSTS = (
    "Passes and time of each method. Fewer passes help only if a pass costs the same, so compare nodes per pass too. A"
    " speed holds for one device and batch size, and compares with plain decoding in the same job."
)
CLOUD = (
    "Points with 95% intervals; further right is faster, and the grey band is where another seed of plain decoding"
    " falls. Inside it a decoder costs nothing that this many images can show; the equality tests pair images by prompt"
    " and see finer. On the left speed is counted in passes, on the right it is measured: a method that moves right on"
    " the left panel alone pays for its fewer passes with slower ones."
)


# --- where decoders gain


def acceptance(g: Gathered, rows: pd.DataFrame) -> list[Any]:
    cells = g.cells(KIND)
    steps = {label: g.files.shard(cell).step for label, cell in cells.items()}
    look = look_of(rows)
    drawn = maps.acceptance_maps(steps, {label: width(g, cell) for label, cell in cells.items()})
    images = plot("step-compression", "Step compression over images", maps.compression(steps, look), OVER_IMAGES)
    by_pass = plot("accepted-by-pass", "Tokens made final, pass by pass", maps.accepted_by_pass(steps, look), BY_PASS)
    return [
        plot("acceptance", "Tokens made final in one pass, by place in the picture", drawn, MAPS),
        Sides([[images], [by_pass]]),
        Words("How sure is the target?", "heading"),
        *certainty(g, look),
    ]


def width(g: Gathered, cell: Cell) -> int:
    """Tokens in a row of a cell's pictures."""
    assert g.settings.image is not None
    return weights.places_of(weights.models(g.settings, "discrete")[cell.spec["model"]]).width


def certainty(g: Gathered, look: maps.Look) -> list[Plot | Words]:
    """The target's largest probability at each place, along the tokens of plain decoding and of every decoder."""
    cells = g.cells(KIND)
    plain_cells = [(label, cell) for label, cell in cells.items() if cell.role == "reference"]
    top1 = {label: g.files.laws(cell)["top1"] for label, cell in cells.items()}
    label, cell = plain_cells[0]
    same = {name: v for name, v in top1.items() if v.shape[1] == top1[label].shape[1]}
    drawn = maps.top1_maps(same, g.files.pixels(cell), label, width(g, cell))
    return [
        plot("top-1", "Top-1 probability of the target, by place in the picture", drawn, TOP1),
        plot("top-1-share", "Share of tokens by the target's top-1 probability", maps.top1_shares(top1, look), SHARES),
    ]


MAPS = (
    "How many tokens became final together with the one at each place, in the picture's own layout. A decoder runs"
    " quickly through bright regions, where the model is sure or drafts come from similar neighbours; dark ones cost a"
    " pass for nearly every token. Bands along or across the lines betray a dependence on the line itself, as with"
    " drafts copied from the left or above."
)
OVER_IMAGES = (
    "Tokens per pass of single images: the median, the middle half (thick) and 5 to 95% of them (thin). A narrow line"
    " means that all images gain alike; a long one to the right, that a few easy ones carry the mean. A batch is as"
    " slow as its slowest image, at the left end."
)
BY_PASS = (
    "Mean tokens made final per pass as decoding goes on, with 95% intervals over images, as long as half of them take"
    " part. A climb shows that later parts of the picture are easier given the earlier ones; a drop at the end is the"
    " window that closes."
)
TOP1 = (
    "The probability of the likeliest token under the law that was sampled, at each place given the tokens before it:"
    " the mean of plain decoding's images, and the first few with their pictures. Any drafter can guess what stands in"
    " bright places; in dark ones a point draft is nearly always rejected, and grouping look-alike tokens gains most."
)
SHARES = (
    "How probable the target's likeliest candidate is at the places of each decoder's tokens: median, middle half and 5"
    " to 95%. A lossless decoder's line is plain decoding's; one further right steers to where the target is surer than"
    " its own samples would be."
)
