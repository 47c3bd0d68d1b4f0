"""Which printed numbers a trial of the papers' files has a number of ours beside, and why the others have none.

    snakemake papers --cores all --config stand_in=true
    python benchmarks/trials.py results

The tables of the papers' pages (results/papers/*.csv), and results/sjd-newest*/published.csv where that file was run,
are joined in docs/figures/trials.csv, a row for each printed number; `python docs/reference.py` counts them in
docs/reference/account.md. Papers that are not in the folder keep the rows that they had.
"""

import argparse
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd
from docs_figures import ROOT, find_commit, keep, read_machine

from parity.base.command import run_command
from parity.base.errors import ParityError
from parity.report.account import NUMBER

FILE = ROOT / "docs/figures/trials.csv"
COLUMNS = [*NUMBER, "reason", "commit"]


def read_trials(results: Path) -> pd.DataFrame:
    """Read the printed numbers of a folder's trials, by COLUMNS without `commit`: `reason` is empty where ours has a
    value. Raises ParityError if there is none."""
    tables = [pd.read_csv(file, dtype=str, keep_default_na=False) for file in sorted(results.glob("papers/*.csv"))]
    for newest in sorted(results.glob("sjd-newest*/published.csv")):
        joined = pd.read_csv(newest, dtype=str, keep_default_na=False)
        numbers = joined[joined["paper"].str.contains("SJD-SV")].sort_values("ours", ascending=False)
        numbers = numbers.drop_duplicates(list(NUMBER))  # one of its cells with a value, if any has one
        tables.append(numbers.assign(reason=["" if ours else "no value" for ours in numbers["ours"]]))
    if not tables:
        raise ParityError(f"{results}: no papers/*.csv; run `snakemake papers --config stand_in=true` first")
    return pd.concat(tables, ignore_index=True)[COLUMNS[:-1]]


def main() -> None:
    """Write the table from the folder of results that is named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    a = parser.parse_args()
    trials = read_trials(a.results).assign(commit=find_commit(a.results.resolve().parent)[:10])
    if FILE.is_file():
        before = pd.read_csv(FILE, dtype=str, keep_default_na=False)
        trials = pd.concat([before[~before["paper"].isin(trials["paper"])], trials])
    trials = trials.sort_values(list(NUMBER), kind="stable", ignore_index=True)
    source = {"commit": find_commit(ROOT), "date": datetime.now(UTC).date().isoformat(), **read_machine()}
    keep("trials", trials, command="python benchmarks/trials.py results", **source)
    print(f"{(trials['reason'] == '').sum()} of {len(trials)} printed numbers have ours beside them")


if __name__ == "__main__":
    run_command(main)
