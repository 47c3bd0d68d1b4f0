"""What a job requests from a cluster, known when it is planned: memory and minutes. Imports no torch.

These are limits at which a scheduler ends a job, several times what a job takes, and more at each attempt. A run on one
machine ignores them. The last line of a job's log says what it took.
"""

from functools import cache
from pathlib import Path

from parity.experiment import paths, weights
from parity.experiment.cells import Cell
from parity.experiment.schema import Config

BASE = 3000  # MB: torch, transformers and the metrics' networks
COPIES = 2.5  # of the weights: as they are read, and as they compute; twice as large where they are kept in half
UNKNOWN = 16_000  # MB: of weights in a repository that has not been asked
PASS = 20.0  # ms of a pass however small; beside it the weights are read at BANDWIDTH
BANDWIDTH = 100.0  # MB/ms; a CPU's, a GPU has ten times as much
PICTURE = 0.1  # s to make, read and measure a picture
TOKENS = {"discrete": 0, "anysubset": 256, "continuous": 256}  # a sample's, at most; discrete: the network's grid


@cache
def megabytes(path: Path) -> float:
    """Of a file, or of all files of a folder; 0 where there is none."""
    files = [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()] if path.is_dir() else []
    return sum(file.stat().st_size for file in files) / 1e6


def weights_mb(config: Config, kind: str, model: str) -> float:
    """Megabytes of a model's weights; of a repository's as much as a model of 7 billion parameters has in half."""
    spec = weights.models(config, kind)[model]
    if spec.source == "hub":
        return UNKNOWN
    files = [spec.folder] if spec.folder else spec.files.values()
    return sum(megabytes(Path(file)) for file in files) or megabytes(weights.ROOT / kind)


def tokens(config: Config, cell: Cell) -> int:
    """Tokens of one of a cell's samples."""
    if cell.kind == "discrete":
        return int(weights.sizes(weights.models(config, "discrete")[cell.spec["model"]]).get("grid", 32)) ** 2
    return TOKENS[cell.kind]


def samples(config: Config, prompts: int, cell: Cell) -> int:
    """Samples of a cell; texts by the rows that were asked for."""
    if cell.kind == "discrete" and config.image is not None:
        return prompts * config.image.prompts.repeats
    return int(cell.spec.get("images", 64))


def memory(config: Config, kind: str, model: str, pictures: int = 0, attempt: int = 1) -> int:
    """MB of a job that loads a model, and holds so many tokens of pictures, 16x16 pixels each as three floats."""
    return round((BASE + COPIES * weights_mb(config, kind, model) + pictures * 16 * 16 * 12 / 1e6) * attempt)


def minutes(config: Config, prompts: int, cell: Cell, attempt: int = 1) -> int:
    """Of a job that decodes a cell's samples: a pass a token of each batch, twice: plain decoding is timed beside."""
    rows = -(-samples(config, prompts, cell) // paths.jobs(config, cell.kind))
    batch = cell.spec.get("batch") or (config.image.batch if config.image is not None else 1)
    a_pass = PASS + weights_mb(config, cell.kind, cell.spec["model"]) / BANDWIDTH
    passes = 2 * -(-rows // batch) * tokens(config, cell)
    return (30 + round(passes * a_pass / 60_000)) * attempt


def minutes_beside(config: Config, prompts: int, cell: Cell, attempt: int = 1) -> int:
    """Of a job that renders, measures or tests a cell's samples."""
    return (30 + round(samples(config, prompts, cell) * PICTURE / 60)) * attempt
