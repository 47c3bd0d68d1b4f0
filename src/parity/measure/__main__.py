"""Measure a decoded cell: images, equality layers, metrics, a record per image or text.

python -m parity.measure --kind discrete --spec JSON --layers '{"paired": {"seeds": [0, 1]}}' --cell FOLDER \
    --shards FOLDER/shards/0-of-1.npz --inputs 0.npz --checkpoint manifest.json

Writes to the cell's folder

    spec.json                what was asked for
    images/<k>-of-<n>.npz    ids and pixels, of a model of images
    probs.npz                what the target gave the cell's tokens, where a layer WRITES distributions
    metrics.json             speed, likelihood, quality
    features.npz             a row per image or text, for the paired tests
    records.parquet          a row per image or text
    equality.json            {"layers": {layer: {"rows": [...], ...}}, "seconds": s}

Layers that write distributions run first, because the metrics read distributions; the other layers run last, because
they may read features.
"""

import argparse
import importlib
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from parity.base.command import add_arguments, pin_threads, run_command
from parity.base.devices import RENDERED, take_device
from parity.base.digests import read_manifest
from parity.base.errors import ParityError
from parity.base.files import write_arrays, write_json
from parity.decode.shard_io import read_shard
from parity.equality.layers import CellFiles, run_layer
from parity.experiment import study
from parity.experiment.cells import complete
from parity.experiment.module_metadata import modules
from parity.metrics.estimates import columns_of
from parity.metrics.protocols import name_with_digest
from parity.metrics.tables import write_table


def parser() -> argparse.ArgumentParser:
    """Make the parser of the command line."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--kind", choices=modules("metrics/samples"), required=True)
    p.add_argument("--spec", type=json.loads, required=True, help="JSON: the cell's specification")
    p.add_argument("--layers", type=json.loads, default={}, help="JSON: the settings of each layer, by its name")
    p.add_argument("--protocol", default="", help="how images of published models are measured")
    p.add_argument("--render-batch", type=int, default=RENDERED, help="images decoded from tokens at once")
    p.add_argument("--run-code", action="store_true", help="execute what a model wrote, in a sandbox")
    paths = ("cell", "shards+", "inputs*", "checkpoint", "baseline?", "reference?", "networks*", "threads", "device")
    add_arguments(p, *paths)
    return p


def render(kind: str, shards: Sequence[Path], checkpoint: Path, device: str, folder: Path, batch: int) -> list[Path]:
    """Draw a file of ids and pixels uint8 [n, H, W, 3] for each shard into `folder`, under the shard's name, `batch`
    images at once; returns the files, [] if this kind's tokens are no images."""
    module = importlib.import_module(f"parity.models.{kind}.load")
    if not hasattr(module, "load_painter"):
        return []
    painter = module.load_painter(read_manifest(checkpoint), device)
    for file in shards:
        shard = read_shard(file)
        write_arrays(folder / file.name, ids=shard.ids, pixels=painter.images(shard.tokens, batch))
    return [folder / file.name for file in shards]


def measure(kind: str, cell: Path, **files: Any) -> None:
    """Write metrics.json, records.parquet and features.npz of the cell in folder `cell`, whose inputs are `files`
    (`parity.metrics.samples.Files`). Raises ParityError for a metric whose columns have not a value for each row."""
    sample = importlib.import_module(f"parity.metrics.samples.{kind}").Sample(cell=cell, **files)
    metrics = [importlib.import_module(f"parity.metrics.{name}") for name in study.metrics(kind)]
    n = len(sample.shard.ids)
    for metric in metrics:
        for name, values in metric.rows(sample).items() if hasattr(metric, "rows") else ():
            if len(values) != n:
                raise ParityError(f"{metric.__file__}: {len(values)} values of {name}; needed: {n}, one a row")
            sample.rows[name] = values
    figures: dict[str, Any] = {"n": n}
    arrays: dict[str, np.ndarray] = {}
    for metric in metrics:
        figures |= metric.measure(sample)
        arrays |= metric.arrays(sample) if hasattr(metric, "arrays") else {}
    if sample.protocol:
        figures["protocol"] = name_with_digest(sample.protocol)
    spec, key = sample.spec, cell.name.rsplit("-", 1)[1]
    labels = {"model": spec["model"], "method": spec["method"], "key": key, "seed": spec["seed"], **sample.labels}
    constant = {name: np.full(n, value) for name, value in labels.items()}
    write_table(cell / "records.parquet", {"id": sample.shard.ids, **constant, **sample.rows})
    write_arrays(cell / "features.npz", ids=sample.shard.ids, **arrays)
    write_json(cell / "metrics.json", columns_of(figures))


def main() -> None:
    """Measure a cell: draw its images, run the layers that write distributions, the metrics, then the other layers."""
    a = parser().parse_args()
    pin_threads(a.threads)
    device, begin = take_device(a.device), time.perf_counter()
    write_json(a.cell / "spec.json", complete(a.kind, a.spec, read_manifest(a.checkpoint)["family"]))
    images = render(a.kind, a.shards, a.checkpoint, device, a.cell / "images", a.render_batch)
    probs = a.cell / "probs.npz"
    paths = (a.shards, a.inputs, a.checkpoint, a.baseline, a.reference, probs, device)

    def run(names: list[str]) -> dict[str, Any]:
        return {name: run_layer(name, CellFiles(a.kind, a.cell, a.layers[name], *paths)) for name in names}

    first = [n for n in a.layers if importlib.import_module(f"parity.equality.layers.{a.kind}.{n}").WRITES]
    results = run(first)
    measure(
        a.kind, a.cell, shards=a.shards, checkpoint=a.checkpoint, image_files=images,
        probs_file=probs if first else None, inputs=a.inputs, reference=a.reference,
        networks=a.networks, protocol=a.protocol, run_code=a.run_code, device=device,
    )  # fmt: skip
    results |= run([name for name in a.layers if name not in first])
    write_json(a.cell / "equality.json", {"layers": results, "seconds": round(time.perf_counter() - begin, 1)})


if __name__ == "__main__":
    run_command(main)
