"""Continuous tokens: verdicts, cost, quality and images of every cell, and the ratios that accept drafts."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from parity.experiment.schema import HeadSpec
from parity.metrics.estimates import estimate_of
from parity.report import maps, tables
from parity.report import shared_sections as shared
from parity.report.blocks import Entry, Section, Strip, Words, format_settings, is_missing, list_records
from parity.report.collect import Gathered
from parity.report.figures import choose_look, plot
from parity.report.images import make_thumbnail
from parity.report.settings import SummaryRow, parse_settings
from parity.report.tables import Column, show_measured, show_share, show_table, show_value
from parity.report.verdicts import NOT_FORCED

KIND = "continuous"
SHOWN_IMAGES = 12  # images of each cell that are shown
DRAFTS = ["acceptance", "distance", "right"]
# A figure is drawn over each of these settings that takes three values: its measures, and the paper's table.
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


def predict_seconds(row: SummaryRow) -> Entry:
    """Predict the seconds of an image with MAR-H on an A100 from PLACE, CALL and ROW; not with a draft model."""
    counts = [row.get(name) for name in ("target_conditions", "target_head_rows", "depth", "steps")]
    if row.get("drafted") or any(is_missing(v) for v in counts):
        return Entry("not predicted", "", "none")
    places, rows, depth, rounds = map(float, counts)  # type: ignore[arg-type]
    if parse_settings(row["options"]).get("iterations"):  # positions drawn at once share one evaluation of the target
        places = rounds
    return Entry(f"{(PLACE * places + max(CALL * (depth - rounds), ROW * rows)) / 1000:.2f} s")


def make_draft_column(heading: str, maker: tables.Maker, meaning: str = "") -> Column:
    """Make a column that shows what `maker` makes of a row that has drafts, "no draft" for others."""
    return Column(heading, lambda row: maker(row) if row.get("drafted") else Entry("no draft", style="none"), meaning)


def show_inception_score(row: SummaryRow) -> Entry:
    """Show the Inception score, of one run without an error; the reason if it is missing."""
    if is_missing(row.get("is")):
        return tables.explain_missing(estimate_of(row, "is"))
    return tables.show_runs(row, "is") or tables.show_number(row["is"], 3)


OURS = [
    Column("Right", show_share("right"), "images whose class the Scenes classifier reads"),
    Column(
        "Scenes-IS",
        show_inception_score,
        "inception score by that classifier; biased at few images: compare within a table",
    ),
    Column("Scenes-FID", "fid", "over that classifier's features; biased at few images: compare within a table"),
]
PUBLISHED = [
    Column("IS", show_inception_score, "inception score; biased at few images: compare within a table"),
    Column("FID", "fid", "over Inception's features; biased at few images: compare within a table"),
]
COSTS = [
    make_draft_column("Accepted", show_value("acceptance", 3), "share of verified drafts that were accepted"),
    make_draft_column(
        "Distance", show_measured("distance"), "squared, between a draft and the target's draw from the same noise"
    ),
    make_draft_column(
        "Ratio", show_value("two_paths_ratio", 3), "mean likelihood ratio of verified drafts (the paper's Table 6)"
    ),
    Column("Steps", "steps", "decoding steps that an image took part in"),
    Column("Depth", "depth", "calls of networks and heads that an image waits for, one after another"),
    Column(
        "Head rows", show_value("target_head_rows", 3), "denoising steps that the target's head computed, per image"
    ),
    Column("Target evaluations", show_value("target_conditions", 3), "conditions that the target computed, per image"),
    Column(
        "Predicted",
        predict_seconds,
        "predicted, not measured: these counts by the roofline of MAR-H on an A100 at batch 1, 16 bits: 2.67 ms a"
        " target evaluation, and for the head the larger of 0.151 ms a call and 0.00195 ms a row",
    ),
    make_draft_column(
        "Draft evaluations", show_value("draft_conditions", 3), "conditions that the draft model computed, per image"
    ),
    make_draft_column("Tries", show_value("tries", 3), "draws of the residual's sampler"),
    make_draft_column(
        "Gave up", show_value("gave_up", 3), "how often the sampler found none, and the target's own draw replaced it"
    ),
    Column("Head", show_share("head_share"), "the head's share of the time spent in networks"),
    make_draft_column(
        "Test", show_share("test_share"), "share of the time for densities and residual draws (the paper's Table 8)"
    ),
]
SHOWN = {"right", "is", "fid", "acceptance", "distance", "steps", "target_conditions", "draft_conditions", "tries"}
SHOWN |= {"depth", "target_head_rows", "gave_up", "head_share", "test_share", "speedup", "two_paths_ratio"}


def make_sections(g: Gathered) -> Iterator[Section]:
    table = shared.show_verdicts(g, KIND, VERDICTS)
    yield Section("continuous", "Continuous tokens: methods", VECTORS, *describe_baseline(g), table, *show_groups(g))
    if plots := shared.draw_sweep_plots(g, KIND, SWEPT):
        yield Section("continuous-sweeps", "Continuous tokens: by setting", SWEEPS, *plots)
    body: list[Any] = []
    ratios = ("Likelihood ratios", list_ratios(g), RATIOS)
    for title, frame, caption in (ratios, ("Distribution of one token", list_one_token_tests(g), MOVES)):
        columns = [Column(name.replace("_", " ").capitalize(), show_value(name)) for name in map(str, frame)]
        body += [Words(title, "heading"), show_table(list_records(frame), columns, caption)] if len(frame) else []
    reason = f": {NOT_FORCED}" if g.settings.continuous is not None and not g.settings.continuous.forced else ""
    body = body or [Words(f"no test of one token's distribution{reason}.", "empty")]
    yield Section("continuous-probs", "Continuous tokens: distributions", DISTRIBUTIONS, *body, folded=True)


def describe_baseline(g: Gathered) -> list[str]:
    """Say what takes the place of plain decoding as the baseline, and what follows; [] where nothing does."""
    name = g.find_baseline(KIND)
    return [BASELINE.format(name=name)] if name else []


def show_groups(g: Gathered) -> Iterator[Any]:
    """Yield for each model, sampling settings and batch a table, images, and maps of where drafts were accepted; then
    how well the classifier reads real images."""
    cells = {c.key: c for c in g.files.cells}
    all_rows = g.select_rows(KIND)
    defaults = HeadSpec().model_dump() | {"steps": None, "guidance": None}
    for number, (_, group) in enumerate(all_rows.groupby(["model", "sampling", "batch"], sort=False)):
        rows = shared.label_rows(group)
        first = rows[0]
        protocol = shared.name_protocol(rows)
        chosen = {k.replace("_", " "): v for k, v in parse_settings(first["sampling"]).items() if v != defaults[k]}
        caption = f"{first['model']}, {format_settings({**chosen, 'batch': first['batch']}, ' ')}"
        quality = PUBLISHED if protocol else OURS
        columns = [tables.METHOD, *tables.COST, *quality, *COSTS]
        yield show_table(rows, columns, f"{caption}. {protocol}" if protocol else caption)
        yield from shared.show_other_figures(KIND, rows, SHOWN)
        for row in rows:
            uris = [make_thumbnail(image, 96) for image in g.files.read_pixels(cells[row["key"]], SHOWN_IMAGES)]
            yield Strip(row["label"] + f" ({row['role']})" * (row["role"] != "method"), uris)
        features = {row["label"]: g.files.read_features(cells[row["key"]]) for row in rows if row.get("drafted")}
        shares = {label: (arrays["by_place"], arrays["by_cell"]) for label, arrays in features.items()}
        drawn = maps.draw_draft_maps(shares, choose_look(pd.DataFrame(rows)))
        if drawn is not None:
            yield plot(f"drafts-{number}", "Share of drafts accepted, by place", drawn, PLACES)
    accuracies = all_rows["real_accuracy"].dropna().tolist() if "real_accuracy" in all_rows else []
    if accuracies:
        yield f"The Scenes classifier reads the class of real images {100 * accuracies[0]:.0f}% of the time."


def list_ratios(g: Gathered) -> pd.DataFrame:
    """Tabulate medians of log likelihood ratios and distance, logarithms of mean ratios, and mean acceptance."""
    result = []
    for label, cell in g.map_cells(KIND).items():
        if cell_ratios := g.ratios.get(cell.key):
            names = ("single_path", "two_paths", "distance")
            medians = {name: cell_ratios.get(name, {}).get("median") for name in names}
            logs = {f"{name}_log_ratio" if "path" in name else name: value for name, value in medians.items()}
            means = {f"log_mean_{name}": cell_ratios.get(name, {}).get("log_mean") for name in names[:2]}
            share = cell_ratios.get("acceptance", {}).get("mean")
            result.append({"method": label, **logs, **means, "acceptance": share})
    return pd.DataFrame(result)


def list_one_token_tests(g: Gathered) -> pd.DataFrame:
    """Tabulate what the teacher-forced tests of one token's distribution found, without repetitions."""
    result = []
    rows = shared.label_tests(g)
    rows = rows[(rows["kind"] == KIND) & (rows["layer"] == "teacher-forced") & (rows["repeat"] == 0)]
    for label, group in rows.groupby("label", sort=False):
        tests = group[group["decides"].astype(bool)]
        n_rejected = tests.loc[tests["verdict"] == "rejected", "model"].nunique()
        effect = {test: test_rows["effect"].astype(float) for test, test_rows in group.groupby("test")}
        line = {"method": label, "draws": group["n"].iloc[0]}
        line |= {"conditions_rejected": f"{n_rejected} of {tests['model'].nunique()}"}
        line |= {"largest_energy_distance": effect["energy"].max()}
        result.append(line | {name: float(np.median(effect[test])) for name, test in MOVED.items()})
    return pd.DataFrame(result)


MOVED = {"mean_moved": "mean shift", "spread_ratio": "spread ratio"}
VECTORS = "For each method on continuous tokens its verdict, its quality, its cost and its images."
SWEEPS = "How acceptance, cost and quality change with one setting of a method."
DISTRIBUTIONS = "Is the distribution of one token the target's, and what are the likelihood ratios that accept drafts?"
VERDICTS = (
    "The exact tests use mixtures of three tokens whose distribution is known: they check the decoder's arithmetic. The"
    " one-token tests use the model: they compare the distribution of one token, everything before it fixed, with the"
    " target's own. A decoder that is exact on mixtures can be biased on a diffusion head, where the acceptance ratio"
    " is a surrogate (eq. 4). Grey rows are the target alone under another seed."
)
BASELINE = (
    "The baseline is {name}, in place of plain decoding with one token a pass: speeds, counts of calls and changes of"
    " quality are relative to it, also where this page says plain decoding. Tokens that it draws in one pass do not see"
    " each other, so its images need not follow the target's distribution, and a change of quality may be the"
    " baseline's. Verdicts are of the target's distribution, one token a pass; the baseline itself is not tested."
)
PLACES = "Share of drafts accepted, by place in the order (a mean over 8 places) and by place in the image."
RATIOS = (
    "Medians at the teacher-forced conditions: log p(Y)/q(Y) of the draft's own trajectories (eq. 2, the paper's single"
    " path), log p(Y_p)/q(Y_q) of two trajectories that share x_0 (eq. 4), the squared distance between the draws of"
    " the two models, and the share of drafts accepted. Then the logarithms of the means of both ratios, which the"
    " paper's Table 6 prints. A logarithm of -50 is a ratio of 2e-22."
)
MOVES = (
    "In how many conditions the tests reject after Holm's correction, the largest energy distance, and how far the mean"
    " moved and the spread changed, in standard deviations of the target (medians over conditions). The control is the"
    " target alone under another seed."
)
