"""Captions to embeddings, once for all methods: the text encoder's time is no decoder's.

python -m parity.encode --prompts 0.json --checkpoint manifest.json --threads 1 --device cpu --out 0.npz
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from parity.base.command import one_line, pin_threads, progress
from parity.base.errors import ConfigError
from parity.base.files import read_json, write_arrays
from parity.models.checkpoints import load_weights
from parity.models.discrete.llamagen import LlamaGenConfig, left_pad, read_config


def text_encoder(manifest: dict) -> tuple[nn.Module, Callable[..., dict[str, Tensor]], int]:
    """The encoder, its tokenizer, and the number of caption positions."""
    files = manifest["files"]
    if manifest["source"] == "embedded":
        from parity.models.discrete.text import encode, t5_encoder

        encoder = t5_encoder()
        load_weights(encoder, Path(files["t5"]))
        return encoder.eval(), encode, int(read_config(Path(files["llamagen"]))["prefix"])
    from transformers import AutoTokenizer, T5EncoderModel

    encoder = T5EncoderModel.from_pretrained(files["text"], local_files_only=True)
    tokenizer = AutoTokenizer.from_pretrained(files["text"], local_files_only=True)
    return encoder.eval(), tokenizer, LlamaGenConfig(**manifest["network"]).prefix


@torch.inference_mode()
def encode(manifest: dict, captions: list[str], device: str, batch: int = 64) -> tuple[np.ndarray, np.ndarray]:
    """Left-padded embeddings float32 [n, prefix, D] and mask [n, prefix]."""
    encoder, tokenizer, length = text_encoder(manifest)
    encoder.to(device)
    found = []
    starts = range(0, len(captions), batch)
    for i in progress(starts, len(starts), "captions"):
        words = tokenizer(captions[i : i + batch], padding="max_length", max_length=length, return_tensors="pt")
        ids, valid = words["input_ids"].to(device), words["attention_mask"].to(device)
        if ids.shape[1] > length:
            long = max(captions[i : i + batch], key=lambda c: len(c.split()))
            raise ConfigError(f"prompts: {long[:40]!r}... is {ids.shape[1]} tokens long; allowed: at most {length}")
        found.append(left_pad(encoder(input_ids=ids, attention_mask=valid).last_hidden_state, valid))
    embeddings, masks = zip(*found, strict=True)
    return torch.cat(embeddings).float().cpu().numpy(), torch.cat(masks).cpu().numpy()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name in ("prompts", "checkpoint", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    a = parser.parse_args()
    pin_threads(a.threads)
    entries = read_json(a.prompts)
    captions = [e["caption"] for e in entries]
    embeddings, valid = encode(read_json(a.checkpoint), captions, a.device)
    write_arrays(
        a.out, ids=np.array([e["id"] for e in entries]), captions=np.array(captions), embeddings=embeddings, valid=valid
    )


if __name__ == "__main__":
    one_line(main)
