"""What benchmarks start from: what they are asked, an embedded model, its rows, and a method with its options."""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from parity.decode import loop
from parity.decode.shard_io import Shard
from parity.experiment.options import find_plain_method, options
from parity.inputs.prompts import encode
from parity.models import fetch

Rows = dict[str, np.ndarray]


def asked(doc: str | None, variants: list[str] | None = None, **flags: Any) -> argparse.Namespace:
    """The command line: flags with their defaults, a list for many values, a tuple for a choice, the default first;
    `variants` without a flag. Torch computes with --threads threads (1)."""
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    if variants is not None:
        parser.add_argument("variants", nargs="*", default=variants)
    for name, default in {**flags, "threads": 1}.items():
        if isinstance(default, list):
            parser.add_argument(f"--{name}", nargs="+", type=type(default[0]), default=default)
        elif isinstance(default, tuple):
            parser.add_argument(f"--{name}", choices=default, default=default[0])
        else:
            parser.add_argument(f"--{name}", type=type(default), default=default)
    a = parser.parse_args()
    torch.set_num_threads(a.threads)
    return a


def embedded(kind: str, family: str) -> dict[str, Any]:
    """The manifest of an embedded model."""
    return fetch.make_manifest(kind, family, {"family": family}, Path("results"))


def captioned(images: int) -> tuple[dict[str, Any], Rows]:
    """The embedded LlamaGen's manifest, and the first captions (held out from training) as its decoders read them."""
    manifest = embedded("discrete", "llamagen")
    captions = Path("prompts/scenes.txt").read_text().splitlines()[:images]
    return manifest, {"ids": np.array(captions), "captions": np.array(captions), **encode(manifest, captions)}


def numbered(images: int) -> Rows:
    """Images of a continuous model."""
    return {"ids": np.array([str(i) for i in range(images)])}


def guided(scale: float) -> dict[str, float]:
    """Plain sampling at a guidance scale."""
    return {"guidance": scale, "temperature": 1.0, "top_k": 0, "top_p": 1.0}


def cell(kind: str, variant: str, seed: int, **said: Any) -> dict[str, Any]:
    """The specification of a variant, such as 'mtj: {branches: 96}' or 'mtj'; '' for plain decoding."""
    given = yaml.safe_load(variant or find_plain_method(kind))
    method, chosen = next(iter(given.items())) if isinstance(given, dict) else (given, {})
    return {"method": method, "options": options(kind, method, chosen), "seed": seed, "dtype": "float32", **said}


def decoded(kind: str, manifest: dict[str, Any], spec: dict[str, Any], rows: Rows, batch: int) -> Shard:
    """Tokens and records of rows."""
    return loop.decode(kind, loop.load(kind, manifest, spec), spec, rows, batch)
