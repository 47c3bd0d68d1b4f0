"""Images: quality and cost of every cell, where decoders gain, and the pictures on which they lose most."""

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from parity.base.errors import ParityError
from parity.report import common, maps, tables, thumbnails
from parity.report.blocks import Grid, Plot, Section, Sides, Words
from parity.report.collect import Gathered
from parity.report.figures import is_plain, plot, speed_quality, styles
from parity.report.format import Entry, missing, number, pairs, plain
from parity.report.settings import read
from parity.report.tables import Column, mark, measured, show, value

KIND = "discrete"
SHOWN = 8  # rows of pictures
COMPETE = 256  # prompts that compete for a place among them


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
IN_TABLES |= {"nodes_per_pass", "nodes_per_token", "speedup", "speedup_single", "network_share"}


def groups(g: Gathered, columns: list[Column], caption: str, others: bool = False) -> Iterator[Any]:
    """A table for each model and sampling settings."""
    every = list(g.rows(KIND).groupby(["model", "sampling"], sort=False))
    for (model, sampling), own in every:
        if len(every) > 1:
            yield Words(f"{model}, {pairs(read(sampling), ' ')}", "heading")
        rows = common.relabelled(own)
        yield show(rows, columns, caption, mark)
        if others:
            yield from common.other_figures(KIND, rows, IN_TABLES)


def sections(g: Gathered) -> Iterator[Section]:
    rows = g.rows(KIND)
    clouds = [
        plot(f"speed-quality-{model}", f"Quality against speed, {model}: a point per method", speed_quality(own), CLOUD)
        for model, own in rows.groupby("model", sort=False)
    ]
    yield Section("image", "Images", common.verdict_table(g, KIND, VERDICTS), *groups(g, QUALITY, QUALITIES), *clouds)
    yield Section("image-acceptance", "Images: where decoders gain", *acceptance(g, rows))
    yield Section("image-pictures", "Images: pictures", *pictures(g))
    yield Section("image-cost", "Images: passes and time", *groups(g, COST, COSTS, others=True))


VERDICTS = (
    "Read the verdict with its bound: no test shows equality, but a bound says how large a difference is still"
    " possible. 'Inconclusive' means that the tests could not have seen an effect of the size that matters, not that"
    " there is none. Grey rows are plain decoding with two seeds: what they differ by is chance."
)
QUALITIES = "What the pictures are like, beside what they cost. Grey rows are plain decoding with two seeds."
COSTS = (
    "Fewer passes help only while a pass costs the same: compare nodes per pass. Nodes per token bounds what a decoder"
    " can gain on a device that is already busy. Speeds do not transfer between devices or batch sizes, and times of"
    " different jobs do not compare: speed is taken within one."
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
    look = styles(rows["label"].tolist(), is_plain(rows).tolist())
    ecdf = plot("step-compression", "Step compression over images", maps.compression_ecdf(steps, look), ECDF)
    by_pass = plot("accepted-by-pass", "Tokens made final, pass by pass", maps.accepted_by_pass(steps, look), BY_PASS)
    return [
        plot("acceptance", "Tokens made final in one pass, by place in the picture", maps.acceptance_maps(steps), MAPS),
        Sides([[ecdf], [by_pass]]),
        Words("How sure is the target?", "heading"),
        *certainty(g, look),
    ]


def certainty(g: Gathered, look: maps.Look) -> list[Plot | Words]:
    """The target's largest probability at each place, along the tokens of plain decoding and of every decoder."""
    cells = g.cells(KIND)
    plain_cells = [(label, cell) for label, cell in cells.items() if cell.role == "reference"]
    top1 = {label: g.files.laws(cell)["top1"] for label, cell in cells.items()}
    label, cell = plain_cells[0]
    same = {name: v for name, v in top1.items() if v.shape[1] == top1[label].shape[1]}
    drawn = maps.top1_maps(same, g.files.pixels(cell), label)
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
ECDF = (
    "The share of images at or below a step compression. A steep curve means that all images gain alike; a long right"
    " tail, that a few easy ones carry the mean. A batch is as slow as its slowest image, at the curve's left end."
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
    "The share of tokens whose likeliest candidate has at most this probability. A lossless decoder's curve lies on"
    " plain decoding's; one to the right of it steers to where the target is surer than its own samples would be."
)


# --- pictures


def picture_columns(g: Gathered) -> tuple[list[thumbnails.Column], list[str]]:
    """The same prompts, cell by cell; those of cells whose pictures have a cosine with their captions."""
    columns, captions = [], []
    for label, cell in g.cells(KIND).items():
        features = g.files.features(cell)
        if "cosine" in features:
            base, model = cell.role != "method", cell.spec["model"]
            pixels, cosine = g.files.pixels(cell)[:COMPETE], features["cosine"][:COMPETE]
            columns.append(thumbnails.Column(label, pixels, cosine, base, model))
            captions = features["captions"].tolist()[:COMPETE]
    lengths = {len(captions), *(len(x) for c in columns for x in (c.pixels, c.cosine))}
    if columns and len(lengths) > 1:
        raise ParityError(f"pictures: columns and captions of {sorted(lengths)} rows; must be as many")
    return columns, captions


def pictures(g: Gathered) -> list[Any]:
    """The prompts on which a decoder falls furthest behind plain decoding, the worst first."""
    columns, captions = picture_columns(g)
    if not columns:
        return [Words("this experiment has no pictures.", "empty")]
    order, worst = thumbnails.worst_first(columns)
    ranking = {"rank": range(1, len(order) + 1), "caption": [captions[i] for i in order], "worst_difference": worst}
    ranking |= {c.label: c.cosine[order] for c in columns}
    rows = []
    for i, w in zip(order[:SHOWN], worst, strict=False):
        row = [(thumbnails.thumbnail(c.pixels[i]), c.label, f"{c.cosine[i]:.3f}") for c in columns]
        rows.append((captions[i], f"{w:+.3f}", row))
    grid = Grid("pictures", [c.label for c in columns], rows, pd.DataFrame(ranking))
    return [WORST.format(shown=len(rows), all=len(captions)), grid]


WORST = (
    "The {shown} of {all} prompts on which a decoder falls furthest behind plain decoding in CLIP-score, the worst"
    " first: nothing is hand-picked. Rows chosen this way flatter the first column, which by chance did well where a"
    " decoder did badly; the second seed of plain decoding, if shown, played no part in the choice and is the fair"
    " comparison. Look for one kind of fault that recurs down a column (wrong counts, smeared texture, repeated parts):"
    " chance faults do not line up."
)
