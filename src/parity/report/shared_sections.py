"""Sections that every kind of model has a part in: study figures, published figures, tests, environment."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pandas as pd
import yaml

from parity.experiment.checks import make_slug
from parity.experiment.schema import FigureSpec
from parity.experiment.study import format_label, list_speeds, metrics, parse_source
from parity.metrics.estimates import PERCENT
from parity.metrics.export import FIGURES
from parity.report import study_figures, tables
from parity.report.blocks import (
    Details,
    Entry,
    Plot,
    Section,
    Table,
    Terms,
    Words,
    format_settings,
    format_text,
    is_missing,
    list_records,
    pack,
)
from parity.report.collect import Gathered, label_measures, list_declared, list_studies
from parity.report.figures import draw_extra, encode_figure, plot
from parity.report.published import RATIOS
from parity.report.settings import make_labels, parse_settings
from parity.report.tables import NONE, Column, format_number, show_table, show_text, show_value

COST = ("passes", "speed")  # metrics of passes and time; those of other modules are of quality
MEASURED = "measured"  # the unit of figures that depend on a machine's load, and do not compare between jobs


# --- blocks that the sections of each kind share


def show_verdicts(g: Gathered, kind: str, caption: str) -> Table | Words:
    """Show a table of all verdicts on a kind of model, a row for each name that its tests are judged under."""
    cells = {r["key"]: {name: r[name] for name in ("key", "role", "seed")} for r in list_records(g.summary)}
    rows = [v | cells.get(v["key"], {"key": ""}) for v in list_records(g.verdicts) if v["kind"] == kind]
    if not rows:
        return Words("no equality test.", "empty")
    return show_table(rows, tables.make_verdict_columns(g.settings.equality.alpha), caption)


def label_rows(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """Convert rows of one table to dicts whose `label` says what differs among them alone (`settings.make_labels`)."""
    records = list_records(rows)
    return [row | {"label": name} for row, name in zip(records, make_labels(records), strict=True)]


def split_figures(kind: str) -> tuple[set[str], set[str]]:
    """Split the names of the figures of a kind of model into those of quality, and those of passes and speed."""
    cost = set(list_speeds(kind)).union(*(metrics(kind).get(module, ()) for module in COST))
    return set(FIGURES | list_declared(kind)) - cost, cost


def show_other_figures(kind: str, rows: list[dict[str, Any]], shown: set[str]) -> Iterator[Details]:
    """Yield a table of the measured figures that are not in `shown`, but times, which do not compare between jobs."""
    meanings = FIGURES | list_declared(kind)
    measured = {n.removesuffix("_why") for row in rows for n in row if not is_missing(row[n])} - shown
    names = [name for name, meaning in meanings.items() if name in measured and meaning[1] != MEASURED]
    if names:
        columns = [tables.METHOD, *(Column(format_label(*meanings[name]), name) for name in names)]
        yield Details("Other figures", [show_table(rows, columns, "What else was measured.")])


def name_protocol(rows: list[dict[str, Any]]) -> str:
    """Name the protocol by which a published model's images were measured, with its digest."""
    protocols = {row["protocol"] for row in rows if not is_missing(row.get("protocol"))}
    return f"Measured by protocol {', '.join(sorted(protocols))}." if protocols else ""


# --- the section of study figures


def make_study_sections(g: Gathered) -> list[Section]:
    body = [draw_study(g, kind, f, g.select_rows(kind)) for kind in g.kinds for f in list_studies(g.settings, kind)]
    return [Section("study", "Study", STUDY, *body)] if body else []


def draw_study(g: Gathered, kind: str, figure: FigureSpec, rows: pd.DataFrame, prefix: str = "study") -> Plot | Words:
    """Draw a study figure over cells of one kind, with its paper's numbers; a sentence if no cell belongs to it."""
    labels = label_measures(kind)
    drawn = study_figures.draw_study(figure, rows, g.papers[g.papers["kind"] == kind], labels)
    if drawn is None:
        return Words(f"{figure.title}: this experiment has no cell for it.", "empty")
    printed = set(drawn[1].loc[drawn[1]["source"] == "paper", "measure"])
    silent = "; ".join(labels.get(y, y) for y in figure.y if y not in printed)
    caption = figure.reading
    if printed:
        caption += f" {BOTH.format(paper=figure.paper)}"
        caption += f" The paper prints no numbers for {silent}." if silent else ""
        if "speedup" in printed and (baseline := g.find_baseline(kind)):
            caption += f" Speeds measured here are relative to {baseline}, those of the paper to one token a pass."
    elif figure.paper:
        caption += f" Marks are measured here, with {PERCENT} intervals; the paper prints no numbers ({figure.paper})."
    return plot(f"{prefix}-{make_slug(figure.title)}", figure.title, drawn, caption.strip(), figure.title)


def draw_sweep_plots(g: Gathered, kind: str, swept: Mapping[str, tuple[list[str], str]]) -> list[Plot | Words]:
    """Draw a figure over each setting in `swept` (its measures, and the paper's table or "") that takes three values or
    more, except those that the study shows."""
    asked = {figure.x for figure in list_studies(g.settings, kind)}
    figures = study_figures.find_sweeps(g.select_rows(kind), swept, asked)
    return [draw_study(g, kind, figure, rows, f"sweep-{kind}") for figure, rows in figures]


STUDY = "The figures that this experiment was made for: what was measured here, beside what the papers print."
BOTH = (
    f"Filled marks and whole lines were measured here, with {PERCENT} intervals. Hollow marks and broken lines are the"
    " numbers of {paper}, on another model and other prompts: compare the shapes of the lines, not their heights."
)


# --- the section of published figures


def show_published(rows: pd.DataFrame, names: Mapping[str, str], caption: str) -> Table:
    """Show the papers' figures beside ours, "n/a" where one is missing. names: labels of our cells by key."""

    def show_with_settings(name: str, detail: str) -> Callable[[Mapping[str, Any]], Entry]:
        """Make a function that shows the text in column `name`, beneath it the settings in the JSON of `detail`."""
        return lambda r: Entry(format_text(r[name], "any"), format_settings(parse_settings(r[detail]), ": "), "text")

    columns = [
        Column("Source", show_text("table", "paper")),
        Column(
            "Their model", show_with_settings("model", "conditions"),
            "the paper's model, and what it states of the conditions",
        ),
        Column(
            "Method", show_with_settings("method", "options"),
            "the method, and options that the paper states; others are the defaults",
        ),
        Column("Measure", lambda r: Entry(r["metric"].replace("_", " ")), "CLIP-scores are cosines"),
        Column("Published", show_value("value", absent=NONE)),
        Column("Ours", show_value("ours", absent=NONE)),
        *(column for name, column in FROM_PLAIN.items() if rows[name].notna().any()),
        Column("Our cell", lambda r: Entry(names.get(r["key"], r["key"]), r["key"], "text")),
    ]  # fmt: skip
    return show_table(list_records(rows), columns, caption)


FROM_PLAIN = {
    "change": Column(
        "Published, from plain", show_value("change", absent=NONE),
        "the paper's figure minus its own plain decoding in the same table",
    ),
    "our_change": Column(
        "Ours, from plain", show_value("our_change", absent=NONE),
        "our figure minus our plain decoding under the same settings",
    ),
    "difference": Column(
        "Difference", show_value("difference", 3, NONE),
        "ours minus theirs, where both decode the same network: of ratios themselves, of other figures the changes",
    ),
}  # fmt: skip


def select_worth_showing(g: Gathered) -> pd.Series:
    """Mark the published rows shown at once: those of the study's tables, or else those that compare with ours."""
    rows = g.published
    sources = [parse_source(f.paper) for kind in g.kinds for f in list_studies(g.settings, kind) if f.paper]
    if sources:
        shown = {(paper, table) for paper, table_names in sources for table in table_names}
        pairs = zip(rows["paper"], rows["table"], strict=True)
        return pd.Series([pair in shown for pair in pairs], index=rows.index, dtype=bool)
    base = set(g.summary.loc[g.summary["role"] == "reference", "method"])
    compares = rows["change"].notna() | (rows["metric"].isin(RATIOS) & rows["ours"].notna())
    return compares & ~rows["method"].isin(base)


def make_published_section(g: Gathered) -> Section:
    names = dict(zip(g.summary["key"], g.summary["label"], strict=True))
    first = select_worth_showing(g)
    body: list[Any] = []
    if first.any():
        body.append(show_published(g.published[first], names, PUBLISHED))
    if not first.all():
        caption = "Other tables, baselines, and figures of a device or network too."
        full_table = show_published(g.published, names, caption)
        body.append(Details(f"All {len(first)} published figures of these methods", [full_table]))
    empty = Words("this experiment reproduces no published table.", "empty")
    return Section("published", "Published figures", BESIDE, *(body or [empty]), separate=True)


BESIDE = "What the papers print of these methods, beside what was measured here."
PUBLISHED = (
    "Models, prompts and metric protocols differ unless a row says otherwise, so each figure is compared with its own"
    " baseline; only figures of the same network are subtracted. A speed holds for the device that it was measured on."
)


# --- the section of equality tests


def make_equality_section(g: Gathered) -> Section:
    """Make the section of equality tests: the strongest of every decoder and layer, and all in the page's own view."""
    rows = label_tests(g)
    if rows.empty:
        return Section("equality", "Equality tests", TESTS, Words("no equality test.", "empty"))
    best = tables.show_equality(tables.select_strongest(rows[rows["decides"].astype(bool)]), STRONGEST)
    table = tables.show_equality(rows, EVERY.format(len(rows)))
    lines = [[e[:3] if e.detail or e.style else e.text for e in line] for line in table.rows]
    content = {"caption": table.caption, "headings": [heading for heading, _ in table.columns], "rows": lines}
    all_tests = pack("tests", f"All {len(rows)} tests: equality.csv.", content)
    return Section("equality", "Equality tests", TESTS, LAYERS, best, all_tests, folded=True)


def label_tests(g: Gathered) -> pd.DataFrame:
    rows = g.equality
    labels = {(v["kind"], v["key"]): v["label"] for v in list_records(g.verdicts)}
    return rows.assign(label=[labels[kind, key] for kind, key in zip(rows["kind"], rows["key"], strict=True)])


TESTS = "Every test of the verdicts: for each decoder and layer the strongest one, then all of them."
EVERY = (
    "All {} tests, with diagnostics and repetitions. A diagnostic test locates a difference; it does not enter the"
    " verdict."
)
LAYERS = (
    "There are four layers of tests. Exact: models of a few tokens, whose joint distribution can be listed. Long:"
    " models of 64 tokens and more with exact conditionals, at a method's own options. Teacher-forced: the target's"
    " conditionals along the decoded tokens. Paired: images of the same prompts. A small p-value is evidence against"
    " the decoder; effect and MDE (the smallest effect found with power 0.8) say whether a test could have seen a"
    " difference that matters. Parity's own tests (docs/reference/faults.md) inject faults into decoders, which these"
    " layers must find."
)
STRONGEST = (
    "For each decoder and layer the test with the smallest p, corrected (Holm) for all deciding tests of that decoder"
    " in that layer. 'not rejected' is strong evidence if the MDE is small, and weak evidence if it is large."
)


# --- the sections of observations and environment


def make_observations_sections(g: Gathered) -> list[Section]:
    drawn = [(e, encode_figure(draw_extra(e))) for e in g.extras]
    body = [Plot(e.name, e.title, uri, e.caption, e.data, e.title) for e, uri in drawn]
    return [Section("observations", "What methods rest on", OBSERVED, *body, separate=True)] if body else []


OBSERVED = "Observations that the methods rest on, measured along plain decoding."


def flatten(value: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Flatten a nested dict to pairs of a path, "machine · cores", and its value as text."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from flatten(inner, f"{prefix} · {key}" if prefix else str(key))
    else:
        yield prefix, str(value) if isinstance(value, str | bool) and not is_missing(value) else format_number(value, 4)


def make_environment_section(g: Gathered) -> Section:
    config = g.settings.model_dump(mode="json", exclude_unset=True)
    code = Words(yaml.safe_dump(config, sort_keys=False, allow_unicode=True), "code")
    body = Terms(list(flatten(g.environment))), Words("Configuration", "heading"), code
    return Section("environment", "Environment", MADE_BY, *body, folded=True)


MADE_BY = "The commit, machine, versions, seeds and configuration that produced these numbers."
