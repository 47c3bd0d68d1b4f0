"""Shared by the benchmarks: the command line, embedded models, their rows, and a method with its options."""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from parity.experiment.options import find_plain_method, options
from parity.inputs.prompts import encode
from parity.models import fetch

Rows = dict[str, np.ndarray]


def parse_flags(doc: str | None, variants: list[str] | None = None, **flags: Any) -> argparse.Namespace:
    """Parse the command line and return its values. `flags` maps a flag's name to its default: a list takes many
    values, a tuple lists the choices, its default first. `variants` are the defaults of arguments without a flag. `doc`
    describes the command. Sets torch's threads to --threads (1)."""
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


def make_manifest(kind: str, family: str) -> dict[str, Any]:
    """Make the manifest, with files and settings, of an embedded model; its results folder is `results`."""
    return fetch.make_manifest(kind, family, {"family": family}, Path("results"))


def encode_captions(images: int) -> tuple[dict[str, Any], Rows]:
    """Encode the first captions, held out from training, for the embedded LlamaGen; return its manifest and rows."""
    manifest = make_manifest("discrete", "llamagen")
    captions = Path("prompts/scenes.txt").read_text().splitlines()[:images]
    return manifest, {"ids": np.array(captions), "captions": np.array(captions), **encode(manifest, captions)}


def number_images(images: int) -> Rows:
    """Make the rows of a continuous model: images with the ids 0, 1, ..."""
    return {"ids": np.array([str(i) for i in range(images)])}


def make_sampling(guidance: float) -> dict[str, float]:
    """Make the settings of plain sampling at a guidance scale."""
    return {"guidance": guidance, "temperature": 1.0, "top_k": 0, "top_p": 1.0}


def make_spec(kind: str, variant: str, seed: int, **settings: Any) -> dict[str, Any]:
    """Specify a variant, 'mtj: {branches: 96}', 'mtj' or '' (plain decoding); `settings` replace or add entries."""
    parsed = yaml.safe_load(variant or find_plain_method(kind))
    method, chosen = next(iter(parsed.items())) if isinstance(parsed, dict) else (parsed, {})
    return {"method": method, "options": options(kind, method, chosen), "seed": seed, "dtype": "float32", **settings}
