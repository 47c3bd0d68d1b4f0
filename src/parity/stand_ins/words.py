"""What stand-ins share: a tokenizer of bytes with the published special names, configuration files, shards."""

import importlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

SCALE = 0.5  # deviation of random weights in place of the usual 0.02: laws that are not nearly uniform


def write_tokenizer(folder: Path, special: Iterable[str], plain: Iterable[str] = ()) -> dict[str, int]:
    """tokenizer.json and tokenizer_config.json: names of the grammar, then codes, then a token for each byte. Returns
    its vocabulary."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    special, plain = list(special), list(plain)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {name: i for i, name in enumerate([*special, *plain, *letters])}
    held = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    held.pre_tokenizer, held.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    held.add_special_tokens([AddedToken(name, normalized=False, special=True) for name in special])
    folder.mkdir(parents=True, exist_ok=True)
    held.save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast"})
    return vocabulary


def write_json(file: Path, said: dict[str, Any]) -> None:
    file.write_text(json.dumps(said, indent=2), encoding="utf-8")


def sharpen(net: nn.Module, seed: int, scale: float = SCALE) -> None:
    """Random weights that make the network's laws differ from place to place: matrices by their width, norms near 1."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in net.named_parameters():
            if weight.ndim > 1 and "norm" not in name:
                deviation = 1.0 if "embed" in name else 1.5 * weight[0].numel() ** -0.5
                weight.copy_(deviation * torch.randn(weight.shape, generator=generator))
            else:
                centre = float(name.endswith("weight"))
                weight.copy_(centre + 0.2 * scale * torch.randn(weight.shape, generator=generator))


def entry(folder: Path, written: Mapping[str, Path], family: str, pixels: int | None = None) -> dict[str, Any]:
    """What a configuration says of a stand-in of transformers' layout: its sizes read as `parity models add` does."""
    from parity.base.weights import sha256

    files = {part: folder / path for part, path in written.items()}
    sizes = importlib.import_module(f"parity.models.discrete.{family}").read_sizes(files["model"], pixels)
    digests = {part: sha256(path) for part, path in files.items()}
    named = {part: str(path) for part, path in files.items()}
    return {"family": family, "source": "files", "files": named, "sha256": digests, "network": sizes}


def save(net: Any, folder: Path, state: dict[str, Tensor]) -> None:
    """A folder as transformers saves it: config.json, shards and their index, which all may read."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    net.save_pretrained(folder, state_dict=state, max_shard_size="300KB")
    if shown:
        logging.enable_progress_bar()
    for file in folder.iterdir():
        file.chmod(0o644)
