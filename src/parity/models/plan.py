"""What an experiment on images will need, before anything is loaded: downloads, memory, hours of a GPU where known.

    snakemake --cores 1 plan --configfile workflow/experiments/sjd-table1.yaml

Memory is that of weights as their files hold them, of keys and values, and of the laws of a window: what decides
whether a batch fits. Files that are not here count as the hub says, where it answers. Hours are images x tokens x
passes a token x milliseconds of a pass, where `benchmarks/gpu.py` measured a network of this size (gpu.json).
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from parity.base.digests import parts
from parity.base.errors import ParityError
from parity.base.files import foreign_json
from parity.experiment import cells as C
from parity.experiment import weights
from parity.experiment.options import PLACES
from parity.experiment.schema import Config, ImageSection, ModelSpec

GPU = Path("gpu.json")
WIDTH = {"float32": 4, "float64": 8, "bfloat16": 2}  # bytes of a number
COPIES = 6  # of a window's laws held at once, float32: logits of both halves, p, q, a filtered and a sorted copy
CAPTION = 128  # places of a prompt, where a model's sizes do not say how many


@dataclass(frozen=True)
class Needs:
    """Of a model in an experiment; bytes, None where nothing here tells them."""

    model: str
    download: int | None
    held: int | None  # by its weights
    row: int | None  # by an image of a batch: keys and values, and the laws of a window
    images: int  # over all cells
    hours: float | None

    def memory(self, batch: int) -> int | None:
        return None if self.held is None or self.row is None else self.held + batch * self.row

    def largest(self, free: int) -> int | None:
        """The largest batch that fits into `free` bytes."""
        return None if self.held is None or self.row is None else max(0, free - self.held) // self.row


def size_here(file: str) -> int | None:
    """Bytes of a file, or of a folder's weights; None for one that is not here."""
    try:
        return sum(part.stat().st_size for part in parts(Path(file)))
    except (ParityError, OSError):
        return None


def total(sizes: Iterable[int | None]) -> int | None:
    known = list(sizes)
    return None if None in known else sum(size for size in known if size is not None)


def kept_numbers(spec: ModelSpec) -> int | None:
    """Numbers that a place of a picture keeps in the cache, over all layers."""
    sizes = weights.network(spec)
    if "layers" in sizes:
        return 2 * int(sizes["layers"]) * int(sizes["dim"])
    config = language_config(spec)
    if not config:
        return None
    heads = int(config.get("num_key_value_heads") or config["num_attention_heads"])
    width = int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])
    return 2 * int(config["num_hidden_layers"]) * heads * width


def language_config(spec: ModelSpec) -> dict[str, Any]:
    """Sizes of the language model that the configuration file of a folder tells; {} where none is here."""
    file = Path(spec.files.get("model", "")) / "config.json"
    if spec.source != "files" or not file.is_file():
        return {}
    config = foreign_json(file)
    return next(
        (config[key] for key in ("text_config", "language_config") if isinstance(config.get(key), dict)), config
    )


def widest(section: ImageSection) -> int:
    """Tokens of a method's pass, at most."""
    every = [variant for variants in section.methods.values() for variant in variants]
    return 1 + max(int(o[key]) for o in [*every, {"window": 1}] for key in (*PLACES["discrete"], "total") if key in o)


def row_bytes(section: ImageSection, spec: ModelSpec, kept: int) -> int:
    """Bytes of an image of a batch, with the unconditional half where there is guidance."""
    sizes, guided = weights.network(spec), any(s.guidance != 1 for s in C.as_list(section.sampling))
    places = weights.places_of(spec).length + int(sizes.get("prefix", CAPTION))
    laws = COPIES * widest(section) * int(sizes["vocab"]) * 4
    return (2 if guided else 1) * kept * places * WIDTH[section.dtype] + laws


def hours(section: ImageSection, spec: ModelSpec, kept: int | None, cells: list[C.Cell], images: int) -> float | None:
    """Hours of a GPU for all cells of a model; None where a method's passes, or a pass of this network, were not
    measured."""
    if not GPU.is_file() or kept is None:
        return None
    found = json.loads(GPU.read_text())
    passes = {row["method"]: row["passes a token"] for row in found.get("tokens", [])}
    ms = [row["ms"] for row in found.get("forwards", []) if row.get("kept") == kept and row["batch"] == 1]
    if not found.get("measured") or not ms or any(cell.spec["method"] not in passes for cell in cells):
        return None
    tokens = weights.places_of(spec).length
    return sum(images * tokens * passes[cell.spec["method"]] for cell in cells) * min(ms) / 3.6e6


def cells_of(config: Config) -> list[C.Cell]:
    """Cells of images; their number does not hang on the words of the prompts."""
    return [cell for cell in C.cells(config, []) if cell.kind == "discrete"]


def needs(config: Config, cells: list[C.Cell], listed: Mapping[str, int]) -> list[Needs]:
    """Of every discrete model. listed: bytes of a model's files that the hub tells, by model."""
    section, found = config.image, []
    if section is None:
        return []
    images = section.prompts.limit * section.prompts.repeats
    for name, spec in weights.models(config, "discrete").items():
        own = [cell for cell in cells if cell.kind == "discrete" and cell.spec["model"] == name]
        files = list(spec.files.values())
        if spec.source == "embedded":
            files = [str(weights.EMBEDDED / f) for f in weights.embedded_files(spec).values()]
        here = None if spec.source == "hub" else total(map(size_here, files))
        held, kept = here if here is not None else listed.get(name), kept_numbers(spec)
        row = None if kept is None else row_bytes(section, spec, kept)
        download = 0 if here is not None else listed.get(name)
        found.append(Needs(name, download, held, row, images * len(own), hours(section, spec, kept, own, images)))
    return found


def format_size(value: float | None, unit: str, scale: float = 1.0) -> str:
    return "not known" if value is None else f"{value / scale:,.1f} {unit}"


def lines(config: Config, found: list[Needs], free: int) -> list[str]:
    """The plan in words, a line a model."""
    batch = config.image.batch if config.image else 1
    return [
        f"{n.model}: {n.images:,} images; download {format_size(n.download, 'GB', 1e9)};"
        f" weights {format_size(n.held, 'GB', 1e9)}; an image of a batch {format_size(n.row, 'MB', 1e6)};"
        f" batch {batch} {format_size(n.memory(batch), 'GB', 1e9)} of {free / 1e9:,.1f} GB;"
        f" GPU {format_size(n.hours, 'hours')}"
        for n in found
    ]


def check(config: Config, found: list[Needs], free: int) -> None:
    """ParityError for a batch that does not fit into `free` bytes, with the largest that does."""
    for n in found:
        batch, most = config.image.batch if config.image else 1, n.largest(free)
        if most is not None and most < batch:
            allowed = f"at most {most}" if most else "a device with more memory; not one image fits"
            raise ParityError(
                f"image.batch = {batch}: {n.model} needs {format_size(n.memory(batch), 'GB', 1e9)},"
                f" {free / 1e9:,.1f} GB are free; allowed: {allowed}"
            )


def free_bytes() -> int:
    """Of the first GPU, or of the machine where there is none."""
    import torch

    if torch.cuda.is_available():
        return torch.cuda.mem_get_info()[0]
    return psutil.virtual_memory().available
