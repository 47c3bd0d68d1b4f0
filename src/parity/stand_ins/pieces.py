"""Tokenizers of the published layouts, small, made from the captions and stories of this repository."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers


def byte_pairs(texts: Sequence[str], marks: Sequence[str], size: int) -> Tokenizer:
    """A byte-level BPE of at most `size` pieces, as GPT-2's and Qwen's, `marks` behind them."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens(list(marks))
    return tokenizer


def save(tokenizer: Tokenizer, folder: Path, config: dict[str, Any]) -> None:
    """tokenizer.json and tokenizer_config.json, as transformers saves them."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
