"""Measure a decoded cell: pictures, equality layers, metrics, a record per image or text.

python -m parity.measure --kind discrete --spec JSON --layers '{"paired": {"seeds": [0, 1]}}' --cell FOLDER \
    --shards FOLDER/shards/0-of-1.npz --inputs 0.npz --checkpoint manifest.json

Writes to the cell's folder

    spec.json                what was asked for
    pictures/<k>-of-<n>.npz  ids and pixels, of a model of images
    laws.npz                 what the target gave the cell's tokens, where a layer WRITES laws
    metrics.json             speed, likelihood, quality
    features.npz             a row per image or text, for the paired tests
    records.parquet          a row per image or text
    equality.json            {"layers": {layer: {"rows": [...], ...}}, "seconds": s}

Layers that write laws run first, because the metrics read laws; the other layers run last, because they may read
features.
"""

import argparse
import importlib
import json
import time
from collections.abc import Sequence
from pathlib import Path

from parity.base.command import arguments, one_line, pin_threads
from parity.base.devices import take_device
from parity.base.files import read_json, write_arrays, write_json
from parity.decode.shard_io import read_shard
from parity.equality.layers import CellFiles, run_layer
from parity.experiment.module_metadata import modules
from parity.metrics import measure


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--kind", choices=modules("metrics/samples"), required=True)
    p.add_argument("--spec", type=json.loads, required=True, help="JSON: the cell's specification")
    p.add_argument("--layers", type=json.loads, default={}, help="JSON: the settings of each layer, by its name")
    p.add_argument("--protocol", default="", help="how pictures of published models are measured")
    p.add_argument("--run-code", action="store_true", help="execute what a model wrote, in a sandbox")
    paths = ("cell", "shards+", "inputs*", "checkpoint", "baseline?", "reference?", "networks*", "threads", "device")
    arguments(p, *paths)
    return p


def render(kind: str, shards: Sequence[Path], checkpoint: Path, device: str, folder: Path) -> list[Path]:
    """A file of ids and pixels uint8 [n, H, W, 3] for each shard, under its name; [] where tokens are no pictures."""
    module = importlib.import_module(f"parity.models.{kind}.load")
    if not hasattr(module, "painter"):
        return []
    painter = module.painter(read_json(checkpoint), device)
    for file in shards:
        shard = read_shard(file)
        write_arrays(folder / file.name, ids=shard.ids, pixels=painter.pictures(shard.tokens))
    return [folder / file.name for file in shards]


def main() -> None:
    a = parser().parse_args()
    pin_threads(a.threads)
    a.device, begin = take_device(a.device), time.perf_counter()
    write_json(a.cell / "spec.json", a.spec)
    a.pictures = render(a.kind, a.shards, a.checkpoint, a.device, a.cell / "pictures")
    laws, found = a.cell / "laws.npz", {}
    paths = (a.shards, a.inputs, a.checkpoint, a.baseline, a.reference, laws, a.device)
    first = [n for n in a.layers if importlib.import_module(f"parity.equality.layers.{a.kind}.{n}").WRITES]
    for name in first:
        found[name] = run_layer(name, CellFiles(a.kind, a.cell, a.layers[name], *paths))
    a.laws = laws if first else None
    a.out, a.features, a.records = (a.cell / n for n in ("metrics.json", "features.npz", "records.parquet"))
    measure.run(a)
    for name in a.layers:
        if name not in first:
            found[name] = run_layer(name, CellFiles(a.kind, a.cell, a.layers[name], *paths))
    write_json(a.cell / "equality.json", {"layers": found, "seconds": round(time.perf_counter() - begin, 1)})


if __name__ == "__main__":
    one_line(main)
