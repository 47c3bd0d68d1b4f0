"""Compare the memory that each job of a run asked for with what it took, and write the table of docs/results/memory.md.

    python benchmarks/memory.py --run FOLDER/b.yaml [more.yaml ...] [--page docs/results/memory.md]

Each experiment was run beforehand in the folder of its file (`snakemake --configfile b.yaml` there, a folder for each),
whose logs say what each job took. Networks of published sizes are made by `stand_in: {size: published}`, or one by one
by `python -m parity.stand_ins llamagen_c2i --published --out FOLDER`, whose entry.json belongs under `models`.
"""

import argparse
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from parity.base.command import run_command
from parity.base.files import publish
from parity.experiment import cells, config_reader, job_resources, weights
from parity.experiment.job_resources import Job
from parity.experiment.schema import Config

TAKEN = re.compile(r"cost: [\d.]+ CPU-seconds, (\d+) MiB")
LOGS = {  # the logs of each rule below logs/; {model} with revision or key behind it
    "checkpoint": "checkpoints/{kind}/{model}-*.log",
    "captions": "inputs/*/{model}-*/*.log",
    "decode": "decode/{kind}/{name}/*.log",
    "measure": "measure/{kind}/{name}.log",
    "reference": "reference/{kind}/*/{model}-*.log",
}
HEAD = """# Memory: asked and taken

What each job asks of a scheduler (`mem_mb`) beside the most that it took, in MiB, of the rule's cells the extremes.
Written by `python benchmarks/memory.py`; how the runs were made stands there. Networks of published sizes have random
values, which changes no shape. Measured on a CPU, with torch {torch}.

| experiment | job | model | asked | taken | taken / asked |
|---|---|---|---|---|---|
"""


class Row(NamedTuple):
    """Jobs of a rule and model of an experiment: what they asked for and took, MiB, of the job of the largest share."""

    experiment: str
    rule: str
    model: str
    asked: int
    taken: int
    smallest: float  # share of what was asked that a job of them took, the smallest and the largest
    largest: float


def read_taken(file: Path) -> int | None:
    """Read from the end of a job's log how many MiB it took; None if it did not end."""
    found = TAKEN.findall(file.read_text(encoding="utf-8", errors="replace"))
    return int(found[-1]) if found else None


def list_logged(config: Config, folder: Path) -> Iterator[tuple[Job, int, int]]:
    """List the jobs of an experiment that ran in a folder: each job, what it asks for, and what it took."""
    all_cells = cells.cells(config, [])
    jobs = job_resources.list_jobs(config, all_cells)
    jobs += [Job("reference", kind, name) for kind in cells.kinds(config) for name in weights.list_models(config, kind)]
    for job in jobs:
        names = {"kind": job.kind, "model": job.model, "name": find_logged_name(folder, job)}
        for log in folder.glob(f"logs/{LOGS[job.rule].format(**names)}"):
            if (taken := read_taken(log)) is not None:
                yield job, job_resources.memory(config, job), taken


def find_logged_name(folder: Path, job: Job) -> str:
    """Find the name of a cell in a run's logs. Its key depends on the prompts, which are not read here: any cell of the
    same method will do."""
    return f"{job.model}/{job.cell.spec['method']}-*" if job.cell else ""


def compare(file: Path) -> list[Row]:
    """Compare asked and taken of the experiment in a file, which ran in the file's folder."""
    config, _ = config_reader.read_config(file)
    grouped: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for job, asked, taken in list_logged(config, file.parent):
        grouped.setdefault((job.rule, job.model), []).append((asked, taken))
    rows = []
    for (rule, model), pairs in grouped.items():
        asked, taken = max(pairs, key=lambda pair: pair[1] / pair[0])
        shares = [taken / asked for asked, taken in pairs]
        rows.append(Row(config.experiment, rule, model, asked, taken, min(shares), max(shares)))
    return rows


def main() -> None:
    """Compare the runs of the command line, print the table, and write it to `--page` if that is given."""
    import torch

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, nargs="+", required=True, help="files of experiments that have run")
    parser.add_argument("--page", type=Path)
    a = parser.parse_args()
    rows = [row for file in a.run for row in compare(file)]
    lines = [
        f"| {r.experiment} | {r.rule} | {r.model} | {r.asked:,} | {r.taken:,} |"
        f" {r.smallest:.2f}{f' to {r.largest:.2f}' if r.largest - r.smallest >= 0.005 else ''} |"
        for r in rows
    ]
    page = HEAD.format(torch=torch.__version__) + "\n".join(lines) + "\n"
    print(page)
    if a.page:
        publish(a.page, page.encode())


if __name__ == "__main__":
    run_command(main)
