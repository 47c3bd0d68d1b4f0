"""What each experiment of workflow/experiments takes, scaled from the jobs of a run, and the line that says so.

    python benchmarks/durations.py RUN [--write]

RUN is the folder of a finished run: its `logs`, whose last lines say what a job cost, and its `results`. Decoding costs
by images and, for heads, steps; measuring by images; known laws by sequences. A method that the run has not counts as
the median of its kind. No job costs less than the run's cheapest of its stage; what is no cell's (page, inputs,
references) counts by the kinds of models. With --write the header of every file is written anew.
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
HEAD = "# About {said} of one core (job-seconds of a default run, scaled); small: snakemake --cores all\n# {small}\n"
BELOW = re.compile(r"# About .*\n(?:# .*--config.*\n)+")
SMALL_BATCH = 0.44  # an image of a batch of one took 4 times what one of a batch of 24 takes
ONCE = ("accuracy", "checkpoints", "drafting", "inputs", "reference")  # stages whose jobs belong to no cell
SMALLER = {"image": 8, "text": 8, "continuous": 4}  # of each section a small run keeps about so many


def cost(log: Path) -> float | None:
    found = re.findall(r"^cost: ([\d.]+) CPU-seconds", log.read_text(), re.MULTILINE)
    return float(found[-1]) if found else None


def units(config: Config, cell: C.Cell) -> float:
    """How much a cell decodes: its images or texts, for heads times the steps of a walk."""
    if cell.kind == "discrete" and config.image:
        return config.image.prompts.limit * config.image.prompts.repeats
    if cell.kind == "continuous":
        small = max(1, 24 / cell.spec["batch"]) ** SMALL_BATCH
        return cell.spec["images"] * cell.spec["sampling"].get("steps", 25) / 25 * small
    task = next(t for t in C.list_text_tasks(config) if t["key"] == cell.spec["task"])
    return task["settings"]["rows"] * task["settings"].get("attempts", 1) * task["settings"].get("length", 64) / 64


def jobs(config: Config, prompts: list[str]) -> list[tuple[str, str, str, float]]:
    """(stage, kind, method, units) of every job that an experiment has, with its log's folder as the stage."""
    every, found = C.cells(config, prompts), []
    for cell in every:
        method, n = cell.spec["method"], units(config, cell)
        rows = cell.spec["images"] if cell.kind == "continuous" else n
        found += [("decode", cell.kind, method, n), ("measure", cell.kind, method, rows)]
    pairs = [(C.variant(config, cell), C.long_variant(config, cell)) for cell in every]
    more = len(targets("full")) / len(targets("small")) if config.equality.models == "full" else 1
    for exact, long in {C.test_key(config, *pair): pair for pair in pairs if any(pair)}.values():
        v = exact or long
        n = (exact.n * (more if v.kind == "discrete" else 1) if exact else 0) + (long.n if long else 0)
        found.append(("equality", v.kind, v.method, n))
    return found


def rates(run: Path, config: Config, prompts: list[str]) -> dict[tuple[str, ...], float]:
    """CPU-seconds a unit, by stage, kind and method, of each job of the run; by stage alone, of its cheapest job; under
    "" those of a kind's jobs that belong to no cell."""
    of_log: dict[tuple[str, ...], float] = defaultdict(float)
    known: dict[tuple[str, ...], float] = {}
    once = 0.0
    for log in (run / "logs").rglob("*.log"):
        stage, *rest = log.relative_to(run / "logs").parts
        spent = cost(log)
        if spent is None:
            continue
        if stage in (*ONCE, config.experiment):
            once += spent
            continue
        known[stage,] = min(spent, known.get((stage,), spent))
        if stage == "equality" and len(rest) == 1:
            of_log[log.stem.rpartition("-")[0], "", ""] += spent
        elif len(rest) > 1:
            methods = [name[1] for part in rest if (name := re.fullmatch(r"(.*)-[0-9a-f]{8}(?:\.log)?", part))]
            of_log[stage, rest[0], methods[-1] if methods else ""] += spent
    size: dict[tuple[str, ...], float] = defaultdict(float)
    for stage, kind, method, n in jobs(config, prompts):
        size[stage, kind, method] += n
    known["",] = once / len(C.kinds(config))
    return known | {key: of_log[key] / n for key, n in size.items() if key in of_log and n}


def estimate(config: Config, prompts: list[str], known: dict[tuple[str, ...], float]) -> float:
    total = known["",] * len(C.kinds(config))
    for stage, kind, method, n in jobs(config, prompts):
        near = [rate for key, rate in known.items() if key[:2] == (stage, kind)]
        rate = known.get((stage, kind, method)) or (statistics.median(near) if near else 0.0)
        total += max(rate * n, known.get((stage,), 0.0))
    return total


def read(file: Path) -> tuple[Config, list[str]]:
    config = checks.load(yaml.safe_load(file.read_text()))
    return config, read_prompts(config.image.prompts, ROOT) if config.image else []


def scale(config: Config) -> float:
    """A share that leaves a few images or texts of every section."""
    shares = [0.5]
    if config.image:
        shares.append(SMALLER["image"] / config.image.prompts.limit)
    if config.text:
        rows = [task["settings"]["rows"] for task in C.list_text_tasks(config)]
        shares.append(SMALLER["text"] / max(rows, default=1))
    if config.continuous:
        shares.append(SMALLER["continuous"] / config.continuous.images)
    return max(0.01, float(f"{min(shares):.1g}"))


def said(seconds: float) -> str:
    minutes = seconds / 60
    whole = max(1, round(minutes))
    return f"{whole} minute{'s' * (whole > 1)}" if minutes < 90 else f"{minutes / 60:.1f} hours"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--write", action="store_true")
    a = parser.parse_args()
    default, prompts = read(ROOT / "config.yaml")
    known = rates(a.run, default, prompts)
    spent = sum(filter(None, map(cost, (a.run / "logs").rglob("*.log"))))
    print(f"default: estimated {estimate(default, prompts, known):.0f}, its jobs {spent:.0f} CPU-seconds")
    for file in sorted((ROOT / "workflow/experiments").glob("*.yaml")):
        if "-table" in file.stem:  # on published networks, whose time is a GPU's
            continue
        config, prompts = read(file)
        seconds = estimate(config, prompts, known)
        print(f"{file.stem}: {seconds:.0f} CPU-seconds, {said(seconds)}")
        if a.write:
            small = f"--configfile workflow/experiments/{file.name} --config scale={scale(config):g}"
            text = BELOW.sub("", file.read_text())
            place = text.index("experiment:")
            file.write_text(text[:place] + HEAD.format(said=said(seconds), small=small) + text[place:])


if __name__ == "__main__":
    main()
