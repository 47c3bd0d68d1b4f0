"""What an experiment needs, before anything is loaded: cells and samples, downloads and the disk they take, and what is
not here.

    snakemake --cores 1 plan --configfile workflow/experiments/sjd-table1.yaml

The hub is asked for the bytes of a model's files where a commit is known.
"""

from collections.abc import Mapping, Sequence

from parity.experiment import cells as C
from parity.experiment import paths, weights
from parity.experiment.schema import Config


def count_samples(config: Config, cell: C.Cell) -> int:
    """Count the images or texts of a cell."""
    if cell.kind == "discrete" and config.image is not None:
        return config.image.prompts.limit * config.image.prompts.repeats
    if cell.kind == "continuous":
        return int(cell.spec.get("images", 64))
    tasks = getattr(config.text.tasks, cell.spec["task_kind"]) if config.text else []
    return max([1, *(task.rows * getattr(task, "attempts", 1) for task in tasks)])


def list_downloads(config: Config, listed: Mapping[str, int | None]) -> list[str]:
    """List what is downloaded, a line for each model and network, then the disk that models take. listed: bytes of a
    model's files by its name, as the hub says; None where it could not be asked."""
    models = [pair for kind in C.kinds(config) for pair in weights.list_models(config, kind).items()]
    hubs = {name: spec for name, spec in models if spec.source == "hub"}
    sizes = {name: listed.get(name) for name in hubs}
    lines = [
        f"download {name} from {hubs[name].repo}: {f'{size / 1e9:,.1f} GB' if size else 'of a size that the hub tells'}"
        for name, size in sizes.items()
    ]
    if any(paths.has_published(config, kind) for kind in C.kinds(config)):
        networks = config.networks.list_named().items()
        lines += [f"download networks.{n}: {j.repo or j.file}" for n, j in networks if j.repo or "://" in j.file]
    if known := [size for size in sizes.values() if size]:
        rest = f", and {len(sizes) - len(known)} of unknown size" if len(known) < len(sizes) else ""
        lines.append(f"disk: {sum(known) / 1e9:,.1f} GB of downloads{rest}; a file in another layout is written anew")
    return lines


def describe_size(name: str, samples: Sequence[int]) -> str:
    """Describe how large an experiment or its part of a model is. samples: of each cell."""
    return f"{name}: {len(samples)} cells, {sum(samples):,} images or texts"


def describe(
    config: Config, cells: Sequence[C.Cell], listed: Mapping[str, int | None], absent: Sequence[str]
) -> list[str]:
    """Describe what an experiment needs, in lines. absent: what is not on this machine, a line each."""
    samples: dict[str, list[int]] = {}
    for cell in cells:
        samples.setdefault(cell.spec["model"], []).append(count_samples(config, cell))
    lines = [describe_size(config.experiment, [n for counts in samples.values() for n in counts])]
    lines += [f"  {describe_size(model, counts)}" for model, counts in samples.items()]
    lines += list_downloads(config, listed)
    if absent:
        lines += ["before a run:", *(f"  {line}" for line in join_alike(absent))]
    return lines


def join_alike(lines: Sequence[str]) -> list[str]:
    """Join lines "NAME has no ... yet; REMEDY" of one remedy to a line."""
    names_by_end: dict[str, list[str]] = {}
    for line in lines:
        name, has, rest = line.partition(" has no ")
        names_by_end.setdefault(has + rest if has else line, []).append(name)
    return [f"{', '.join(names)}{end}" if end.startswith(" has") else end for end, names in names_by_end.items()]
