"""Compare two results folders: which rows changed, in verdict, passes, quality and seconds.

    parity compare RESULTS_A RESULTS_B [--out FILE.html]

Rows are paired by model, task, method, options, sampling and batch. A difference is B less A with its interval: by
prompt where both folders have the same prompts. Seconds are compared only where both rows name the same machine.
"""

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path

from parity.base.command import run_command
from parity.base.errors import ParityError
from parity.base.files import publish
from parity.compare.results import Comparison, Pair, compare_results, describe_cell_change
from parity.experiment.options import KINDS
from parity.experiment.study import list_measures
from parity.metrics.estimates import PERCENT, Estimate
from parity.report.blocks import Entry, Table, escape_controls, format_text
from parity.report.page import load_templates

HEADS = (  # the headings of the table of costs, each with its meaning
    ("row", ""),
    ("changed", "the verdict, and figures that differ by more than chance among all figures compared"),
    ("verdict", "of A → of B"),
    ("passes", f"of an image or text, with {PERCENT} intervals; of vectors, calls one after another"),
    ("passes, B less A", f"with {PERCENT} intervals"),
    ("seconds", "of an image or text, where both ran on the same machine"),
    ("asked for", "in what the two cells differ; empty if they are the same"),
)


def format_figure(figure: Estimate) -> str:
    """Write a figure with half the width of its interval: "94 ± 5"; "none" if it is missing."""
    if figure.missing:
        return "none"
    reach = figure.reach() or (0.0, 0.0)
    return f"{figure.value:.4g} ± {sum(reach) / 2:.2g}" if sum(reach) > 0 else f"{figure.value:.4g}"


def format_difference(figure: Estimate | None) -> str:
    """Write a difference with its interval: "-0.02 (-0.07 to +0.03)"; "" where there is none."""
    if figure is None or figure.missing:
        return ""
    down, up = figure.reach() or (0.0, 0.0)
    if not down + up > 0:
        return f"{figure.value:+.3g}" if figure.value else "0"
    return f"{figure.value:+.3g} ({figure.value - down:+.3g} to {figure.value + up:+.3g})"


def join_change(a: str, b: str) -> str:
    return a if a == b else f"{a} → {b}"


def list_cells(pair: Pair, z: float) -> list[str]:
    """Write a pair of rows as texts, one for each of HEADS; z as of `find_changed`."""
    changed = ", ".join(pair.find_changed(z)) or "no"
    verdict = join_change(*(format_text(row.get("pill")) or "not tested" for row in (pair.a, pair.b)))
    passes = join_change(*map(format_figure, pair.passes))
    seconds = join_change(*map(format_figure, pair.seconds)) if pair.seconds else ""
    gap = format_difference(pair.passes_difference)
    return [pair.label, changed, verdict, passes, gap, seconds, describe_cell_change(pair)]


def make_table(pairs: list[Pair], z: float, title: str) -> Table:
    """Make the table of verdicts and costs, a line a pair, without columns that are empty."""
    rows = [list_cells(pair, z) for pair in pairs]
    filled = [i for i in range(len(HEADS)) if any(row[i] for row in rows)]
    return Table([HEADS[i] for i in filled], [[Entry(row[i]) for i in filled] for row in rows], title)


def make_quality_table(pairs: list[Pair], labels: Mapping[str, str], title: str) -> Table:
    """Make the table of differences in quality, a column a figure (named by `labels`), without pairs that have none."""
    names = list(dict.fromkeys(name for pair in pairs for name in pair.quality))
    differing = [pair for pair in pairs if any(gap.value for gap in pair.quality.values())]
    rows = [[pair.label, *(format_difference(pair.quality.get(name)) for name in names)] for pair in differing]
    columns = [("row", ""), *((labels.get(name, name), "") for name in names)]
    caption = f"{title}: quality, B less A, with {PERCENT} intervals; rows without a difference are left out"
    return Table(columns, [[Entry(text) for text in row] for row in rows], caption)


def make_tables(comparison: Comparison) -> Iterator[Table]:
    for kind, section in KINDS.items():
        if pairs := [pair for pair in comparison.pairs if pair.b["kind"] == kind]:
            yield make_table(pairs, comparison.z, section.capitalize())
            quality = make_quality_table(pairs, list_measures(kind), section.capitalize())
            yield from [quality] if quality.rows else []


def summarize(comparison: Comparison) -> list[str]:
    """Write sentences: how many rows changed, what a folder lacks, and what is not compared."""
    pairs = comparison.pairs
    changed = sum(bool(pair.find_changed(comparison.z)) for pair in pairs)
    lines = [f"A is {comparison.a.folder}, B is {comparison.b.folder}: {len(pairs)} rows in both, {changed} changed."]
    for folder, labels in comparison.list_unpaired():
        if labels:
            lines.append(f"Only in {folder}: {', '.join(labels)}.")
    lines += [*comparison.list_lacking(), *comparison.list_versions()]
    machines = [tuple(format_text(row.get("machine")) or "an unnamed machine" for row in (p.a, p.b)) for p in pairs]
    different = {names for names, pair in zip(machines, pairs, strict=True) if not pair.has_same_machine()}
    return lines + [f"Seconds are not compared: A ran on {a}, B on {b}." for a, b in sorted(different)]


def print_comparison(lines: list[str], tables: list[Table]) -> None:
    """Print tables, then lines, as text without wrapping; control characters are made visible."""
    from rich import box
    from rich.console import Console
    from rich.table import Table as Grid

    for table in tables:
        grid = Grid(title=table.caption, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
        for heading, _ in table.columns:
            grid.add_column(heading, no_wrap=True)
        for row in table.rows:
            grid.add_row(*(escape_controls(entry.text) for entry in row))
        console = Console(width=1000, color_system=None, markup=False, highlight=False)
        with console.capture() as captured:
            console.print(grid)
        print("\n".join(line.rstrip() for line in captured.get().splitlines()))
    print("\n".join(map(escape_controls, lines)))


def main() -> None:
    """Print how two results folders differ, and write it to the page `--out`. Raises ParityError for a wrong path."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("a", type=Path, metavar="RESULTS_A", help="a folder results/EXPERIMENT")
    parser.add_argument("b", type=Path, metavar="RESULTS_B", help="the folder that is compared with it")
    parser.add_argument("--out", type=Path, metavar="FILE.html", help="also write a page")
    a = parser.parse_args()
    if a.out and (a.out.suffix != ".html" or a.out.is_dir()):
        raise ParityError(f"--out {a.out}: allowed: a file that ends in .html")
    comparison = compare_results(a.a, a.b)
    lines, tables = summarize(comparison), list(make_tables(comparison))
    print_comparison(lines, tables)
    if a.out:
        title = f"Parity: {a.a} and {a.b}"
        page = load_templates().get_template("compare.html.j2").render(title=title, lines=lines, tables=tables)
        publish(a.out, page.encode())
        print(a.out)


if __name__ == "__main__":
    run_command(main)
