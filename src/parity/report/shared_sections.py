"""Sections that every kind of model has a part in: verdicts, study figures, published figures, tests, environment."""

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd
import yaml

from parity.experiment.checks import slug
from parity.experiment.schema import FigureSpec
from parity.experiment.study import label, metrics, source
from parity.metrics.estimates import Estimate
from parity.metrics.export import FIGURES
from parity.report import study_figures, tables
from parity.report.blocks import (
    Details,
    Entry,
    Plot,
    Section,
    Sides,
    Table,
    Terms,
    Words,
    chip,
    estimated,
    missing,
    number,
    p_value,
    packed,
    pairs,
    plain,
    words,
)
from parity.report.collect import Gathered
from parity.report.figures import data_uri, draw, p_value_qq, plot
from parity.report.published import RATIOS
from parity.report.settings import labels, read, records
from parity.report.tables import NONE, Column, mark, measured, show, text, value
from parity.report.verdicts import CORRECT, WRONG, planted, split

TITLES = {"discrete": "Images", "anysubset": "Text", "continuous": "Continuous tokens"}
MEASURED = "measured"  # the unit of a time, which does not compare between jobs


def verdict_table(g: Gathered, kind: str, caption: str) -> Table | Words:
    """Every name that a kind's equality rows are judged by."""
    cells = {r["key"]: {name: r[name] for name in ("key", "role", "seed")} for r in records(g.summary)}
    rows = [v | cells.get(v["key"], {"key": ""}) for v in records(g.verdicts) if v["kind"] == kind]
    return show(rows, tables.VERDICT, caption, mark) if rows else Words("no equality test.", "empty")


def relabelled(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows of one table, named by what differs among them: the rest is said above it."""
    every = records(rows)
    return [row | {"label": name} for row, name in zip(every, labels(every), strict=True)]


def other_figures(kind: str, rows: list[dict[str, Any]], shown: set[str]) -> Iterator[Details]:
    """Figures of these rows that have no column in the tables of the kind; times of separate jobs aside."""
    taken = FIGURES | {name: meaning for figures in metrics(kind).values() for name, meaning in figures.items()}
    here = {n.removesuffix("_why") for row in rows for n in row if not missing(row[n])} - shown
    labels = {name: label(*meaning) for name, meaning in taken.items() if name in here and meaning[1] != MEASURED}
    if labels:
        columns = [tables.METHOD, *(Column(heading, measured(name)) for name, heading in labels.items())]
        yield Details("Other figures", [show(rows, columns, "What else was measured.", mark)])


def measured_by(rows: list[dict[str, Any]]) -> str:
    """The protocol by which a published model's pictures were measured, with its digest."""
    named = {row["protocol"] for row in rows if not missing(row.get("protocol"))}
    return f"Measured by protocol {', '.join(sorted(named))}." if named else ""


# --- study


def study(g: Gathered) -> list[Section]:
    """The figures that the experiment ends in."""
    body: list[Any] = [study_plot(g, kind, f, g.rows(kind)) for kind in g.kinds for f in g.studies(kind)]
    return [Section("study", "Study", *body)] if body else []


def observations(g: Gathered) -> list[Section]:
    """Figures whose data were made elsewhere: what methods rest on, seen along plain decoding. And that there is no
    study, where there is none."""
    body: list[Any] = [Plot(e.name, e.title, data_uri(draw(e)), e.caption, e.data, e.title) for e in g.extras]
    if not any(g.studies(kind) for kind in g.kinds):
        body.append(Words("study: this experiment names no figure of its own.", "empty"))
    return [Section("observations", "What methods rest on", *body)] if body else []


def study_plot(g: Gathered, kind: str, figure: FigureSpec, rows: pd.DataFrame, prefix: str = "study") -> Plot | Words:
    """A study figure over cells of one kind, with the published numbers of its paper."""
    known = g.known(kind)
    drawn = study_figures.study(figure, rows, g.papers[g.papers["kind"] == kind], known)
    if drawn is None:
        return Words(f"{figure.title}: this experiment has no cell for it.", "empty")
    theirs = set(drawn[1].loc[drawn[1]["source"] == "paper", "measure"])
    silent = "; ".join(known.get(y, y) for y in figure.y if y not in theirs)
    caption = figure.reading
    if theirs:
        caption += f" {BOTH.format(paper=figure.paper)}" + f" The paper prints no numbers for {silent}." * bool(silent)
    elif figure.paper:
        caption += f" Marks are measured here, with 95% intervals; the paper prints no numbers ({figure.paper})."
    return plot(f"{prefix}-{slug(figure.title)}", figure.title, drawn, caption.strip(), figure.title)


BOTH = (
    "Filled marks and whole lines were measured here, with 95% intervals; hollow or tinted marks and broken lines are"
    " the numbers of {paper}, on another model and other prompts: compare how the lines run, not where they lie."
)


def sweep_plots(g: Gathered, kind: str, swept: Mapping[str, tuple[list[str], str]]) -> list[Plot | Words]:
    """Figures over settings of a kind that take three values or more, but for those that the study shows."""
    figures = study_figures.automatic(g.rows(kind), swept, {figure.x for figure in g.studies(kind)})
    return [study_plot(g, kind, figure, rows, f"sweep-{kind}") for figure, rows in figures]


# --- published figures


def published_table(rows: pd.DataFrame, names: Mapping[str, str], caption: str) -> Table:
    """The papers' figures beside ours; "n/a" where there is nothing to compare with, or no such measure here."""

    def stated(heading: str, name: str, detail: str, meaning: str) -> Column:
        return Column(heading, lambda r: Entry(words(r[name], "any"), pairs(read(r[detail]), ": "), "text"), meaning)

    def figure(heading: str, name: str, meaning: str = "", digits: int = 4) -> Column:
        return Column(heading, lambda r: NONE if missing(r[name]) else plain(r[name], digits), meaning)

    columns = [
        Column("Source", text("table", "paper")),
        stated("Their model", "model", "conditions", "and what the paper states of the rest"),
        stated(
            "Method", "method", "options", "and its options as the paper states them; the rest are the defaults here"
        ),
        Column("Measure", lambda r: Entry(r["metric"].replace("_", " ")), "CLIP-scores are cosines"),
        figure("Published", "value"),
        figure("Ours", "ours"),
        *(figure(heading, name, said) for heading, name, said in FROM_PLAIN if rows[name].notna().any()),
        *(figure("Difference", name, OURS_LESS, 3) for name in ["difference"] if rows[name].notna().any()),
        Column("Our cell", lambda r: Entry(names.get(r["key"], r["key"]), r["key"], "text")),
    ]
    return show(records(rows), columns, caption)


FROM_PLAIN = [
    ("Published, from plain", "change", "less the paper's own plain decoding in the same table"),
    ("Ours, from plain", "our_change", "less our plain decoding under the same settings"),
]
OURS_LESS = "of one network, ours less theirs: of ratios themselves, of others the changes"


def worth_showing(g: Gathered) -> pd.Series:
    """Published rows that the page shows at once: of the study's tables, or else those that compare with ours."""
    rows, figures = g.published, [f for kind in g.kinds for f in g.studies(kind) if f.paper]
    if figures:
        named = {(paper, place) for paper, places in (source(f.paper) for f in figures) for place in places}
        at = zip(rows["paper"], rows["table"], strict=True)
        return pd.Series([pair in named for pair in at], index=rows.index, dtype=bool)
    base = set(g.summary.loc[g.summary["role"] == "reference", "method"])
    compares = rows["change"].notna() | (rows["metric"].isin(RATIOS) & rows["ours"].notna())
    return compares & ~rows["method"].isin(base)


def published(g: Gathered) -> Section:
    names, first = dict(zip(g.summary["key"], g.summary["label"], strict=True)), worth_showing(g)
    body: list[Any] = []
    if first.any():
        body.append(published_table(g.published[first], names, PUBLISHED))
    if not first.all():
        every = published_table(
            g.published, names, "Other tables, baselines, and what depends on device or network too."
        )
        body.append(Details(f"All {len(first)} published figures of these methods", [every]))
    empty = Words("this experiment reproduces no published table.", "empty")
    return Section("published", "Published figures", *(body or [empty]))


PUBLISHED = (
    "The papers' figures beside ours. The models, prompts and metric protocols differ unless a row says otherwise, so"
    " each stands beside its own baseline; a difference is taken of one and the same network alone. A speed is of the"
    " device it was taken on."
)


# --- tests


def equality(g: Gathered) -> Section:
    """The strongest test of every decoder and layer, and all of them in the page's own view."""
    rows = labelled(g)
    if rows.empty:
        return Section("equality", "Equality tests", Words("no equality test.", "empty"))
    best = tables.equality_table(tables.strongest(rows[rows["decides"].astype(bool)]), STRONGEST)
    table = tables.equality_table(rows, EVERY.format(len(rows)))
    lines = [[short(e) for e in line] for line in table.rows]
    held = {"caption": table.caption, "headings": [heading for heading, _ in table.columns], "rows": lines}
    return Section(
        "equality", "Equality tests", LAYERS, best, packed("tests", f"All {len(rows)} tests: equality.csv.", held)
    )


def short(entry: Entry) -> str | list[str]:
    """An entry as packed data hold it."""
    return list(entry[:3]) if entry.detail or entry.style else entry.text


EVERY = (
    "All {} tests, diagnostics and repetitions included. Diagnostic rows say where a difference lies; they do not enter"
    " the verdict."
)
LAYERS = (
    "Layers: exact, on models of a few tokens whose joint law can be listed; long, at a method's own options, on models"
    " of 64 tokens and more whose conditionals are exact; the target's own conditionals along the decoded tokens; and"
    " pictures paired by prompt. A p-value says how surprising the data are if the decoder is right; effect and MDE say"
    " whether the test could have seen a difference that matters."
)
STRONGEST = (
    "For each decoder and layer the test with the smallest p, corrected (Holm) for all deciding tests of that decoder"
    " in that layer. 'not rejected' beside a large MDE is weak evidence; beside a small one, strong."
)


def labelled(g: Gathered) -> pd.DataFrame:
    """The tests of decoders with the label of what they judge; those that test the tests are not among them."""
    rows = split(g.equality)[0]
    known = {(v["kind"], v["key"]): v["label"] for v in records(g.verdicts)}
    return rows.assign(label=[known[kind, key] for kind, key in zip(rows["kind"], rows["key"], strict=True)])


def self_tests(g: Gathered) -> Section:
    """Are the p-values honest, and can the tests fail?"""
    tests = split(g.equality)[1]
    faults, sizes = planted(tests), tests[tests["p_value"].isna() & tests["effect"].notna()]
    qq = plot("qq", "P-values of plain decoding against itself", p_value_qq(g.null), QQ)
    table = show(records(sizes), SIZES, "Share of true null hypotheses rejected at the nominal 0.05.")
    more = [Details("Measured size of each test", [table])] if len(sizes) else []
    planted_table = [f for f in faults if f["fault"] != CORRECT] + [f for f in faults if f["fault"] == CORRECT]
    caught = show(planted_table, PLANTED, FAULTS) if faults else Words("no planted faults.", "empty")
    honest, alive = Words("Are the p-values honest?", "heading"), Words("Can the tests fail?", "heading")
    return Section("self-tests", "Tests of the tests", Sides([[honest, qq, *more], [alive, caught]]))


def rejection_rate(row: Mapping[str, Any]) -> Estimate:
    return Estimate(row["effect"], low=row.get("low"), high=row.get("high"))


PLANTED = [
    Column("Decoder", text("decoder"), "of the harness itself, or a method with something changed about it"),
    Column("Fault", lambda r: Entry("correct decoder" if r["fault"] == CORRECT else words(r["fault"]), style="text")),
    Column("n", value("n"), "sequences or tokens of a sample"),
    Column("Outcome", lambda r: Entry(r["outcome"], r["verdict"], "text" if r["verdict"] != WRONG else "wrong")),
    Column(
        "Largest p", lambda r: Entry(p_value(r["largest_p"]), words(r["model"])), "of its samples, and on which model"
    ),
    Column(
        "Effect", value("effect", 3), "in that sample: total variation where the law is listed, else the test's own"
    ),
]
SIZES = [
    Column("Test", text("test")),
    Column("Replicates", value("n")),
    Column("Rejected", lambda r: estimated(rejection_rate(r)), "share, with its 95% interval"),
    Column("Verdict", lambda r: chip(r["verdict"])),
]
QQ = (
    "Tests of data for which their null hypothesis is true, where every rejection is false. Points along the diagonal:"
    " the tests reject as often as they say. Below it they reject too often, and a small p elsewhere on this page means"
    " less than it seems; above it they are cautious. The band is where 95% of such points fall, one place at a time."
    " Where there are many tests, those furthest from the diagonal are named."
)
FAULTS = (
    "Decoders with a planted fault, which the tests must find in every sample, then correct decoders, which they must"
    " not reject in all of them. They are no methods of this experiment. A fault that is missed marks the size of"
    " error that this report cannot see."
)


# --- environment


def flat(value: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """A nested dict as (path, text) lines."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from flat(inner, f"{prefix} · {key}" if prefix else str(key))
    else:
        yield prefix, str(value) if isinstance(value, str | bool) and not missing(value) else number(value, 4)


def environment(g: Gathered) -> Section:
    given = g.settings.model_dump(mode="json", exclude_unset=True)
    config = Words(yaml.safe_dump(given, sort_keys=False, allow_unicode=True), "code")
    return Section(
        "environment", "Environment", Terms(list(flat(g.environment))), Words("Configuration", "heading"), config
    )


def closing(g: Gathered) -> list[Section]:
    return [published(g), equality(g), self_tests(g), *observations(g), environment(g)]
