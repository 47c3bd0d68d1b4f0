"""Prompts of images: which images a decoding job makes, and what their captions condition a model on."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from parity.base.devices import run_in_batches
from parity.base.errors import ParityError
from parity.base.files import read_json, write_arrays, write_json
from parity.experiment.cells import digest_prompts
from parity.experiment.prompt_files import read_prompts
from parity.experiment.schema import PromptSpec

BATCH = 16  # number of captions that are encoded at once


def list_images(prompts: list[str], repeats: int) -> list[dict[str, str]]:
    """List {"id", "caption"} of each image, `repeats` of each prompt. Its id, "<prompt>/<repeat>", keys its noise."""
    return [{"id": f"{i:05d}/{r:03d}", "caption": prompt} for i, prompt in enumerate(prompts) for r in range(repeats)]


def write_prompts(spec: PromptSpec, expected: str, folder: Path) -> None:
    """Write the images of a prompt set (`list_images`) to `folder`, in `spec.shards` files of even size: 0.json, ...

    Raises ParityError unless the prompts have the digest `expected`, by which the run that was planned names them.
    """
    prompts = read_prompts(spec)
    if (total := digest_prompts(prompts)) != expected:
        problem = f"its prompts changed after the run was planned: their digest is {total}, and was {expected}"
        raise ParityError(f"image.prompts.file = {spec.file!r}: {problem}; run again")
    entries = list_images(prompts, spec.repeats)
    for k in range(spec.shards):
        shard = slice(len(entries) * k // spec.shards, len(entries) * (k + 1) // spec.shards)
        write_json(folder / f"{k}.json", entries[shard])


def encode(
    manifest: Mapping[str, Any], captions: list[str], device: str = "cpu", batch: int = BATCH, encoder: Any = None
) -> dict[str, np.ndarray]:
    """Encode captions with a model's text encoder, which is loaded unless it is given, `batch` at a time: arrays by
    name, a row each; for LlamaGen left-padded embeddings float32 [n, prefix, D] and their mask `valid`. Raises
    ParityError for a caption too long."""
    from parity.models.discrete.load import load_encoder

    encoded = encoder or load_encoder(manifest, device)
    encoded_batches = list(run_in_batches(encoded, captions, batch, "captions"))
    return {
        name: np.concatenate([columns[name].cpu().numpy() for columns in encoded_batches])
        for name in encoded_batches[0]
    }


def write_captions(prompts: Path, manifest: Mapping[str, Any], device: str, out: Path) -> None:
    """Read a JSON file of `write_prompts`, encode its captions, and write ids, captions and what they were encoded to
    into the .npz `out`, which the decoding jobs of all methods read."""
    entries = read_json(prompts)
    captions, ids = ([entry[key] for entry in entries] for key in ("caption", "id"))
    encoded = encode(manifest, captions, device)
    write_arrays(out, ids=np.array(ids), captions=np.array(captions), **encoded)
