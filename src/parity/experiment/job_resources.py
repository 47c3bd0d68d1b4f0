"""What a job requests from a cluster, known when it is planned: memory and minutes. Imports no torch.

These are limits at which a scheduler ends a job, several times what a job takes; the rules raise them at each attempt.
A run on one machine ignores them. The last line of a job's log says what it took.
"""

from functools import cache
from pathlib import Path

from parity.experiment import paths, weights
from parity.experiment.cells import Cell
from parity.experiment.schema import Config

BASE = 3000  # MB that torch, transformers and the metrics' networks take
COPIES = 2.5  # copies of the weights in memory: as read, and as computed with, which may take twice the file's size
UNKNOWN = 16_000  # MB assumed for a model in a repository: 7 billion parameters in half precision
TOKEN = 16 * 16 * 12 / 1e6  # MB of the pixels of an image token, three floats each
PASS = 20.0  # ms that a pass takes at least, beside reading the weights at BANDWIDTH
BANDWIDTH = 100.0  # MB/ms at which a CPU reads weights; a GPU is ten times as fast
PICTURE = 0.1  # seconds to make, read and measure a picture


@cache
def measure_mb(path: Path) -> float:
    """Measure the size in MB of a file, or of all files in a folder; 0 if it does not exist."""
    return sum(file.stat().st_size for file in (path, *path.rglob("*")) if file.is_file()) / 1e6


def estimate_weights_mb(config: Config, kind: str, model: str) -> float:
    """Estimate the MB of a model's weights by its files; UNKNOWN if they are in a repository."""
    spec = weights.list_models(config, kind)[model]
    if spec.source == "hub":
        return UNKNOWN
    files = [spec.folder] if spec.folder else spec.files.values()
    return sum(measure_mb(Path(file)) for file in files) or measure_mb(weights.ROOT / kind)


def count_tokens(config: Config, cell: Cell) -> int:
    """Count the tokens of one of a cell's images by the model's grid; 256, an upper bound, for texts and vectors."""
    if cell.kind != "discrete":
        return 256
    return int(weights.read_sizes(weights.list_models(config, "discrete")[cell.spec["model"]]).get("grid", 32)) ** 2


def count_samples(config: Config, prompts: int, cell: Cell) -> int:
    if cell.kind == "discrete" and config.image is not None:
        return prompts * config.image.prompts.repeats
    return int(cell.spec.get("images", 64))


def memory(config: Config, prompts: int, kind: str, model: str, measured: Cell | None = None) -> int:
    """Estimate the MB of memory of a job that loads a model, and the pictures of the cell `measured`, if it is given.
    `prompts`: their number."""
    pixels = (
        count_samples(config, prompts, measured) * count_tokens(config, measured)
        if measured and kind != "anysubset"
        else 0
    )
    return round(BASE + COPIES * estimate_weights_mb(config, kind, model) + pixels * TOKEN)


def minutes(config: Config, prompts: int, cell: Cell, decodes: bool = True) -> int:
    """Estimate the minutes of a job that decodes a cell's samples: a pass for each token of each batch, twice, because
    plain decoding is timed too. If not `decodes`, of one that renders, measures or tests them."""
    rows = count_samples(config, prompts, cell)
    if not decodes:
        return 30 + round(rows * PICTURE / 60)
    batch = cell.spec.get("batch") or (config.image.batch if config.image is not None else 1)
    batches = -(-rows // paths.jobs(config, cell.kind) // batch)
    a_pass = PASS + estimate_weights_mb(config, cell.kind, cell.spec["model"]) / BANDWIDTH
    return 30 + round(2 * batches * count_tokens(config, cell) * a_pass / 60_000)
