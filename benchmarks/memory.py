"""Compare the memory that each job asks for with what it takes, on networks of published sizes with random values.

    python benchmarks/memory.py --make FOLDER [--only llamagen-b mar ...]
    python benchmarks/memory.py --run FOLDER/llamagen-b/experiment.yaml ... [--page docs/results/memory.md]

The first writes networks (up to 10 GB each) and runs an experiment on each, of two images or four texts, which takes
minutes, or of 64 images ("llamagen-b-64"), which takes an hour of two cores. The second reads what was asked and taken
of experiments that were run in the folders of their files, a folder for each, and writes the page.
"""

import argparse
import contextlib
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml
from docs_figures import find_commit

from parity.base.command import run_command
from parity.base.files import publish, read_json, write_json
from parity.experiment import checks, config_overlay, job_resources, pins, stand_in
from parity.experiment.checks import Plan
from parity.stand_ins import make_entry

ROOT = Path(__file__).parents[1]
TAKEN = re.compile(r"cost: [\d.]+ CPU-seconds, (\d+) MiB")
LOGS = {  # the logs of each rule below logs/; a revision or key stands behind {model}
    "checkpoint": "checkpoints/{kind}/{model}-*.log",
    "captions": "inputs/*/{model}-*/*.log",
    "decode": "decode/{kind}/{name}/*.log",
    "measure": "measure/{kind}/{name}.log",
    "reference": "reference/{kind}/*/{model}-*.log",
    "reference_features": "reference/{kind}/*.log",
    "accuracy": "accuracy/*.log",
    "drafted_trees": "drafting/{name}.log",
    "test": "equality/{kind}/*.log",
    "report": "{experiment}/report.log",
}
IMAGE: dict[str, Any] = {"prompts": {"limit": 2}, "batch": 2, "methods": {"ar": [{}], "sjd": [{"window": 16}]}}
CAPTIONED = {**IMAGE, "prompts": {"file": str(ROOT / "prompts/plain.txt"), "limit": 2}}
CLASSES = "classes:1000"
TEXT = {"batch": 4, "tasks": {"infilling": [{"rows": 4, "length": 64, "masked": 0.5}]}}
# By name of an experiment: the stand-in of its model, sizes in place of the published ones, and its section. A picture
# has 8 x 8 tokens, for a pass over them costs a core a second or more; those of "llamagen-b-64" have all 16 x 16.
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "llamagen-b": ("llamagen_c2i", {"side": 8}, {"image": {**IMAGE, "prompts": {"file": CLASSES, "limit": 2}}}),
    "llamagen-xl": ("llamagen", {"side": 8}, {"image": {**CAPTIONED, "methods": {"ar": [{}]}}}),
    "janus": ("janus", {"side": 8}, {"image": {**CAPTIONED, "methods": {"ar": [{}]}}}),
    "mar": (
        "mar",
        {},
        {"continuous": {"images": 2, "batch": [2], "forced": 0, "methods": {"mar": [{"iterations": 8}]}}},
    ),
    "llamagen-b-64": (
        "llamagen_c2i",
        {},
        {
            "image": {
                "prompts": {"file": CLASSES, "limit": 64},
                "batch": 16,
                "methods": {"ar": [{}]},
                "sampling": {"guidance": 4.0, "top_k": 2000},
            }
        },
    ),
    "xlnet": ("xlnet", {}, {"text": {**TEXT, "methods": {"sequential": [{}], "assd": [{"k": 5}]}}}),
}
HEAD = """# Memory: asked and taken

What each job asks of a scheduler (`mem_mb`) beside the most that it took, in MiB: of all jobs of a rule and model the
one that took the largest share, and the smallest and largest share. Written by `python benchmarks/memory.py`.
`default` is the default experiment; the others have networks of published sizes with random values, as `--make` makes
them (`llamagen-b-64`: 64 images of 256 pixels). Measured on a CPU, with torch {torch},
{date}, commit {commit}, machine not recorded.

| experiment | job | model | asked | taken | taken / asked |
|---|---|---|---|---|---|
"""


def read_taken(file: Path) -> int | None:
    """Read from the end of a job's log how many MiB it took; None if it did not end."""
    found = TAKEN.findall(file.read_text(encoding="utf-8", errors="replace"))
    return int(found[-1]) if found else None


def read_plan(file: Path) -> Plan:
    """Read the experiment of a file that ran in its folder, with the cells of that run."""

    def find(name: str) -> str:
        """Find a file that the experiment names: in its folder, or else in the project."""
        return name if Path(name).exists() or not (ROOT / name).exists() else str(ROOT / name)

    with contextlib.chdir(file.parent):
        raw = config_overlay.read_experiment(Path(file.name))
        return checks.make_plan(raw, find, stand_in.make_stand_ins, pins.make_pin_reader(), [])


def make(name: str, folder: Path) -> None:
    """Write the network of a case to `folder`, unless that was done, and run its experiment there."""
    stand_in, sizes, section = CASES[name]
    entry = folder / "entry.json"
    if not entry.exists():
        write_json(entry, make_entry(stand_in, folder / "network", published=True, **sizes))
    model = {"source": "files", "family": stand_in.partition("_")[0], **read_json(entry)}
    if name == "xlnet":
        judge = make_entry("gpt2", folder / "judge")
        model |= {key: model[key] | judge[key] for key in ("files", "sha256")}
    equality = {"n": 10_000, "long": 0, "pathwise": 1, "swaps": 99}
    experiment = {"experiment": name, "models": {"m": model}, "compile": "off", "equality": equality, **section}
    file = folder / "experiment.yaml"
    publish(file, yaml.safe_dump(experiment).encode())
    command = ["snakemake", "--cores", "1", "--snakefile", str(ROOT / "Snakefile"), "--configfile", file.name]
    subprocess.run([sys.executable, "-m", *command], cwd=folder, check=True)


def compare(file: Path) -> Iterator[str]:
    """Compare asked and taken, MiB, of the experiment in a file, which ran in the file's folder. Yields a line of the
    table for each rule and model, or kind, of its job of the largest share."""
    plan = read_plan(file)
    grouped: dict[tuple[str, str], list[tuple[float, int, int]]] = {}
    for job in job_resources.list_jobs(plan.config, plan.cells):
        names = {"kind": job.kind, "model": job.model, "experiment": plan.config.experiment}
        pattern = LOGS[job.rule].format(**names, name=job.cell.name if job.cell else "")
        asked = job_resources.memory(plan.config, job)
        for log in file.parent.glob(f"logs/{pattern}"):
            if (taken := read_taken(log)) is not None:
                grouped.setdefault((job.rule, job.model or job.kind), []).append((taken / asked, asked, taken))
    for (rule, model), jobs in grouped.items():
        (smallest, *_), (largest, asked, taken) = min(jobs), max(jobs)
        shares = f"{smallest:.2f} to {largest:.2f}" if largest - smallest >= 0.005 else f"{largest:.2f}"
        yield f"| {plan.config.experiment} | {rule} | {model} | {asked:,} | {taken:,} | {shares} |"


def main() -> None:
    """Make what is asked for, compare the runs, print the table, and write it to `--page` if that is given."""
    import torch

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--make", type=Path, help="a folder for networks and runs")
    parser.add_argument("--only", nargs="+", choices=CASES, default=[*CASES])
    parser.add_argument("--run", type=Path, nargs="+", default=[], help="files of experiments that have run")
    parser.add_argument("--page", type=Path)
    a = parser.parse_args()
    if a.make:
        for name in a.only:
            make(name, (a.make / name).absolute())
    files = a.run or [a.make / name / "experiment.yaml" for name in a.only]
    lines = [line for file in files for line in compare(file.absolute())]
    page = (
        HEAD.format(torch=torch.__version__, date=datetime.now(UTC).date(), commit=find_commit(ROOT))
        + "\n".join(lines)
        + "\n"
    )
    print(page)
    if a.page:
        publish(a.page, page.encode())


if __name__ == "__main__":
    run_command(main)
