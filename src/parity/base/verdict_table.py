"""The verdicts of an experiment as a table for a terminal. Imports no pandas, because Snakemake's process prints it."""

import csv
from collections.abc import Mapping
from pathlib import Path

from parity.base.errors import ParityError

WIDEST = 40  # the name of a method with its options is cut off after this many characters


def gain(row: Mapping[str, str]) -> str:
    """Write how many times fewer passes of the target than plain decoding a method takes ("2.31 passes"), or for
    vectors calls one after another ("... calls"); "" if a row of summary.csv does not say it."""
    return f"{float(row['gain']):.2f} {'calls' if row.get('depth') else 'passes'}" if row.get("gain") else ""


def table(summary: Path, width: int = 100) -> str:
    """Draw the methods of a summary.csv as a text table `width` columns wide (60 at least): model, method with options,
    claim, verdict, gain, and a line on a baseline that is not plain decoding. Raises ParityError if the file cannot be
    read."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    try:
        with summary.open(encoding="utf-8", newline="") as stream:
            all_rows = list(csv.DictReader(stream))
    except OSError as error:
        raise ParityError(f"{summary}: cannot be read ({error.strerror})") from None
    verdicts = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("model", "method", "claims", "verdict", "times fewer"):
        verdicts.add_column(name, justify="right" if "times" in name else "left", no_wrap=True)
    for row in (row for row in all_rows if row.get("role") == "method"):
        label = row.get("label") or row.get("method", "")
        short = label if len(label) <= WIDEST else f"{label[: WIDEST - 3]}..."
        verdicts.add_row(row.get("model"), short, row.get("claim"), row.get("verdict") or "not tested", gain(row))
    console = Console(width=max(width, 60), color_system=None, markup=False, highlight=False)
    with console.capture() as captured:
        console.print(verdicts)
    others = sorted({row["baseline"] for row in all_rows if row.get("baseline")})
    note = f"\nvectors: times fewer than {', '.join(others)}, in place of plain decoding" if others else ""
    return captured.get().rstrip() + note
