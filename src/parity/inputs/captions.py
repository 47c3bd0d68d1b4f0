"""Captions to what a model is conditioned on, once for all methods: the text encoder's time is no decoder's."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from parity.base.command import progress
from parity.base.files import read_json, write_arrays
from parity.models.discrete.load import encoder


def encode(
    manifest: Mapping[str, Any], captions: list[str], device: str = "cpu", batch: int = 64
) -> dict[str, np.ndarray]:
    """What a model's encoder makes of captions, a row each: for LlamaGen left-padded embeddings float32 [n, prefix, D]
    and their mask valid [n, prefix]. ParityError for a caption that does not fit."""
    encoded, starts = encoder(manifest, device), range(0, len(captions), batch)
    parts = [encoded(captions[i : i + batch]) for i in progress(starts, len(starts), "captions")]
    return {name: np.concatenate([part[name].cpu().numpy() for part in parts]) for name in parts[0]}


def write(prompts: Path, manifest: Mapping[str, Any], device: str, out: Path) -> None:
    """A shard of prompts as decoders' jobs read it."""
    entries = read_json(prompts)
    captions = [e["caption"] for e in entries]
    ids = np.array([e["id"] for e in entries])
    write_arrays(out, ids=ids, captions=np.array(captions), **encode(manifest, captions, device))
