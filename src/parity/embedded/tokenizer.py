"""Words of the Scenes grammar as numbers: the tokenizer of every embedded network that reads captions."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from parity.base.errors import ParityError
from parity.embedded.scenes import WORDS

if TYPE_CHECKING:
    from tokenizers import Tokenizer

PREFIX = 24  # the embedded networks read captions of at most this many tokens
VOCAB = len(WORDS) + 3


def make_tokenizer() -> "Tokenizer":
    """Make the tokenizer, which splits text at spaces and punctuation. A word outside the grammar is <unk>. The end
    token </s> has the highest id, as open_clip's pooling expects.

    The library `tokenizers` is used, because importing transformers takes longer than encoding a job's captions.
    """
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    words = ["<pad>", "<unk>", *WORDS, "</s>"]
    core = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    core.normalizer = normalizers.Lowercase()
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    core.add_special_tokens(["<pad>", "<unk>", "</s>"])
    return core


def encode(captions: list[str], max_length: int, **_: object) -> dict[str, Tensor]:
    """Encode captions to input_ids and attention_mask, int64 [B, max_length], padded on the right, each with the end
    token. Other keywords, as transformers' tokenizers take, are ignored. Raises ParityError for a longer caption."""
    ids, mask = torch.zeros(2, len(captions), max_length, dtype=torch.int64)
    for i, encoded in enumerate(make_tokenizer().encode_batch([c + " </s>" for c in captions])):
        if (n := len(encoded.ids)) > max_length:
            raise ParityError(f"caption: {captions[i][:60]!r} is {n} tokens long; allowed: at most {max_length}")
        ids[i, :n] = torch.tensor(encoded.ids)
        mask[i, :n] = 1
    return {"input_ids": ids, "attention_mask": mask}


def encode_ids(captions: list[str], length: int) -> tuple[Tensor, Tensor]:
    """Encode captions to ids and mask, int64 [B, length], padded on the right. Raises ParityError for a longer one."""
    batch = encode(captions, length)
    return batch["input_ids"], batch["attention_mask"]
