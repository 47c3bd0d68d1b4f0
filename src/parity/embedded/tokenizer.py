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
    ended = [c + " </s>" for c in captions]
    batch = tokenizer()(ended, padding="max_length", max_length=max_length, return_tensors="pt")
    if batch["input_ids"].shape[1] > max_length:
        n, caption = max((len(c.split()), c) for c in captions)
        raise ParityError(f"caption: {caption[:60]!r} has {n} words; allowed: at most {max_length - 1}")
    return dict(batch)


def token_ids(captions: list[str], length: int) -> tuple[Tensor, Tensor]:
    """Ids and mask, each [B, length]; ParityError for a caption that does not fit."""
    batch = encode(captions, length)
    return batch["input_ids"], batch["attention_mask"]
