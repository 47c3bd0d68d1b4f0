"""Prompts of images: which images a decoding job makes, and what their captions condition a model on."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from parity.base.command import progress
from parity.base.files import read_json, write_arrays, write_json
from parity.experiment.prompt_files import read_prompts
from parity.experiment.schema import PromptSpec


def list_images(prompts: list[str], repeats: int) -> list[dict[str, str]]:
    """List an entry per image: an id that names prompt and repeat, and the caption. The id keys the image's noise."""
    return [{"id": f"{i:05d}/{r:03d}", "caption": prompt} for i, prompt in enumerate(prompts) for r in range(repeats)]


def write_prompts(spec: PromptSpec, folder: Path) -> None:
    """Write <k>.json in `folder` for each of `shards` contiguous shares of a prompt set, of even sizes."""
    entries = list_images(read_prompts(spec), spec.repeats)
    for k in range(spec.shards):
        shard = slice(len(entries) * k // spec.shards, len(entries) * (k + 1) // spec.shards)
        write_json(folder / f"{k}.json", entries[shard])


def encode(
    manifest: Mapping[str, Any], captions: list[str], device: str = "cpu", batch: int = 64
) -> dict[str, np.ndarray]:
    """Encode captions into the columns that a model reads: for LlamaGen left-padded embeddings float32 [n, prefix, D]
    and their mask valid [n, prefix]. Raises ParityError for a caption that does not fit."""
    from parity.models.discrete.load import load_encoder

    encoded = load_encoder(manifest, device)
    starts = range(0, len(captions), batch)
    encoded_batches = [encoded(captions[i : i + batch]) for i in progress(starts, len(starts), "captions")]
    return {
        name: np.concatenate([columns[name].cpu().numpy() for columns in encoded_batches])
        for name in encoded_batches[0]
    }


def write_captions(prompts: Path, manifest: Mapping[str, Any], device: str, out: Path) -> None:
    """Write a shard of prompts as decoding jobs read it, encoded once for all methods."""
    entries = read_json(prompts)
    captions, ids = ([entry[key] for entry in entries] for key in ("caption", "id"))
    encoded = encode(manifest, captions, device)
    write_arrays(out, ids=np.array(ids), captions=np.array(captions), **encoded)
