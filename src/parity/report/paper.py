"""Run all experiment files of papers, one after another, and write a page for each paper: its tables in order, the
printed number beside ours, and the figures of its experiments. The job of the targets `sjd`, `gsd`, `vvs`, `cspd`,
`assd` and `papers`.

    python -m parity.report.paper --papers gsd --experiments workflow/experiments/gsd-table1.yaml --out results/papers \
        --published workflow/published --snakefile Snakefile --words '["--cores", "1"]' --config '{}'

A page is made from what the experiments' own reports wrote, so it takes seconds. A number that is missing says why.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from parity.base.command import add_arguments, run_command
from parity.base.errors import ConfigError
from parity.base.files import publish
from parity.experiment import study
from parity.experiment.checks import make_slug
from parity.experiment.config_overlay import overlay_config
from parity.experiment.nested_runs import find_results, run_files
from parity.experiment.options import KINDS
from parity.experiment.papers import PAPERS, make_natural_key, read_experiment_file
from parity.experiment.stand_in import BANNER
from parity.report import account, study_figures, tables
from parity.report.blocks import (
    Entry,
    Links,
    Plot,
    Section,
    Table,
    Terms,
    Words,
    format_settings,
    is_missing,
    list_records,
)
from parity.report.collect import RELATIVE, label_measures, list_declared, list_studies
from parity.report.figures import plot
from parity.report.page import build_page
from parity.report.published import PaperRow, read_published
from parity.report.settings import parse_settings

SAME = ("paper", "table", "model", "method", "options", "conditions")  # printed numbers that agree in these are a line
LINE = ("model", "method", "options", "conditions")
NO_REPORT = "not run"
OTHER_OPTIONS = "no cell in this run: small networks take other options"
ANSWERS = "the model itself"  # the method of answers that the model gives


class Run(NamedTuple):
    """An experiment of a paper, and what its report wrote; None where it has not been made."""

    planned: account.Planned
    folder: Path
    summary: pd.DataFrame | None
    published: pd.DataFrame | None


class Found(NamedTuple):
    paper: PaperRow
    experiment: str  # the file that makes it
    value: float | None
    entry: Entry  # ours as a reader sees it, or why it is missing


def read_run(planned: account.Planned, folder: Path) -> Run:

    def read(name: str) -> pd.DataFrame | None:
        """Read a table; None where it is not there, or has no line."""
        file = folder / name
        return pd.read_csv(file, low_memory=False) if file.is_file() and file.stat().st_size > 1 else None

    published = read("published.csv")
    if published is not None:  # as in `read_published`: no text is a missing value
        published = published.fillna(dict.fromkeys([*SAME, "metric"], ""))
    return Run(planned, folder, read("summary.csv"), published)


def list_ours(paper: PaperRow, run: Run, networks: Mapping[str, Sequence[str]]) -> list[tuple[Any, dict[str, Any]]]:
    """List our values of a printed number in a run, each with its summary row ({} for answers of the model itself)."""
    if run.published is None or run.summary is None:
        return []
    same = (run.published[[*SAME, "metric"]].astype(str) == [str(paper[n]) for n in (*SAME, "metric")]).all(axis=1)
    rows = {row["key"]: row for row in list_records(run.summary)}
    pairs = [(row["ours"], rows.get(row["key"], {})) for row in list_records(run.published[same])]
    return [(v, row) for v, row in pairs if account.is_network(paper, run.planned, row, networks)]


def find_ours(paper: PaperRow, key: str, runs: Sequence[Run], networks: Mapping[str, Sequence[str]]) -> Found:
    """Find our number beside a printed one, or why there is none. key: the paper's."""
    where, reason = account.find_maker(paper, key, [run.planned for run in runs], networks)
    if reason:
        return Found(paper, where, None, Entry("", reason, "none"))
    reason = NO_REPORT
    makers = [planned.experiment.file for planned in account.list_candidates(paper, key, [r.planned for r in runs])]
    for run in (run for run in runs if run.planned.experiment.file in makers):
        name, ours = run.planned.experiment.file.stem, list_ours(paper, run, networks)
        for value, row in ours:
            if not is_missing(value):
                return Found(paper, name, float(value), show_ours(paper["metric"], value, row))
        if name == where and run.published is not None:
            reasons = [row.get(f"{paper['metric']}_why") for _, row in ours]
            reason = next((str(why) for why in reasons if not is_missing(why)), "no value" if ours else OTHER_OPTIONS)
    return Found(paper, where, None, Entry("", reason, "none"))


def show_ours(metric: str, value: Any, row: Mapping[str, Any]) -> Entry:
    """Show our value of a metric, beneath it its interval or error. At batch 1 the speed is that of one row alone."""
    if metric == "speedup" and row.get("batch") == 1:
        metric = "speedup_single"
    if is_missing(row.get(metric)):
        return tables.show_number(value)
    entry = tables.show_speed(metric)(row) if metric in study.SPEEDS else tables.show_measured(metric)(row)
    return entry._replace(style="", text=entry.text.removesuffix("×"))


def show_table(found: Sequence[Found], caption: str) -> Table:
    metrics = list(dict.fromkeys(f.paper["metric"] for f in found))
    lines: dict[tuple[Any, ...], dict[str, Found]] = {}
    for f in found:
        lines.setdefault(tuple(f.paper[name] for name in LINE), {})[f.paper["metric"]] = f
    columns = [("Network", "as the paper names it, and its conditions"), ("Method", "and the options it states")]
    columns += [(name_metric(found[0].paper["kind"], metric), "printed | ours") for metric in metrics]
    columns += [("Made by", "the experiment file")]
    rows = []
    for (model, method, options, conditions), line in lines.items():
        stated = {k: v for k, v in parse_settings(conditions).items() if k != "model"}  # which are our names
        entries = [Entry(model, format_settings(stated, ": "), "text")]
        entries += [Entry(method or ANSWERS, format_settings(parse_settings(options)), "name")]
        for metric in metrics:
            pair = line.get(metric)
            text = f"{pair.paper['value']:g} | {pair.entry.text or '–'}" if pair else ""
            entries.append(pair.entry._replace(text=text) if pair else Entry(""))
        rows.append([*entries, Entry(", ".join(sorted({f.experiment for f in line.values()} - {""})), "", "text")])
    return Table(columns, rows, caption, methods=[str(method or ANSWERS) for _, method, *_ in lines])


def name_metric(kind: str, metric: str) -> str:
    names = {figure: words[0] for figure, words in list_declared(kind).items()} | RELATIVE
    name = names.get(metric, metric.replace("_", " "))
    return name[:1].upper() + name[1:]


def make_table_sections(found: Sequence[Found], runs: Sequence[Run], page: Path) -> Iterator[Section]:
    """Yield a section for each printed table, in order, with links to the reports of the files that make it."""
    by_table: dict[str, list[Found]] = {}
    for f in found:
        by_table.setdefault(str(f.paper["table"]).replace("Fig. ", "Figure "), []).append(f)
    for table in sorted(by_table, key=make_natural_key):
        own = by_table[table]
        names = {f.experiment for f in own}
        experiments = [(run, run.planned.experiment) for run in runs]
        makers = [run for run, e in experiments if e.file.stem in names or table in e.references]
        body = [link_reports(makers, page), show_table(own, "Printed | ours.")]
        yield Section(make_slug(table), table, TABLE, *body)


def link_reports(runs: Sequence[Run], page: Path) -> Links:
    """Link the reports of experiments from a page; those that were not run are named without a link."""
    pairs = []
    for run in runs:
        report = run.folder / "report.html"
        made = report.is_file()
        address = f"../{report.relative_to(page.parent.parent)}" if made else ""
        pairs.append((run.planned.experiment.file.stem + ("" if made else " (not run)"), address))
    return Links(pairs)


def make_figure_sections(runs: Sequence[Run], printed: pd.DataFrame, page: Path) -> Iterator[Section]:
    for run in runs:
        name, of = run.planned.experiment.file.stem, ", ".join(run.planned.experiment.references)
        if plots := [block for kind in KINDS for block in draw_figures(run, kind, printed)]:
            yield Section(f"figures-{name}", f"Figures: {name}", f"{of}.", link_reports([run], page), *plots)


def draw_figures(run: Run, kind: str, printed: pd.DataFrame) -> Iterator[Plot | Words]:
    figures = list_studies(run.planned.config, kind)
    if run.summary is None or not figures or kind not in set(run.summary["kind"]):
        return
    rows = run.summary[run.summary["kind"] == kind].dropna(axis=1, how="all").reset_index(drop=True)
    for figure in figures:
        drawn = study_figures.draw_study(figure, rows, printed[printed["kind"] == kind], label_measures(kind))
        if drawn is not None:
            name = f"{run.planned.experiment.file.stem}-{make_slug(figure.title)}"
            yield plot(name, figure.title, drawn, figure.reading, figure.title)


def make_overview(found: Sequence[Found], runs: Sequence[Run], failed: Sequence[str], page: Path) -> Section:
    """Make the first section: how many printed numbers have ours beside them, why others have not, and the reports."""
    ours = sum(f.value is not None for f in found)
    missing = Counter(f.entry.detail for f in found if f.value is None)
    pairs = [("Printed numbers with ours beside", f"{ours} of {len(found)}")]
    pairs += [(f"Without: {reason}", str(count)) for reason, count in missing.most_common()]
    body: list[Any] = [Words(FAILED.format(name), "warning") for name in failed]
    return Section("overview", "Overview", OVERVIEW, *body, Terms(pairs), link_reports(runs, page))


def tabulate(found: Sequence[Found]) -> pd.DataFrame:
    columns = [*SAME, "metric", "value"]
    rows = [{n: f.paper[n] for n in columns} | {"ours": f.value, "experiment": f.experiment} for f in found]
    lacks = ["" if f.value is not None else f.entry.detail for f in found]
    return pd.DataFrame(rows, columns=[*columns, "ours", "experiment"]).assign(reason=lacks)


def write_paper(key: str, published: Path, results: Mapping[Path, Path], failed: Sequence[str], page: Path) -> None:
    """Write the page of a paper and, beside it, the table of its numbers. published: the folder of printed numbers;
    results: by experiment file the folder of its results; failed: names of those whose run failed."""
    root = published.resolve().parents[1]  # from which the experiments' paths begin
    runs = []
    for file, folder in results.items():
        with suppress(ConfigError):  # a file that is wrong: its run failed, and is named
            runs.append(read_run(account.plan_experiment(read_experiment_file(file), root), folder))
    printed = read_published([published / f"{key}.csv"])
    networks = account.read_networks(published / "networks.yaml")
    found = [find_ours(paper, key, runs, networks) for paper in list_records(printed)]
    sections = [make_overview(found, runs, failed, page), *make_table_sections(found, runs, page)]
    sections += make_figure_sections(runs, printed, page)
    is_trial = any(run.summary is not None and "stand_in" in run.summary for run in runs)
    title = dict(PAPERS.values())[key]
    html, data = build_page(title, sections, banner=BANNER if is_trial else "", tables=[f"{key}.csv"])
    for name, frame in data.items():
        publish(page.parent / "figures" / f"{name}.csv", frame.to_csv(index=False).encode())
    publish(page.with_name(f"{key}.csv"), tabulate(found).to_csv(index=False).encode())
    publish(page, html.encode())


TABLE = "The paper's table as printed, our figures beside its own."
FAILED = "The run of {} failed; what it did not make is missing here."
OVERVIEW = "What the paper prints, and what this workflow made of it."


def main() -> None:
    """Run the files, then write the pages of their papers to the folder `--out`; exit with 1 if a run failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--papers", nargs="+", required=True, help="keys of papers")
    parser.add_argument("--words", type=json.loads, default=[], help="JSON: flags of each run of snakemake")
    parser.add_argument("--config", type=json.loads, default={}, help="JSON: what --config says of every file")
    parser.add_argument("--snakefile", required=True)
    add_arguments(parser, "experiments+", "published", "out")
    a = parser.parse_args()
    is_trial = overlay_config({}, a.config).get("stand_in")
    published = [file for file in a.experiments if read_experiment_file(file).is_published]
    codes = run_files(a.experiments, a.words, a.snakefile, [] if is_trial else published)
    for key in a.papers:
        files = [file for file in a.experiments if read_experiment_file(file).paper == key]
        results = {file: find_results(file, a.config) for file in files}
        failed = [file.stem for file in files if codes[file]]
        page = a.out / f"{key}.html"
        write_paper(key, a.published, results, failed, page)
        print(f"Report: {page.resolve()}", file=sys.stderr)
    if any(codes.values()):
        sys.exit(1)


if __name__ == "__main__":
    run_command(main)
