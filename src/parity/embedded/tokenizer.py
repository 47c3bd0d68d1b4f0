"""Words of the Scenes grammar as numbers: the tokenizer of every embedded network that reads captions."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from parity.base.errors import ParityError
from parity.embedded.scenes import WORDS

if TYPE_CHECKING:
    from tokenizers import Tokenizer

PREFIX = 24  # caption positions of the embedded networks
VOCAB = len(WORDS) + 3


def tokenizer() -> "Tokenizer":
    """Any word the grammar does not have is <unk>. The end token has the highest id, as open_clip's pooling expects.

    Of `tokenizers` itself: transformers, which would wrap it, takes longer to import than a job's captions to encode.
    """
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    words = ["<pad>", "<unk>", *WORDS, "</s>"]
    core = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    core.normalizer, core.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.Whitespace()
    core.add_special_tokens(["<pad>", "<unk>", "</s>"])
    return core


def encode(captions: list[str], max_length: int, **_: object) -> dict[str, Tensor]:
    """input_ids and attention_mask [B, max_length], right-padded, with the end token; called as transformers' are."""
    rows = [read.ids for read in tokenizer().encode_batch([c + " </s>" for c in captions])]
    check_lengths(rows, captions, max_length)
    ids = torch.zeros(len(rows), max_length, dtype=torch.int64)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = torch.tensor(row)
    lengths = torch.tensor([len(row) for row in rows], dtype=torch.int64)
    return {"input_ids": ids, "attention_mask": (torch.arange(max_length) < lengths[:, None]).long()}


def check_lengths(rows: list[list[int]], captions: list[str], most: int) -> None:
    """ParityError for the first caption that is more tokens long than a prefix holds."""
    for row, caption in zip(rows, captions, strict=True):
        if len(row) > most:
            raise ParityError(f"caption: {caption[:60]!r} is {len(row)} tokens long; allowed: at most {most}")


def token_ids(captions: list[str], length: int) -> tuple[Tensor, Tensor]:
    """Ids and mask, each [B, length]; ParityError for a caption that does not fit."""
    batch = encode(captions, length)
    return batch["input_ids"], batch["attention_mask"]
