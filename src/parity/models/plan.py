"""What an experiment on images will need, before anything is loaded: downloads, memory, hours of a GPU where known.

    snakemake --cores 1 plan --configfile workflow/experiments/sjd-table1.yaml

Memory is that of weights as their files hold them, of keys and values, and of the laws of a window: what decides
whether a batch fits. Hours are images x tokens x passes a token x milliseconds of a pass, where `benchmarks/gpu.py`
measured a network of this size (gpu.json).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from parity.base.digests import parts
from parity.base.errors import ParityError
from parity.base.files import foreign_json
from parity.experiment import cells as C
from parity.experiment import weights
from parity.experiment.options import LENGTHS, counts
from parity.experiment.schema import Config, ImageSection, ModelSpec

GPU = Path("gpu.json")
WIDTH = {"float32": 4, "float64": 8, "bfloat16": 2}  # a number of each dtype has so many bytes
COPIES = 6  # so many copies of a window's laws are held at once: logits of both halves, p, q, filtered, sorted
CAPTION = 128  # a prompt is assumed to have so many positions if the model's sizes do not say it


@dataclass(frozen=True)
class Needs:
    """Needs of a model in an experiment; bytes, None where unknown."""

    model: str
    download: int | None
    held: int | None  # the model's weights take so many bytes
    row: int | None  # each image of a batch adds so many bytes: keys and values, and the laws of a window
    images: int  # all cells together make so many images
    hours: float | None

    def memory(self, batch: int) -> int | None:
        return None if self.held is None or self.row is None else self.held + batch * self.row

    def largest(self, free: int) -> int | None:
        """Compute the largest batch that fits into `free` bytes; None if the needs are unknown."""
        return None if self.held is None or self.row is None else max(0, free - self.held) // self.row


def measure_files(files: list[Path]) -> int | None:
    """Sum the bytes of files, or of the weights in folders; None if one is not on this machine."""
    try:
        return sum(component.stat().st_size for file in files for component in parts(file))
    except (ParityError, OSError):
        return None


def count_cached(spec: ModelSpec) -> int | None:
    """Count the numbers that the cache holds for a position, over all layers, from the family's sizes or a folder's
    config.json; None if neither says it."""
    sizes = weights.read_sizes(spec)
    file = Path(spec.files.get("model", "")) / "config.json"
    if "layers" in sizes:
        return 2 * int(sizes["layers"]) * int(sizes["dim"])
    if spec.source != "files" or not file.is_file():
        return None
    record = foreign_json(file)
    nested = [record[key] for key in ("text_config", "language_config") if isinstance(record.get(key), dict)]
    config: dict[str, Any] = [*nested, record][0]
    heads = int(config.get("num_key_value_heads") or config["num_attention_heads"])
    width = int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])
    return 2 * int(config["num_hidden_layers"]) * heads * width


def estimate_row_bytes(section: ImageSection, spec: ModelSpec, cached: int) -> int:
    """Estimate the bytes that an image of a batch takes: keys and values (`cached` numbers a position), twice with
    guidance, and the laws of the widest window of any method."""
    sizes = weights.read_sizes(spec)
    guided = any(s.guidance != 1 for s in C.wrap_in_list(section.sampling))
    n_positions = weights.count_positions(spec).length + int(sizes.get("prefix", CAPTION))
    lengths = [
        int(variant.get(name, 0))
        for method, variants in section.methods.items()
        for name, c in counts("discrete", method).items()
        for variant in variants
        if c.what in (*LENGTHS, "nodes")
    ]
    widest = 1 + max([1, *lengths])
    laws = COPIES * widest * int(sizes["vocab"]) * 4
    return (2 if guided else 1) * cached * n_positions * WIDTH[section.dtype] + laws


def estimate_hours(spec: ModelSpec, cached: int | None, cells: list[C.Cell], images: int) -> float | None:
    """Estimate the GPU hours of all cells of a model, `images` images each, from gpu.json; None if a method's passes,
    or a pass of this network, were not measured."""
    if not GPU.is_file() or cached is None:
        return None
    measured = json.loads(GPU.read_text())
    passes = {row["method"]: row["passes a token"] for row in measured.get("tokens", [])}
    ms = [row["ms"] for row in measured.get("forwards", []) if row.get("kept") == cached and row["batch"] == 1]
    if not measured.get("measured") or not ms or any(cell.spec["method"] not in passes for cell in cells):
        return None
    tokens = weights.count_positions(spec).length
    return sum(images * tokens * passes[cell.spec["method"]] for cell in cells) * min(ms) / 3.6e6


def list_needs(config: Config, listed: Mapping[str, int | None]) -> list[Needs]:
    """List the needs of each discrete model of an experiment. listed: bytes of their files on the hub, by model."""
    section = config.image
    result = []
    if section is None:
        return []
    cells = [cell for cell in C.cells(config, []) if cell.kind == "discrete"]  # needs do not depend on the prompts
    images = section.prompts.limit * section.prompts.repeats
    for name, spec in weights.list_models(config, "discrete").items():
        model_cells = [cell for cell in cells if cell.spec["model"] == name]
        if spec.source == "embedded":
            files = [weights.EMBEDDED / f for f in weights.list_embedded_files(spec).values()]
        else:
            files = [Path(file) for file in spec.files.values()]
        local_bytes = None if spec.source == "hub" else measure_files(files)
        download = listed.get(name) if local_bytes is None else 0
        cached = count_cached(spec)
        row = None if cached is None else estimate_row_bytes(section, spec, cached)
        weight_bytes = local_bytes if local_bytes is not None else listed.get(name)
        result.append(
            Needs(
                name,
                download,
                weight_bytes,
                row,
                images * len(model_cells),
                estimate_hours(spec, cached, model_cells, images),
            )
        )
    return result


def format_size(value: float | None, unit: str, scale: float = 1.0) -> str:
    return "not known" if value is None else f"{value / scale:,.1f} {unit}"


def describe_needs(batch: int, models_needs: list[Needs], free: int) -> list[str]:
    """Describe the needs in words, a line a model; free: bytes of memory."""
    return [
        f"{n.model}: {n.images:,} images; download {format_size(n.download, 'GB', 1e9)};"
        f" weights {format_size(n.held, 'GB', 1e9)}; an image of a batch {format_size(n.row, 'MB', 1e6)};"
        f" batch {batch} {format_size(n.memory(batch), 'GB', 1e9)} of {free / 1e9:,.1f} GB;"
        f" GPU {format_size(n.hours, 'hours')}"
        for n in models_needs
    ]


def check(batch: int, models_needs: list[Needs], free: int) -> None:
    """Raise ParityError for a batch that does not fit into `free` bytes; the message names the largest that does."""
    for n in models_needs:
        if (largest := n.largest(free)) is not None and largest < batch:
            allowed = f"at most {largest}" if largest else "a device with more memory; not one image fits"
            raise ParityError(
                f"image.batch = {batch}: {n.model} needs {format_size(n.memory(batch), 'GB', 1e9)},"
                f" {free / 1e9:,.1f} GB are free; allowed: {allowed}"
            )


def measure_free_bytes() -> int:
    """Measure the free memory of the first GPU, or of the machine if there is none."""
    import torch

    return torch.cuda.mem_get_info()[0] if torch.cuda.is_available() else psutil.virtual_memory().available
