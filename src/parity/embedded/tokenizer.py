"""Words of the Scenes grammar as numbers: the tokenizer of every embedded network that reads captions."""

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from parity.base.errors import ParityError
from parity.embedded.scenes import WORDS

PREFIX = 24  # caption positions of the embedded networks
VOCAB = len(WORDS) + 3


def tokenizer() -> PreTrainedTokenizerFast:
    """Any word the grammar does not have is <unk>. The end token has the highest id, as open_clip's pooling expects."""
    words = ["<pad>", "<unk>", *WORDS, "</s>"]
    core = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    core.normalizer, core.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=core, pad_token="<pad>", unk_token="<unk>", eos_token="</s>")


def encode(captions: list[str], max_length: int, **_: object) -> dict[str, Tensor]:
    """input_ids and attention_mask [B, max_length], right-padded, with the end token; called as transformers' are."""
    read, ended = tokenizer(), [c + " </s>" for c in captions]
    check_lengths(read(ended)["input_ids"], captions, max_length)
    return dict(read(ended, padding="max_length", max_length=max_length, return_tensors="pt"))


def check_lengths(rows: list[list[int]], captions: list[str], most: int) -> None:
    """ParityError for the first caption that is more tokens long than a prefix holds."""
    for row, caption in zip(rows, captions, strict=True):
        if len(row) > most:
            raise ParityError(f"caption: {caption[:60]!r} is {len(row)} tokens long; allowed: at most {most}")


def token_ids(captions: list[str], length: int) -> tuple[Tensor, Tensor]:
    """Ids and mask, each [B, length]; ParityError for a caption that does not fit."""
    batch = encode(captions, length)
    return batch["input_ids"], batch["attention_mask"]
