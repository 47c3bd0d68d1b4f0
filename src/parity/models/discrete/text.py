"""The embedded tokenizer and text encoder: a word-level vocabulary of the Scenes grammar and a two-layer T5 encoder."""

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from torch import Tensor
from transformers import PreTrainedTokenizerFast, T5Config, T5EncoderModel

from parity.embedded.scenes import WORDS

PREFIX = 24  # caption positions of the embedded LlamaGen


def tokenizer() -> PreTrainedTokenizerFast:
    """Words of the Scenes grammar; any other word is <unk>. The end token has the highest id, as open_clip's pooling expects."""
    words = ["<pad>", "<unk>", *WORDS, "</s>"]
    core = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    core.normalizer, core.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=core, pad_token="<pad>", unk_token="<unk>", eos_token="</s>")


VOCAB = len(WORDS) + 3


def encode(captions: list[str], max_length: int, **_: object) -> dict[str, Tensor]:
    """input_ids and attention_mask [B, max_length], right-padded, with the end token; called as a transformers tokenizer is."""
    batch = tokenizer()(
        [c + " </s>" for c in captions], padding="max_length", max_length=max_length, return_tensors="pt"
    )
    if batch["input_ids"].shape[1] > max_length:
        n, caption = max((len(c.split()), c) for c in captions)
        raise ValueError(f"caption: {caption[:60]!r} has {n} words; allowed: at most {max_length - 1}")
    return dict(batch)


def token_ids(captions: list[str], length: int) -> tuple[Tensor, Tensor]:
    """Ids and mask, each [B, length]; ValueError for a caption that does not fit."""
    batch = encode(captions, length)
    return batch["input_ids"], batch["attention_mask"]


def t5_encoder() -> T5EncoderModel:
    """Freshly initialised; 0.6 M parameters."""
    return T5EncoderModel(
        T5Config(
            vocab_size=VOCAB,
            d_model=128,
            d_kv=32,
            d_ff=384,
            num_layers=2,
            num_heads=4,
            feed_forward_proj="gated-gelu",
            dropout_rate=0.0,
        )
    )
