"""Continuous tokens: verdicts, cost, quality and pictures of every cell, and the ratios that accept drafts."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from parity.experiment.schema import HeadSpec
from parity.metrics.estimates import estimate_of
from parity.report import maps, tables
from parity.report import shared_sections as shared
from parity.report.blocks import Entry, Section, Strip, Words, missing, pairs, records
from parity.report.collect import Gathered
from parity.report.figures import look_of, plot
from parity.report.pictures import thumbnail
from parity.report.settings import read
from parity.report.tables import Column, Maker, Row, explain_missing, measured, plain, share, show, value
from parity.report.verdicts import NOT_FORCED

KIND = "continuous"
PICTURES = 12  # of a cell on the page
DRAFTS = ["acceptance", "distance", "right"]
# Settings that a figure is drawn over where they take three values: its measures, and the paper's table.
SWEPT = {
    "gamma": (["acceptance", "tries", "speedup"], ""),
    "prefill": (["acceptance", "speedup"], ""),
    "tries": (["tries", "gave_up", "speedup"], ""),
    "sampling.temperature": (DRAFTS, ""),
    "sampling.guidance": (DRAFTS, ""),
    "batch": (["acceptance", "speedup"], ""),
    "ahead": (["depth", "target_head_rows", "speedup"], ""),
    "window": (["depth", "target_head_rows", "target_conditions"], ""),
    "theta": (["depth", "target_conditions"], ""),
    "sweeps": (["depth", "target_conditions"], ""),
    "sampling.steps": (["depth"], ""),
    "iterations": (["fid", "right", "speedup"], ""),
}
# Of MAR-H on an A100 in 16 bits, guided, ms: the network's arithmetic for a place (684 ms for 256 images), a call of
# the head, which reads 302 MB, and its arithmetic for a row (50 ms for 256 images of 100 steps)
# (docs/explanation/heads.md).
PLACE, CALL, ROW = 2.67, 0.151, 0.00195


def predicted(row: Row) -> Entry:
    """Predict the seconds an image would take by the roofline; where calls of a draft model are among the depth,
    none."""
    counts = [row.get(name) for name in ("target_conditions", "target_head_rows", "depth", "steps")]
    if row.get("drafted") or any(missing(v) for v in counts):
        return Entry("not predicted", "", "none")
    places, rows, depth, rounds = map(float, counts)  # type: ignore[arg-type]
    if read(row["options"]).get("iterations"):  # places drawn at once know the same tokens: one evaluation
        places = rounds
    return Entry(f"{(PLACE * places + max(CALL * (depth - rounds), ROW * rows)) / 1000:.2f} s")


def drafted(heading: str, maker: Maker, meaning: str = "") -> Column:
    """Make a column of rows that have drafts."""
    return Column(heading, lambda row: maker(row) if row.get("drafted") else Entry("no draft", style="none"), meaning)


def judged(row: Row) -> Entry:
    """Show the Inception score, which has no error, of a network that a configuration may leave out."""
    return explain_missing(estimate_of(row, "is")) if missing(row.get("is")) else plain(row["is"], 3)


OURS = [
    Column("Right", share("right"), "pictures whose class the Scenes classifier reads"),
    Column(
        "Scenes-IS", value("is", 3), "inception score by that classifier; biased at few images: compare within a table"
    ),
    Column("Scenes-FID", "fid", "over that classifier's features; biased at few images: compare within a table"),
]
PUBLISHED = [
    Column("IS", judged, "inception score; biased at few images: compare within a table"),
    Column("FID", "fid", "over Inception's features; biased at few images: compare within a table"),
]
COSTS = [
    drafted("Accepted", value("acceptance", 3), "share of verified drafts that were accepted"),
    drafted("Distance", measured("distance"), "squared, between a draft and the target's draw from the same noise"),
    Column("Steps", "steps", "decoding steps that an image took part in"),
    Column("Depth", "depth", "calls of networks and heads that an image waits for, one after another"),
    Column("Head rows", value("target_head_rows", 3), "denoising steps that the target's head computed, per image"),
    Column("Target evaluations", value("target_conditions", 3), "conditions that the target computed, per image"),
    Column(
        "Predicted",
        predicted,
        "predicted, not measured: these counts by the roofline of MAR-H on an A100 at batch 1, 16 bits: 2.67 ms a"
        " target evaluation, and for the head the larger of 0.151 ms a call and 0.00195 ms a row",
    ),
    drafted("Draft evaluations", value("draft_conditions", 3), "conditions that the draft model computed, per image"),
    drafted("Tries", value("tries", 3), "draws of the residual's sampler"),
    drafted("Gave up", value("gave_up", 3), "how often the sampler found none, and the target's own draw replaced it"),
    Column("Head", share("head_share"), "the head's share of the time spent in networks"),
    drafted("Test", share("test_share"), "share of the time for densities and residual draws (the paper's Table 8)"),
]
SHOWN = {"right", "is", "fid", "acceptance", "distance", "steps", "target_conditions", "draft_conditions", "tries"}
SHOWN |= {"depth", "target_head_rows", "gave_up", "head_share", "test_share", "speedup"}


def sections(g: Gathered) -> Iterator[Section]:
    table = shared.verdict_table(g, KIND, VERDICTS)
    yield Section("continuous", "Continuous tokens: methods", VECTORS, table, *groups(g))
    if plots := shared.sweep_plots(g, KIND, SWEPT):
        yield Section("continuous-sweeps", "Continuous tokens: by setting", SWEEPS, *plots)
    body: list[Any] = []
    for title, frame, caption in (("Likelihood ratios", ratios(g), RATIOS), ("Law of one token", one_token(g), MOVES)):
        columns = [Column(name.replace("_", " ").capitalize(), value(name)) for name in map(str, frame)]
        body += [Words(title, "heading"), show(records(frame), columns, caption)] if len(frame) else []
    why = f": {NOT_FORCED}" if g.settings.continuous is not None and not g.settings.continuous.forced else ""
    body = body or [Words(f"no test of one token's law{why}.", "empty")]
    yield Section("continuous-laws", "Continuous tokens: laws", LAWS, *body, folded=True)


def groups(g: Gathered) -> Iterator[Any]:
    """Show a table, pictures and the places of accepted drafts for each model, settings and batch."""
    cells, every = {c.key: c for c in g.files.cells}, g.rows(KIND)
    defaults = HeadSpec().model_dump() | {"steps": None, "guidance": None}
    for number, (_, own) in enumerate(every.groupby(["model", "sampling", "batch"], sort=False)):
        rows = shared.label_rows(own)
        first, protocol = rows[0], shared.name_protocol(rows)
        chosen = {k.replace("_", " "): v for k, v in read(first["sampling"]).items() if v != defaults[k]}
        caption = f"{first['model']}, {pairs({**chosen, 'batch': first['batch']}, ' ')}"
        quality = PUBLISHED if protocol else OURS
        columns = [tables.METHOD, *tables.COST, *quality, *COSTS]
        yield show(rows, columns, f"{caption}. {protocol}" if protocol else caption)
        yield from shared.show_other_figures(KIND, rows, SHOWN)
        for row in rows:
            uris = [thumbnail(picture, 96) for picture in g.files.pixels(cells[row["key"]], PICTURES)]
            yield Strip(row["label"] + f" ({row['role']})" * (row["role"] != "method"), uris)
        features = {row["label"]: g.files.features(cells[row["key"]]) for row in rows if row.get("drafted")}
        shares = {label: (own["by_place"], own["by_cell"]) for label, own in features.items()}
        drawn = maps.draft_maps(shares, look_of(pd.DataFrame(rows)))
        if drawn is not None:
            yield plot(f"drafts-{number}", "Share of drafts accepted, by place", drawn, PLACES)
    known = every["real_accuracy"].dropna().tolist() if "real_accuracy" in every else []
    if known:
        yield f"The Scenes classifier reads the class of real pictures {100 * known[0]:.0f}% of the time."


def ratios(g: Gathered) -> pd.DataFrame:
    """Show a line per cell whose layers record the ratios that accept its drafts: medians, and the mean acceptance."""
    result = []
    for label, cell in g.cells(KIND).items():
        if known := g.ratios.get(cell.key):
            middle = {name: known.get(name, {}).get("median") for name in ("single_path", "two_paths", "distance")}
            logs = {f"{name}_log_ratio" if "path" in name else name: value for name, value in middle.items()}
            result.append({"method": label, **logs, "acceptance": known.get("acceptance", {}).get("mean")})
    return pd.DataFrame(result)


def one_token(g: Gathered) -> pd.DataFrame:
    """Show a line per name of what the tests of one token's law found."""
    rows, result = shared.labelled(g), []
    rows = rows[(rows["kind"] == KIND) & (rows["layer"] == "teacher-forced") & (rows["repeat"] == 0)]
    for label, own in rows.groupby("label", sort=False):
        tests = own[own["decides"].astype(bool)]
        hit = tests.loc[tests["verdict"] == "rejected", "model"].nunique()
        effect = {test: part["effect"].astype(float) for test, part in own.groupby("test")}
        line = {"method": label, "draws": own["n"].iloc[0]}
        line |= {"conditions_rejected": f"{hit} of {tests['model'].nunique()}"}
        line |= {"largest_energy_distance": effect["energy"].max()}
        result.append(line | {name: float(np.median(effect[test])) for name, test in MOVED.items()})
    return pd.DataFrame(result)


MOVED = {"mean_moved": "mean shift", "spread_ratio": "spread ratio"}
VECTORS = "For each method on continuous tokens its verdict, its quality, its cost and its pictures."
SWEEPS = "How acceptance, cost and quality change with one setting of a method."
LAWS = "Is the law of one token the target's, and what are the likelihood ratios that accept drafts?"
VERDICTS = (
    "The exact tests use mixtures of three tokens whose law is known: they check the decoder's arithmetic. The"
    " one-token tests use the model: they compare the law of one token, everything before it fixed, with the target's"
    " own. A decoder that is exact on mixtures can be biased on a diffusion head, where the acceptance ratio is a"
    " surrogate (eq. 4). Grey rows are the target alone under another seed."
)
PLACES = "Share of drafts accepted, by place in the order (a mean over 8 places) and by place in the picture."
RATIOS = (
    "Medians at the teacher-forced conditions: log p(Y)/q(Y) of the draft's own trajectories (eq. 2, the paper's single"
    " path), log p(Y_p)/q(Y_q) of two trajectories that share x_0 (eq. 4), the squared distance between the draws of"
    " the two models, and the share of drafts accepted. A logarithm of -50 is a ratio of 2e-22."
)
MOVES = (
    "In how many conditions the tests reject after Holm's correction, the largest energy distance, and how far the mean"
    " moved and the spread changed, in standard deviations of the target (medians over conditions). The control is the"
    " target alone under another seed."
)
