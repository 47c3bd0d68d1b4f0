"""Emu3.5 (BAAI): rows of codes of its IBQ image tokenizer, with a separator between them.

    model = load_emu3p5(FOLDER, dtype=torch.bfloat16)  # BAAI/Emu3.5-Image
    images = image_model(model, rows=64, columns=64)
    request = images.make_request(*encode_prompts(read_tokenizer(FOLDER), ["a red fox"], 64, 64))

Its network is Llama's with norms of each head's queries and keys, which transformers calls Qwen3. The authors' code is
not executed; theirs is what it follows (baaivision/Emu3.5). There logits are normalised before guidance, as in
`generate`; then the grammar, then temperature, top-k and top-p are applied, as here.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM

from parity_decoders.errors import DecodingError
from parity_decoders.families.emu3p5_prompts import END, LINE, SPECIAL, START
from parity_decoders.images import ImageModel, lay_out_rows, share_signature

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
