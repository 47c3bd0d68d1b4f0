"""Decode one shard of prompts with one method: the job that every method's rule runs.

    python -m parity.generate --spec spec.json --prompts 0.npz --checkpoint manifest.json \
        --code 0123 --store results/store --batch 32 --threads 1 --device cpu --out 0.npz

A shard is the unit of recovery. Whole shards are kept in a store under a digest of all they depend on (specification, images, sources), and a
job first looks there: a killed run loses the shards in flight alone, and an option changed and changed back decodes nothing twice.
"""

import argparse
import hashlib
import importlib
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from parity.base.command import one_line, pin_threads, progress, provenance
from parity.base.files import Shard, canonical, read_arrays, read_json, read_shard, write_shard
from parity.base.noise import batch_noise
from parity.decode.discrete import decode
from parity.experiment.config import needs
from parity.models import checkpoints
from parity.models.discrete.sampling import Sampled, Sampling

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}


def generate(loaded: checkpoints.Loaded, spec: dict[str, Any], encoded: dict[str, np.ndarray], batch: int) -> Shard:
    """Tokens and records of encoded prompts (`parity.encode`) under `spec`, in batches."""
    method = getattr(importlib.import_module(f"parity.decoders.discrete.{spec['method']}"), spec["method"])
    sampling = Sampling(**spec["sampling"])
    rows: dict[str, list[Any]] = {}
    starts = range(0, len(encoded["ids"]), batch)
    for i in progress(starts, len(starts), f"{spec['method']} {canonical(spec['options'])}"):
        part = {k: v[i : i + batch] for k, v in encoded.items()}
        ids = part["ids"].tolist()
        model = Sampled(loaded.decodable(part["embeddings"], part["valid"], sampling.guidance != 1), sampling)
        wide = (
            torch.float64 if spec["dtype"] == "float64" else torch.float32
        )  # laws are float32 or wider whatever the weights are
        noise = batch_noise(spec["seed"], ids, str(loaded.device), wide)
        start = torch.zeros(len(ids), dtype=torch.int64, device=loaded.device)
        done = decode(model, method(model, start, noise=noise, **spec["options"]), len(ids))
        full = np.full(len(ids), 1)
        for name, value in {
            "ids": part["ids"],
            "captions": part["captions"],
            "tokens": done.tokens.cpu().numpy().astype(np.int32),
            "step": done.step.cpu().numpy(),
            "nfe": done.nfe.cpu().numpy(),
            "nodes": done.nodes.cpu().numpy(),
            "kept": done.kept.cpu().numpy(),
            "seconds": full * done.seconds,
            "batch": full * len(ids),
            "passes": full * done.passes,
        }.items():
            rows.setdefault(name, []).append(value)
    wide_kept = max(k.shape[1] for k in rows["kept"])
    rows["kept"] = [np.pad(k, ((0, 0), (0, wide_kept - k.shape[1]))) for k in rows["kept"]]
    columns: dict[str, Any] = {k: np.concatenate(v) for k, v in rows.items()}
    return Shard(**columns)


def stored(store: Path, spec: dict[str, Any], code: str, encoded: dict[str, np.ndarray]) -> Path:
    """Where the store keeps a shard: the name holds everything its bytes depend on, the time they took aside."""
    images = [encoded[k].astype(str).tolist() for k in ("ids", "captions")]
    return store / f"{hashlib.sha256(canonical([spec, code, images]).encode()).hexdigest()[:24]}.npz"


def is_whole(path: Path) -> bool:
    """Whether a stored shard can be read: every member's checksum holds."""
    try:
        read_shard(path)
    except (FileNotFoundError, ValueError):
        return False
    return True


def link(source: Path, out: Path) -> None:
    """Put a stored file in its place, whole: a hard link where the file system has them (a copy would do as well)."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as folder:
        part = Path(folder) / out.name
        try:
            os.link(source, part)
        except OSError:
            part.write_bytes(source.read_bytes())
        part.replace(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name in ("spec", "prompts", "checkpoint", "store", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--code", required=True, help="digest of the sources the samples depend on")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    a = parser.parse_args()
    pin_threads(a.threads)
    spec, encoded = read_json(a.spec), read_arrays(a.prompts)
    kept = stored(a.store, spec, a.code, encoded)
    if is_whole(kept):
        print(f"{kept}: whole and of this specification; not decoded again")
    else:
        loaded = checkpoints.load(read_json(a.checkpoint), a.device, DTYPES[spec["dtype"]], needs(spec["method"]))
        shard = generate(loaded, spec, encoded, a.batch)
        shard.provenance = {**provenance(a.device, spec["dtype"], a.threads), "spec": spec, "code": a.code}
        write_shard(kept, shard)
    link(kept, a.out)


if __name__ == "__main__":
    one_line(main)
