"""Continuous tokens: verdicts, cost, quality and pictures of every cell, and the ratios that accept drafts."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from parity.experiment.schema import HeadSpec
from parity.metrics.estimates import estimate_of
from parity.report import maps, shared_sections, tables
from parity.report.blocks import Entry, Section, Strip, Words, missing, pairs, plain
from parity.report.collect import Gathered
from parity.report.figures import look_of, plot
from parity.report.pictures import thumbnail
from parity.report.settings import read
from parity.report.tables import Column, any_table, mark, measured, only_if, share, show, unmeasured, value
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


def drafted(heading: str, maker: Any, meaning: str = "") -> Column:
    """A column of what has a draft."""
    return Column(heading, only_if("drafted", maker, "no draft"), meaning)


# Of MAR-H on an A100 in 16 bits, guided, ms: the network's arithmetic for a place (684 ms for 256 images), a call of
# the head, which reads 302 MB, and its arithmetic for a row (50 ms for 256 images of 100 steps)
# (docs/explanation/heads.md).
PLACE, CALL, ROW = 2.67, 0.151, 0.00195


def predicted(row: Mapping[str, Any]) -> Entry:
    """Seconds an image would take by the roofline; where calls of a draft model are among the depth, none."""
    counts = [row.get(name) for name in ("target_conditions", "target_head_rows", "depth", "steps")]
    if row.get("drafted") or any(missing(v) for v in counts):
        return Entry("not predicted", "", "none")
    places, rows, depth, rounds = map(float, counts)  # type: ignore[arg-type]
    if read(row["options"]).get("iterations"):  # places drawn at once know the same tokens: one evaluation
        places = rounds
    return Entry(f"{(PLACE * places + max(CALL * (depth - rounds), ROW * rows)) / 1000:.2f} s")


def judged(name: str, digits: int) -> Any:
    """A figure without an error of its own, of a network that a configuration may leave out."""
    return lambda row: unmeasured(estimate_of(row, name)) if missing(row.get(name)) else plain(row[name], digits)


OURS = [
    Column("Right", share("right"), "pictures whose class the Scenes classifier reads"),
    Column("IS", value("is", 3), "of that classifier; biased at few images, so rows of one table alone compare"),
    Column("FID", measured("fid"), "over that classifier's features; likewise"),
]
PUBLISHED = [
    Column("IS", judged("is", 3), "of Inception; biased at few images, so rows of one table alone compare"),
    Column("FID", measured("fid"), "over Inception's features; likewise"),
]
COSTS = [
    drafted("Accepted", value("acceptance", 3), "share of verified drafts that were kept"),
    drafted("Distance", measured("distance"), "squared, of a draft from what the target draws of the same noise"),
    Column("Steps", measured("steps"), "that an image took part in"),
    Column("Depth", measured("depth"), "calls of networks and heads that an image waits for, one after another"),
    Column("Head rows", value("target_head_rows", 3), "steps of walks that the target's head computed, per image"),
    Column("Target evaluations", value("target_conditions", 3), "conditions computed, per image"),
    Column(
        "Predicted",
        predicted,
        "predicted, not measured: these counts by the roofline of MAR-H on an A100 at batch 1, 16 bits: 2.67 ms a"
        " target evaluation, and for the head the larger of 0.151 ms a call and 0.00195 ms a row",
    ),
    drafted("Draft evaluations", value("draft_conditions", 3), "likewise"),
    drafted("Tries", value("tries", 3), "draws of the residual's sampler"),
    drafted("Gave up", value("gave_up", 3), "how often it found none, and the target's own draw stood in"),
    Column("Head", share("head_share"), "its share of the time spent in networks"),
    drafted(
        "Test", share("test_share"), "share of all time for densities and residual draws, as in the paper's Table 8"
    ),
]
SHOWN = {"right", "is", "fid", "acceptance", "distance", "steps", "target_conditions", "draft_conditions", "tries"}
SHOWN |= {"depth", "target_head_rows", "gave_up", "head_share", "test_share", "speedup"}


def columns(rows: list[dict[str, Any]]) -> list[Column]:
    """Quality by our own classifier, or of published models by the networks that are declared."""
    quality = PUBLISHED if any(not missing(row.get("protocol")) for row in rows) else OURS
    return [tables.METHOD, *tables.COST, *quality, *COSTS]


def describe_settings(row: Mapping[str, Any]) -> str:
    """A table's model, batch, and the sampling settings that are not the default."""
    defaults = HeadSpec().model_dump() | {"steps": None, "guidance": None}
    given = {k.replace("_", " "): v for k, v in read(row["sampling"]).items() if v != defaults[k]}
    return f"{row['model']}, {pairs({**given, 'batch': row['batch']}, ' ')}"


def sections(g: Gathered) -> Iterator[Section]:
    yield Section("continuous", "Continuous tokens", shared_sections.verdict_table(g, KIND, VERDICTS), *groups(g))
    if plots := shared_sections.sweep_plots(g, KIND, SWEPT):
        yield Section("continuous-sweeps", "Continuous tokens: by setting", *plots)
    laws = [("Likelihood ratios", ratios(g), RATIOS), ("Law of one token", one_token(g), ONE_TOKEN)]
    body = [b for name, t, caption in laws if len(t) for b in (Words(name, "heading"), any_table(t, caption))]
    given = g.settings.continuous
    why = f": {NOT_FORCED}" if given is not None and not given.forced else ""
    empty = Words(f"no test of one token's law{why}.", "empty")
    yield Section("continuous-laws", "Continuous tokens: laws", *(body or [empty]))


def groups(g: Gathered) -> Iterator[Any]:
    """A table, pictures and the places of kept drafts for each model, settings and batch."""
    cells, every = {c.key: c for c in g.files.cells}, g.rows(KIND)
    for number, (_, own) in enumerate(every.groupby(["model", "sampling", "batch"], sort=False)):
        rows = shared_sections.relabelled(own)
        caption = ". ".join(filter(None, (describe_settings(rows[0]), shared_sections.measured_by(rows))))
        yield show(rows, columns(rows), caption, mark)
        yield from shared_sections.other_figures(KIND, rows, SHOWN)
        for row in rows:
            uris = [thumbnail(picture, 96) for picture in g.files.pixels(cells[row["key"]])[:PICTURES]]
            yield Strip(row["label"] + f" ({row['role']})" * (row["role"] != "method"), uris)
        kept = {row["label"]: g.files.features(cells[row["key"]]) for row in rows if row.get("drafted")}
        shares = {label: (share["by_place"], share["by_cell"]) for label, share in kept.items()}
        drawn = maps.draft_maps(shares, look_of(pd.DataFrame(rows)))
        if drawn is not None:
            yield plot(f"drafts-{number}", "Share of drafts accepted, by place", drawn, PLACES)
    known = every["real_accuracy"].dropna().tolist() if "real_accuracy" in every else []
    if known:
        yield f"The Scenes classifier reads the class of real pictures {100 * known[0]:.0f}% of the time."


def ratios(g: Gathered) -> pd.DataFrame:
    """A line per cell whose layers say the ratios that accept its drafts: medians, and the mean acceptance."""
    result = []
    for label, cell in g.cells(KIND).items():
        if known := g.ratios.get(cell.key):
            middle = {name: known.get(name, {}).get("median") for name in ("single_path", "two_paths", "distance")}
            logs = {f"{name}_log_ratio" if "path" in name else name: value for name, value in middle.items()}
            result.append({"method": label, **logs, "acceptance": known.get("acceptance", {}).get("mean")})
    return pd.DataFrame(result)


def one_token(g: Gathered) -> pd.DataFrame:
    """A line per name of what the tests of one token's law say."""
    rows, result = shared_sections.labelled(g), []
    rows = rows[(rows["kind"] == KIND) & (rows["layer"] == "teacher-forced") & (rows["repeat"] == 0)]
    for label, own in rows.groupby("label", sort=False):
        tests = own[own["decides"].astype(bool)]
        hit = tests.loc[tests["verdict"] == "rejected", "model"].nunique()
        effect = {test: part["effect"].astype(float) for test, part in own.groupby("test")}
        line = {
            "method": label,
            "draws": own["n"].iloc[0],
            "conditions_rejected": f"{hit} of {tests['model'].nunique()}",
        }
        line |= {"largest_energy_distance": effect["energy"].max()}
        result.append(line | {name: float(np.median(effect[test])) for name, test in MOVED.items()})
    return pd.DataFrame(result)


MOVED = {"mean_moved": "mean shift", "spread_ratio": "spread ratio"}
VERDICTS = (
    "The exact tests use mixtures of three tokens whose law is known; they certify the decoder's arithmetic. The"
    " one-token tests use the model: the law of one token, everything before it fixed, against the target's own. A"
    " decoder that is exact on mixtures can be biased on a diffusion head, where the acceptance ratio is a surrogate"
    " (eq. 4). Grey rows are the target alone under another seed."
)
PLACES = "Share of drafts accepted, by place in the order (a mean over 8 places) and by place in the picture."
RATIOS = (
    "At the teacher-forced conditions, medians: log p(Y)/q(Y) of the draft's own trajectories (eq. 2, the paper's"
    " single path), log p(Y_p)/q(Y_q) of two trajectories that share x_0 (eq. 4), squared distance of the two models'"
    " draws; and the share accepted. A logarithm of -50 is a ratio of 2e-22."
)
ONE_TOKEN = (
    "Conditions whose tests reject after Holm's correction, the largest energy distance, how far the mean moved and the"
    " spread changed in the target's deviations (medians over conditions). The control is the target alone under"
    " another seed."
)
