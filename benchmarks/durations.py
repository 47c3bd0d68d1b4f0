"""Estimate how long each experiment of workflow/experiments takes, from the jobs of a run.

    python benchmarks/durations.py RUN [--write]

RUN is the folder of a finished run: its `logs`, whose last lines say what a job cost, and its `results`. Decoding costs
by images and, for heads, steps; measuring by images; known laws by sequences. A method that the run lacks counts as
the median of its kind. No job costs less than the run's cheapest of its stage; jobs of no cell (page, inputs,
references) count by the kinds of models. With --write the header of every file is written anew.
"""

import argparse
import re
import statistics
from collections import defaultdict
from pathlib import Path

import yaml

from parity.equality.targets.discrete import targets
from parity.experiment import cells as C
from parity.experiment import checks
from parity.experiment.prompt_files import read_prompts
from parity.experiment.schema import Config

ROOT = Path(__file__).parents[1]
HEAD = "# About {time} of one core (job-seconds of a default run, scaled); small: snakemake --cores all\n# {small}\n"
HEADER = re.compile(r"# About .*\n(?:# .*--config.*\n)+")
SMALL_BATCH = 0.44  # an exponent: an image decoded alone took 24 ** 0.44 = 4 times as long as one in a batch of 24
SHARED_STAGES = ("accuracy", "checkpoints", "drafting", "inputs", "reference")  # their jobs belong to no cell
SMALL_RUN = {"image": 8, "text": 8, "continuous": 4}  # images or texts of each section in a small run


def read_cost(log: Path) -> float | None:
    """Read a job's CPU-seconds from its log; None if the log names none."""
    costs = re.findall(r"^cost: ([\d.]+) CPU-seconds", log.read_text(), re.MULTILINE)
    return float(costs[-1]) if costs else None


def count_units(config: Config, cell: C.Cell) -> float:
    """Count a cell's decoding in units of time: images, for vectors times steps / 25, or texts times length / 64."""
    if cell.kind == "discrete" and config.image:
        return config.image.prompts.limit * config.image.prompts.repeats
    if cell.kind == "continuous":
        batch_factor = max(1, 24 / cell.spec["batch"]) ** SMALL_BATCH
        return cell.spec["images"] * cell.spec["sampling"].get("steps", 25) / 25 * batch_factor
    task = next(t for t in C.list_text_tasks(config) if t["key"] == cell.spec["task"])
    return task["settings"]["rows"] * task["settings"].get("attempts", 1) * task["settings"].get("length", 64) / 64


def list_jobs(config: Config, prompts: list[str]) -> list[tuple[str, str, str, float]]:
    """List the jobs of an experiment's cells as (stage, kind, method, units). The stage is the folder of the job's log;
    units are images or texts to decode or measure, and sequences to test, all proportional to time."""
    cells = C.cells(config, prompts)
    jobs = []
    for cell in cells:
        method = cell.spec["method"]
        n = count_units(config, cell)
        rows = cell.spec["images"] if cell.kind == "continuous" else n
        jobs += [("decode", cell.kind, method, n), ("measure", cell.kind, method, rows)]
    pairs = [(C.variant(config, cell), C.long_variant(config, cell)) for cell in cells]
    full_factor = len(targets("full")) / len(targets("small")) if config.equality.models == "full" else 1
    for exact, long in {C.test_key(config, *pair): pair for pair in pairs if any(pair)}.values():
        v = exact or long
        n = (exact.n * (full_factor if v.kind == "discrete" else 1) if exact else 0) + (long.n if long else 0)
        jobs.append(("equality", v.kind, v.method, n))
    return jobs


def measure_rates(run: Path, config: Config, prompts: list[str]) -> dict[tuple[str, ...], float]:
    """Compute CPU-seconds a unit by (stage, kind, method) from a run's logs. The key (stage,) holds the seconds of the
    stage's cheapest job, and ("",) those of jobs that belong to no cell, divided by the number of kinds."""
    spent: dict[tuple[str, ...], float] = defaultdict(float)
    rates: dict[tuple[str, ...], float] = {}
    shared = 0.0
    for log in (run / "logs").rglob("*.log"):
        stage, *names = log.relative_to(run / "logs").parts
        seconds = read_cost(log)
        if seconds is None:
            continue
        if stage in (*SHARED_STAGES, config.experiment):
            shared += seconds
            continue
        rates[stage,] = min(seconds, rates.get((stage,), seconds))
        if stage == "equality" and len(names) == 1:
            spent[log.stem.rpartition("-")[0], "", ""] += seconds
        elif len(names) > 1:
            methods = [match[1] for name in names if (match := re.fullmatch(r"(.*)-[0-9a-f]{8}(?:\.log)?", name))]
            spent[stage, names[0], methods[-1] if methods else ""] += seconds
    size: dict[tuple[str, ...], float] = defaultdict(float)
    for stage, kind, method, n in list_jobs(config, prompts):
        size[stage, kind, method] += n
    rates["",] = shared / len(C.kinds(config))
    return rates | {key: spent[key] / n for key, n in size.items() if key in spent and n}


def estimate(config: Config, prompts: list[str], rates: dict[tuple[str, ...], float]) -> float:
    """Estimate the CPU-seconds of all jobs of an experiment from the rates of `measure_rates`. A method without a rate
    counts as the median of its kind, and no job as less than its stage's cheapest."""
    total = rates["",] * len(C.kinds(config))
    for stage, kind, method, n in list_jobs(config, prompts):
        of_kind = [rate for key, rate in rates.items() if key[:2] == (stage, kind)]
        rate = rates.get((stage, kind, method)) or (statistics.median(of_kind) if of_kind else 0.0)
        total += max(rate * n, rates.get((stage,), 0.0))
    return total


def read_experiment(file: Path) -> tuple[Config, list[str]]:
    """Read the configuration of an experiment and its prompts."""
    config = checks.load(yaml.safe_load(file.read_text()))
    return config, read_prompts(config.image.prompts, ROOT) if config.image else []


def choose_scale(config: Config) -> float:
    """Choose the configuration's `scale`, at most .5, that leaves a few images or texts of each section."""
    shares = [0.5]
    if config.image:
        shares.append(SMALL_RUN["image"] / config.image.prompts.limit)
    if config.text:
        rows = [task["settings"]["rows"] for task in C.list_text_tasks(config)]
        shares.append(SMALL_RUN["text"] / max(rows, default=1))
    if config.continuous:
        shares.append(SMALL_RUN["continuous"] / config.continuous.images)
    return max(0.01, float(f"{min(shares):.1g}"))


def format_duration(seconds: float) -> str:
    """Write seconds as "3 minutes" or "1.5 hours"."""
    minutes = seconds / 60
    rounded = max(1, round(minutes))
    return f"{rounded} minute{'s' * (rounded > 1)}" if minutes < 90 else f"{minutes / 60:.1f} hours"


def main() -> None:
    """Print the estimated time of each experiment; with --write put it at the head of its file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--write", action="store_true")
    a = parser.parse_args()
    default, prompts = read_experiment(ROOT / "config.yaml")
    rates = measure_rates(a.run, default, prompts)
    spent = sum(filter(None, map(read_cost, (a.run / "logs").rglob("*.log"))))
    print(f"default: estimated {estimate(default, prompts, rates):.0f}, its jobs {spent:.0f} CPU-seconds")
    for file in sorted((ROOT / "workflow/experiments").glob("*.yaml")):
        if "-table" in file.stem:  # left out: they decode published networks, on a GPU
            continue
        config, prompts = read_experiment(file)
        seconds = estimate(config, prompts, rates)
        print(f"{file.stem}: {seconds:.0f} CPU-seconds, {format_duration(seconds)}")
        if a.write:
            options = f"--configfile workflow/experiments/{file.name} --config scale={choose_scale(config):g}"
            text = HEADER.sub("", file.read_text())
            end = text.index("experiment:")
            header = HEAD.format(time=format_duration(seconds), small=options)
            file.write_text(text[:end] + header + text[end:])


if __name__ == "__main__":
    main()
