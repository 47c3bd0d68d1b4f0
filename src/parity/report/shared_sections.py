"""Sections that every kind of model has a part in: study figures, published figures, tests, environment."""

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd
import yaml

from parity.experiment.checks import make_slug
from parity.experiment.schema import FigureSpec
from parity.experiment.study import format_label, metrics, parse_source
from parity.metrics.estimates import PERCENT
from parity.metrics.export import FIGURES
from parity.report import self_tests, study_figures, tables
from parity.report.blocks import (
    Details,
    Entry,
    Plot,
    Section,
    Table,
    Terms,
    Words,
    missing,
    packed,
    pairs,
    records,
    words,
)
from parity.report.collect import Gathered
from parity.report.figures import data_uri, draw, plot
from parity.report.published import RATIOS
from parity.report.settings import labels, read
from parity.report.tables import NONE, Column, number, plain, show, text

TITLES = {"discrete": "Images", "anysubset": "Text", "continuous": "Continuous tokens"}
MEASURED = "measured"  # the unit of a time, which does not compare between jobs


# --- parts of the sections of a kind


def verdict_table(g: Gathered, kind: str, caption: str) -> Table | Words:
    """Show every name that a kind's equality rows are judged by."""
    cells = {r["key"]: {name: r[name] for name in ("key", "role", "seed")} for r in records(g.summary)}
    rows = [v | cells.get(v["key"], {"key": ""}) for v in records(g.verdicts) if v["kind"] == kind]
    return (
        show(rows, tables.verdict_columns(g.settings.equality.alpha), caption)
        if rows
        else Words("no equality test.", "empty")
    )


def label_rows(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """Label rows of one table by what differs among them; the caption has what they share."""
    every = records(rows)
    return [row | {"label": name} for row, name in zip(every, labels(every), strict=True)]


def show_other_figures(kind: str, rows: list[dict[str, Any]], shown: set[str]) -> Iterator[Details]:
    """Show figures of these rows that have no column in the tables of the kind; times of separate jobs aside."""
    known = FIGURES | {name: meaning for figures in metrics(kind).values() for name, meaning in figures.items()}
    here = {n.removesuffix("_why") for row in rows for n in row if not missing(row[n])} - shown
    headings = {
        name: format_label(*meaning) for name, meaning in known.items() if name in here and meaning[1] != MEASURED
    }
    if headings:
        columns = [tables.METHOD, *(Column(heading, name) for name, heading in headings.items())]
        yield Details("Other figures", [show(rows, columns, "What else was measured.")])


def name_protocol(rows: list[dict[str, Any]]) -> str:
    """Name the protocol by which a published model's pictures were measured, with its digest."""
    protocols = {row["protocol"] for row in rows if not missing(row.get("protocol"))}
    return f"Measured by protocol {', '.join(sorted(protocols))}." if protocols else ""


# --- study


def study(g: Gathered) -> list[Section]:
    """Show the figures that the experiment ends in."""
    body = [study_plot(g, kind, f, g.rows(kind)) for kind in g.kinds for f in g.studies(kind)]
    return [Section("study", "Study", STUDY, *body)] if body else []


def study_plot(g: Gathered, kind: str, figure: FigureSpec, rows: pd.DataFrame, prefix: str = "study") -> Plot | Words:
    """Draw a study figure over cells of one kind, with the published numbers of its paper."""
    known = g.known(kind)
    drawn = study_figures.study(figure, rows, g.papers[g.papers["kind"] == kind], known)
    if drawn is None:
        return Words(f"{figure.title}: this experiment has no cell for it.", "empty")
    printed = set(drawn[1].loc[drawn[1]["source"] == "paper", "measure"])
    silent = "; ".join(known.get(y, y) for y in figure.y if y not in printed)
    caption = figure.reading
    if printed:
        caption += f" {BOTH.format(paper=figure.paper)}" + f" The paper prints no numbers for {silent}." * bool(silent)
    elif figure.paper:
        caption += f" Marks are measured here, with {PERCENT} intervals; the paper prints no numbers ({figure.paper})."
    return plot(f"{prefix}-{make_slug(figure.title)}", figure.title, drawn, caption.strip(), figure.title)


def sweep_plots(g: Gathered, kind: str, swept: Mapping[str, tuple[list[str], str]]) -> list[Plot | Words]:
    """Draw figures over settings of a kind that take three values or more, but for those that the study shows."""
    figures = study_figures.automatic(g.rows(kind), swept, {figure.x for figure in g.studies(kind)})
    return [study_plot(g, kind, figure, rows, f"sweep-{kind}") for figure, rows in figures]


STUDY = "The figures that this experiment was made for: what was measured here, beside what the papers print."
BOTH = (
    f"Filled marks and whole lines were measured here, with {PERCENT} intervals. Hollow marks and broken lines are the"
    " numbers of {paper}, on another model and other prompts: compare the shapes of the lines, not their heights."
)


# --- published figures


def show_published(rows: pd.DataFrame, names: Mapping[str, str], caption: str) -> Table:
    """Show the papers' figures beside ours; "n/a" where there is nothing to compare with, or no such measure here."""

    def stated(heading: str, name: str, detail: str, meaning: str) -> Column:
        return Column(heading, lambda r: Entry(words(r[name], "any"), pairs(read(r[detail]), ": "), "text"), meaning)

    def figure(heading: str, name: str, meaning: str = "", digits: int = 4) -> Column:
        return Column(heading, lambda r: NONE if missing(r[name]) else plain(r[name], digits), meaning)

    columns = [
        Column("Source", text("table", "paper")),
        stated("Their model", "model", "conditions", "the paper's model, and what it states of the conditions"),
        stated("Method", "method", "options", "the method, and options that the paper states; others are the defaults"),
        Column("Measure", lambda r: Entry(r["metric"].replace("_", " ")), "CLIP-scores are cosines"),
        figure("Published", "value"),
        figure("Ours", "ours"),
        *(figure(*column) for column in FROM_PLAIN if rows[column[1]].notna().any()),
        Column("Our cell", lambda r: Entry(names.get(r["key"], r["key"]), r["key"], "text")),
    ]
    return show(records(rows), columns, caption)


FROM_PLAIN: list[Any] = [
    ("Published, from plain", "change", "the paper's figure minus its own plain decoding in the same table"),
    ("Ours, from plain", "our_change", "our figure minus our plain decoding under the same settings"),
    (
        "Difference", "difference",
        "ours minus theirs, where both decode the same network: of ratios themselves, of other figures the changes", 3,
    ),
]  # fmt: skip


def worth_showing(g: Gathered) -> pd.Series:
    """Select the published rows that the page shows at once: of the study's tables, or else those that compare with
    ours."""
    rows, figures = g.published, [f for kind in g.kinds for f in g.studies(kind) if f.paper]
    if figures:
        shown = {(paper, place) for paper, places in (parse_source(f.paper) for f in figures) for place in places}
        at = zip(rows["paper"], rows["table"], strict=True)
        return pd.Series([pair in shown for pair in at], index=rows.index, dtype=bool)
    base = set(g.summary.loc[g.summary["role"] == "reference", "method"])
    compares = rows["change"].notna() | (rows["metric"].isin(RATIOS) & rows["ours"].notna())
    return compares & ~rows["method"].isin(base)


def published(g: Gathered) -> Section:
    names, first = dict(zip(g.summary["key"], g.summary["label"], strict=True)), worth_showing(g)
    body: list[Any] = []
    if first.any():
        body.append(show_published(g.published[first], names, PUBLISHED))
    if not first.all():
        every = show_published(g.published, names, "Other tables, baselines, and figures of a device or network too.")
        body.append(Details(f"All {len(first)} published figures of these methods", [every]))
    empty = Words("this experiment reproduces no published table.", "empty")
    return Section("published", "Published figures", BESIDE, *(body or [empty]), apart=True)


BESIDE = "What the papers print of these methods, beside what was measured here."
PUBLISHED = (
    "Models, prompts and metric protocols differ unless a row says otherwise, so each figure is compared with its own"
    " baseline; only figures of the same network are subtracted. A speed holds for the device that it was measured on."
)


# --- tests


def equality(g: Gathered) -> Section:
    """Show the strongest test of every decoder and layer, and all of them in the page's own view."""
    rows = labelled(g)
    if rows.empty:
        return Section("equality", "Equality tests", TESTS, Words("no equality test.", "empty"))
    best = tables.equality_table(tables.strongest(rows[rows["decides"].astype(bool)]), STRONGEST)
    table = tables.equality_table(rows, EVERY.format(len(rows)))
    lines = [[e[:3] if e.detail or e.style else e.text for e in line] for line in table.rows]
    content = {"caption": table.caption, "headings": [heading for heading, _ in table.columns], "rows": lines}
    every = packed("tests", f"All {len(rows)} tests: equality.csv.", content)
    return Section("equality", "Equality tests", TESTS, LAYERS, best, every, folded=True)


def labelled(g: Gathered) -> pd.DataFrame:
    """Label the tests of decoders by what they judge."""
    rows = g.equality
    known = {(v["kind"], v["key"]): v["label"] for v in records(g.verdicts)}
    return rows.assign(label=[known[kind, key] for kind, key in zip(rows["kind"], rows["key"], strict=True)])


TESTS = "Every test behind the verdicts: for each decoder and layer the strongest one, then all of them."
EVERY = (
    "All {} tests, with diagnostics and repetitions. A diagnostic test locates a difference; it does not enter the"
    " verdict."
)
LAYERS = (
    "There are four layers of tests. Exact: models of a few tokens, whose joint law can be listed. Long: models of 64"
    " tokens and more with exact conditionals, at a method's own options. Teacher-forced: the target's conditionals"
    " along the decoded tokens. Paired: pictures of the same prompts. A small p-value is evidence against the decoder;"
    " effect and MDE (the smallest effect found with power 0.8) say whether a test could have seen a difference that"
    " matters."
)
STRONGEST = (
    "For each decoder and layer the test with the smallest p, corrected (Holm) for all deciding tests of that decoder"
    " in that layer. 'not rejected' is strong evidence if the MDE is small, and weak evidence if it is large."
)


# --- observations and environment


def observations(g: Gathered) -> list[Section]:
    """Show figures whose data were made elsewhere."""
    body: list[Any] = [Plot(e.name, e.title, data_uri(draw(e)), e.caption, e.data, e.title) for e in g.extras]
    return [Section("observations", "What methods rest on", OBSERVED, *body, apart=True)] if body else []


OBSERVED = "Observations that the methods rest on, measured along plain decoding."


def flat(value: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Flatten a nested dict as (path, text) lines."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from flat(inner, f"{prefix} · {key}" if prefix else str(key))
    else:
        yield prefix, str(value) if isinstance(value, str | bool) and not missing(value) else number(value, 4)


def environment(g: Gathered) -> Section:
    config = g.settings.model_dump(mode="json", exclude_unset=True)
    code = Words(yaml.safe_dump(config, sort_keys=False, allow_unicode=True), "code")
    body = Terms(list(flat(g.environment))), Words("Configuration", "heading"), code
    return Section("environment", "Environment", MADE_BY, *body, folded=True)


MADE_BY = "The commit, machine, versions, seeds and configuration that produced these numbers."


def closing(g: Gathered) -> list[Section]:
    return [published(g), equality(g), self_tests.show_self_tests(g.self_tests), *observations(g), environment(g)]
