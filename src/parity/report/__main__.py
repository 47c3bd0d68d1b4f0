"""Write the report of an experiment.

The files are report.html, index.html, summary.csv, equality.csv, published.csv, records.parquet and figures/.

    python -m parity.report --config '{"image": ...}' --published workflow/published/*.csv --out results/default

`--kinds` limits the page to some kinds of model.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from parity.base.command import add_arguments, pin_threads, run_command
from parity.base.errors import ParityError
from parity.base.files import publish
from parity.experiment.checks import make_config
from parity.experiment.options import KINDS
from parity.report import published
from parity.report.collect import TESTS, gather
from parity.report.page import write_page

FIRST = ["kind", "model", "task", "method", "options", "key", "role", "claim", "claimant", "origin"]
FIRST += ["verdict", "verdict_kind", "n", "nfe_ratio", "speedup"]


def order_columns(frame: pd.DataFrame, first: Sequence[str]) -> pd.DataFrame:
    return frame[[c for c in first if c in frame] + [c for c in frame if c not in first]]


def add_missing_figures(frame: pd.DataFrame) -> pd.DataFrame:
    """Add an empty column for each figure that no row has, before the column `<figure>_why` with the reason."""
    frame = frame.copy()
    for column in [name for name in map(str, frame) if name.endswith("_why")]:
        figure = column.removesuffix("_why")
        if figure not in frame:
            frame.insert(list(frame).index(column), figure, None)
    return frame


def main() -> None:
    """Gather an experiment's results and write its tables, records and pages. Raises ParityError without a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=json.loads, required=True)
    parser.add_argument("--kinds", nargs="*", choices=list(KINDS), default=[])
    parser.add_argument("--root", type=Path, default=Path(), help="folder of results/, as the job finds it (.)")
    add_arguments(parser, "published*", "extra*", "out", "threads")
    a = parser.parse_args()
    pin_threads(a.threads)
    try:
        gathered = gather(make_config(a.config), a.published, a.extra, a.kinds, root=a.root, local=Path())
    except FileNotFoundError as error:  # inputs changed after planning, which chose the paths of results
        raise ParityError(
            f"{error.filename or error}: no such file; a model's folder, prompts or a data file changed after the run"
            " was planned; run again"
        ) from None
    tables: dict[str, tuple[pd.DataFrame, Sequence[str]]] = {
        "summary": (add_missing_figures(gathered.summary.drop(columns="value", errors="ignore")), FIRST),
        "equality": (gathered.equality, TESTS),
        "published": (gathered.published, published.COLUMNS),
    }
    for name, (frame, first) in tables.items():
        publish(a.out / f"{name}.csv", order_columns(frame, first).to_csv(index=False).encode())
    gathered.files.join_records(a.out / "records.parquet")
    write_page(gathered, a.out / "report.html")


if __name__ == "__main__":
    run_command(main)
