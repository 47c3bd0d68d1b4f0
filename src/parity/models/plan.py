"""What an experiment will need, before anything is loaded: each kind of job with its memory, minutes and disk;
downloads; data and commits that are not here.

    snakemake --cores 1 plan --configfile workflow/experiments/sjd-table1.yaml

Memory and minutes are what the jobs ask of a scheduler (`experiment.job_resources`). The plan reads headers of files
that are here, and a table of released networks for others; the hub is asked for the bytes of downloads where a commit
is known.
"""

import bisect
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import psutil

from parity.base.errors import ParityError
from parity.experiment import cells as C
from parity.experiment import job_resources, paths, weights
from parity.experiment.job_resources import BASE, MIB, Job
from parity.experiment.network_sizes import find_judge, list_networks
from parity.experiment.schema import Config

HEAD = ("job", "model", "jobs", "memory, MiB", "minutes on a GPU", "on a core", "disk, MiB")


class Needs(NamedTuple):
    """Jobs of one rule and model: how many, and the most that one of them takes; disk is of all together."""

    rule: str
    model: str  # or the kind, of a rule that loads none
    jobs: int
    memory: int
    minutes_gpu: int
    minutes: int  # on a core
    disk: int


def list_rows(config: Config, cells: Sequence[C.Cell]) -> list[Needs]:
    """List what the jobs of an experiment take, a row for each rule and model."""
    grouped: dict[tuple[str, str], list[Job]] = {}
    for job in job_resources.list_jobs(config, cells):
        grouped.setdefault((job.rule, job.model or job.kind), []).append(job)
    rows = []
    for (rule, model), jobs in grouped.items():
        repeats = [count_repeats(config, job) for job in jobs]
        rows.append(
            Needs(
                rule,
                model,
                sum(repeats),
                max(job_resources.memory(config, job) for job in jobs),
                max(job_resources.minutes(config, job, gpu=True) for job in jobs),
                max(job_resources.minutes(config, job) for job in jobs),
                sum(n * job_resources.disk(config, job) for n, job in zip(repeats, jobs, strict=True)),
            )
        )
    return rows


def count_repeats(config: Config, job: Job) -> int:
    """Count the jobs of a rule about one cell or model: as many as decode it."""
    return paths.jobs(config, job.kind) if job.rule in ("decode", "captions") else 1


def list_downloads(config: Config, listed: Mapping[str, int | None]) -> list[str]:
    """List what is downloaded, a line for each model and network in a repository. listed: bytes of a model's files by
    its name, as the hub says; without them the table's are said."""
    lines = []
    for kind in C.kinds(config):
        for name, spec in weights.list_models(config, kind).items():
            if spec.source != "hub":
                continue
            networks, unknown = list_networks(spec)
            told = listed.get(name)
            total = told if told is not None else sum(network.stored for network in networks.values())
            about = "" if told is not None else "about "
            lines.append(f"download {name}: {about}{total / 1e9:,.1f} GB")
            if unknown:
                lines.append(
                    f"{name}: nothing says the sizes of {', '.join(unknown)}; 7 billion parameters are assumed, until"
                    " `parity models add` has read the headers of a folder"
                )
    for name, judge in config.networks.list_named().items() if any_judged(config) else ():
        if judge.repo or "://" in judge.file:
            found = find_judge(judge)
            size = f"about {found.stored / 1e9:,.1f} GB" if found else "of a size that is in no table"
            lines.append(f"download networks.{name}: {size}")
    return lines


def any_judged(config: Config) -> bool:
    """Return whether pictures of a published model are judged."""
    return any(paths.has_published(config, kind) for kind in C.kinds(config))


def format_rows(rows: Sequence[Needs]) -> list[str]:
    """Format rows as a table, a line each, below a line of titles."""
    table = [HEAD, *((r.rule, r.model, *(f"{n:,}" for n in r[2:])) for r in rows)]
    widths = [max(len(line[i]) for line in table) for i in range(len(HEAD))]
    return [
        "  ".join(
            cell.ljust(w) if i < 2 else cell.rjust(w) for i, (cell, w) in enumerate(zip(line, widths, strict=True))
        )
        for line in table
    ]


def describe(
    config: Config, cells: Sequence[C.Cell], listed: Mapping[str, int | None], absent: Sequence[str]
) -> list[str]:
    """Describe what an experiment needs, in lines. absent: what is not on this machine, a line each."""
    rows = list_rows(config, cells)
    samples = sum(job_resources.count_samples(config, cell) for cell in cells)
    lines = [f"{config.experiment}: {len(cells)} cells, {samples:,} images or texts", *format_rows(rows)]
    disk = sum(row.disk for row in rows)
    lines.append(
        f"disk: about {disk / 1024:,.1f} GiB beside downloads; minutes are limits; a job has a GPU where one is there"
    )
    lines += list_downloads(config, listed)
    if absent:
        lines.append("before a run:")
        lines += [f"  {line}" for line in join_alike(absent)]
    return lines


def join_alike(lines: Sequence[str]) -> list[str]:
    """Join lines "NAME has no ... yet; REMEDY" of one remedy to a line."""
    names_by_end: dict[str, list[str]] = {}
    for line in lines:
        name, has, rest = line.partition(" has no ")
        names_by_end.setdefault(has + rest if has else line, []).append(name)
    return [f"{', '.join(names)}{end}" if end.startswith(" has") else end for end, names in names_by_end.items()]


def check_batch(config: Config, cells: Sequence[C.Cell], free: int) -> list[str]:
    """Check that a batch of images fits into `free` bytes. Returns a line if not one image does: the experiment is
    planned for another machine.

    Raises ParityError if a smaller batch would fit; the message names the largest.
    """
    section = config.image
    if section is None:
        return []

    images = [cell for cell in cells if cell.kind == "discrete"]

    def take(batch: int) -> tuple[int, str]:
        """Compute the most bytes that a decoding job takes with such a batch, beside the process, and its model."""
        resized = config.model_copy(update={"image": section.model_copy(update={"batch": batch})})
        jobs = [Job("decode", cell.kind, cell.spec["model"], cell) for cell in images]
        return max(((job_resources.memory(resized, job) - BASE["decode"]) * MIB, job.model) for job in jobs)

    needed, model = take(section.batch)
    if needed <= free:
        return []
    fitting = bisect.bisect_right(range(1, section.batch), free, key=lambda batch: take(batch)[0])
    if not fitting:
        one, model = take(1)
        return [f"{model} needs {one / 1e9:,.1f} GB for one image, this machine has {free / 1e9:,.1f} GB free"]
    raise ParityError(
        f"image.batch = {section.batch}: {model} needs {needed / 1e9:,.1f} GB, {free / 1e9:,.1f} GB are free;"
        f" allowed: at most {fitting}"
    )


def measure_free_bytes() -> int:
    """Measure the free memory of the first GPU, or of the machine if there is none."""
    import torch

    return torch.cuda.mem_get_info()[0] if torch.cuda.is_available() else psutil.virtual_memory().available
