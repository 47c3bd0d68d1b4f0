"""Pictures of a cell in the layout of a benchmark that has an environment of its own (`metrics.layouts`)."""

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from parity.base.errors import ParityError
from parity.decode.shard_io import read_rows, read_shard
from parity.experiment.prompt_files import every
from parity.experiment.schema import PromptSpec
from parity.experiment.validation import validate
from parity.metrics.layouts import exported, keep


def images(cell: Path) -> Iterator[tuple[str, str, np.ndarray]]:
    """Id, caption and pixels of a cell's pictures, in order; a file at a time."""
    files = sorted(cell.glob("pictures/*-of-*.npz"), key=lambda f: int(f.name.partition("-")[0]))
    if not files:
        raise ParityError(f"--cell {cell}: holds no pictures; allowed: results/cells/discrete/<model>/<method>-<key>")
    for file in files:
        rows, shard = read_rows(file), read_shard(cell / "shards" / file.name)
        if not np.array_equal(rows["ids"].astype(str), shard.ids.astype(str)):
            raise ParityError(f"{file}: its ids are not those of the shard; delete it and run again")
        yield from zip(rows["ids"].astype(str), shard.captions.astype(str), rows["pixels"], strict=True)


def run(a: argparse.Namespace) -> None:
    if a.results is not None:
        print(f"{a.cell}: {keep(a.layout, a.results, a.cell)}")
        return
    if a.out is None or a.prompts is None:
        raise ParityError("export: --prompts and --out are needed to write, --results to read back")
    spec = validate(PromptSpec, {"file": str(a.prompts), "format": a.format, "limit": 100_000}, "--prompts")
    rows = list(every(spec, Path(), f"--prompts {a.prompts}"))
    print(f"{exported(a.layout, rows, images(a.cell), a.out)} prompts to {a.out}")
