"""Emu3.5 (BAAI): rows of codes of its IBQ image tokenizer, with a separator between them.

    model = load_emu3p5(FOLDER, dtype=torch.bfloat16)  # BAAI/Emu3.5-Image
    images = image_model(model, rows=64, columns=64)
    request = images.make_request(*encode_prompts(read_tokenizer(FOLDER), ["a red fox"], 64, 64))

Its network is Llama's with norms of each head's queries and keys, which transformers calls Qwen3. The authors' code is
not executed; theirs is what it follows (baaivision/Emu3.5). There logits are normalised before guidance, as in
`generate`; then the grammar, then temperature, top-k and top-p are applied, as here.
"""

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM

from parity_decoders.errors import DecodingError
from parity_decoders.images import ImageModel, lay_out_rows, share_signature

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# Tokens after the words, in the order of their ids; after them come the codes of the image tokenizer.
SPECIAL = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", *(f"<|extra_{i}|>" for i in range(205)),
    "<|image token|>", "<|image start|>", "<|image end|>",
)  # fmt: skip
LINE, START, TURN = "<|extra_200|>", "<|extra_203|>", "<|extra_100|>"
BEGIN, IMAGE, END = "<|image start|>", "<|image token|>", "<|image end|>"
# how a text is cut before byte pairs are merged
PIECES = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
INSTRUCTION = "You are a helpful assistant for t2i task. USER: {} ASSISTANT: "
UNCONDITIONAL = "You are a helpful assistant. USER:  ASSISTANT: "
# What config.json says, and the authors' default for what it does not say.
SIZES: dict[str, Any] = {
    "vocab_size": 184622, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 9216,
    "initializer_range": 0.02, "rms_norm_eps": 1e-5, "attention_dropout": 0.1, "tie_word_embeddings": False,
    "pad_token_id": 151643, "bos_token_id": 151849, "eos_token_id": 151850,
}  # fmt: skip
READ_AS: dict[str, Any] = {  # keys that are read with one value alone
    "model_type": "Emu3", "hidden_act": "silu", "rope_scaling": None, "rope_parameters": None, "attention_bias": False,
    "mlp_bias": False, "use_sliding_window": False, "quantization_config": None,
}  # fmt: skip


class Emu3p5Config(Qwen3Config):
    model_type = "Emu3"  # as in the authors' config.json


class Emu3p5(Qwen3ForCausalLM):
    """The network of Emu3.5."""

    config_class = Emu3p5Config

    @share_signature(Qwen3ForCausalLM.forward)
    def forward(self, *arguments: Any, **keywords: Any) -> Any:
        """Compute logits [B, S, V], as the authors in float32 at least: guidance takes differences of them."""
        outputs = super().forward(*arguments, **keywords)
        outputs.logits = outputs.logits.to(torch.promote_types(outputs.logits.dtype, torch.float32))
        return outputs


def read_config(folder: str | Path) -> Emu3p5Config:
    """Read the authors' config.json. Raises DecodingError for a value that is not read."""
    file = Path(folder, "config.json")
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DecodingError(f"{file}: {type(error).__name__}; allowed: the config.json of Emu3.5") from None
    if not isinstance(record, dict):
        raise DecodingError(f"{file}: {str(record)[:40]!r}; allowed: the config.json of Emu3.5")
    for key, allowed in READ_AS.items():
        found = record.get(key, None if key == "model_type" else allowed)
        if found != allowed:
            raise DecodingError(f"{file}: {key}: {found!r}; allowed: {allowed!r}")
    sizes = {key: record.get(key, default) for key, default in SIZES.items()}
    rope = {"rope_type": "default", "rope_theta": float(record.get("rope_theta", 1e6))}
    return Emu3p5Config(**sizes, rope_parameters=rope)


def load_emu3p5(folder: str | Path, **options: Any) -> Any:
    """Load the network of a folder. options: of `from_pretrained`, such as `dtype`. Raises DecodingError for a
    configuration that is not read, or weights that do not fit it."""
    options = {"config": read_config(folder), "local_files_only": True, **options}
    loaded: Any = Emu3p5.from_pretrained(folder, output_loading_info=True, **options)
    model, report = loaded
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if report[kind]:
            name = sorted(map(str, report[kind]))[0]
            raise DecodingError(f"{folder}: weights: {kind.replace('_', ' ')}, {name}; allowed: those of Emu3.5")
    return model.eval()


def read_tokenizer(folder: str | Path) -> "Tokenizer":
    """Read the authors' `emu3.tiktoken` of a folder, a line for each byte pair: itself in base 64, and its id. The
    special tokens follow. Raises DecodingError if there is no such file, or it is damaged."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    file = Path(folder, "emu3.tiktoken")
    try:
        lines = [line.split() for line in file.read_bytes().splitlines() if line]
        ids = {base64.b64decode(word, validate=True): int(i) for word, i in lines}
    except OSError:
        raise DecodingError(f"{file}: no such file; allowed: that of the authors' src/tokenizer_emu3_ibq") from None
    except ValueError:
        ids = {}
    if sorted(ids.values()) != list(range(len(ids))) or not ids:
        raise DecodingError(f"{file}: not a table of byte pairs; allowed: that of the authors' src/tokenizer_emu3_ibq")
    letters = bytes_to_unicode()
    write = lambda word: "".join(letters[b] for b in word)  # noqa: E731
    merges = []
    for word in ids:  # of the pairs that make a word, all are merged at its place in the order
        cuts = [(word[:i], word[i:]) for i in range(1, len(word))]
        merges += [(ids[word], ids[a], a, b) for a, b in cuts if a in ids and b in ids]
    pairs = [(write(a), write(b)) for *_, a, b in sorted(merges)]
    vocabulary = {write(word): i for word, i in ids.items()}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=pairs, ignore_merges=True))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(PIECES), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, normalized=True, special=True) for name in SPECIAL])
    return tokenizer


def encode_prompts(
    words: "Tokenizer", captions: list[str], rows: int, columns: int
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Encode captions and as many unconditional prompts, `input_ids` and `attention_mask` [B, P] each, padded on the
    left, for images of rows x columns codes.

    They end with the image's beginning and its size, such as "64*64". In the authors' code the model itself begins an
    image, and the size is then forced token by token: the image's tokens have the same distribution.
    """
    size = f"{TURN}{BEGIN}{rows}*{columns}{IMAGE}"
    words.enable_padding(direction="left", pad_id=words.token_to_id(SPECIAL[0]), pad_token=SPECIAL[0])
    made = []
    for texts in ([INSTRUCTION.replace("{}", caption) for caption in captions], [UNCONDITIONAL] * len(captions)):
        coded = words.encode_batch([START + text + size for text in texts])
        ids, mask = (torch.tensor(x) for x in ([c.ids for c in coded], [c.attention_mask for c in coded]))
        made.append({"input_ids": ids, "attention_mask": mask})
    words.no_padding()
    return made[0], made[1]


def make_image_model(
    model: Any, rows: int = 64, columns: int = 64, decode_codes: Callable[[Tensor], Tensor] | None = None
) -> ImageModel:
    """Make the image model of what `load_emu3p5` loads, for prompts of `encode_prompts` of the same rows and columns.

    The last row ends with the image's end, the others with a separator. decode_codes: turns codes [B, rows, columns] of
    the image tokenizer into pixels; without it the codes themselves are returned.
    """
    n_words = model.config.bos_token_id - SPECIAL.index(START)
    first = n_words + len(SPECIAL)
    forced = lay_out_rows(rows, columns, n_words + SPECIAL.index(LINE))
    forced[-1] = n_words + SPECIAL.index(END)

    def decode(tokens: Tensor) -> Tensor:
        """Decode tokens [B, L]."""
        codes = tokens.reshape(-1, rows, columns + 1)[..., :columns] - first
        return codes if decode_codes is None else decode_codes(codes)

    chosen = torch.arange(first, model.config.vocab_size)
    settings = {"guidance_scale": 5.0, "top_k": 5120, "eos_token_id": None}
    return ImageModel(model, forced, chosen, columns + 1, decode, settings)
