"""A drafter of Anole as LANTERN released it: config.json and pytorch_model.bin.

Source: the code that makes and reads it (jadohu/LANTERN, models/drafters/cnets_anole.py and data/configs/
anole_config.json): one of Chameleon's layers, norms of queries and keys included, `fc` with a bias, embeddings of all
words, no norm and no output matrix at the end.
"""

import json
from pathlib import Path

import torch

from parity.stand_ins.chameleon import CODES, words

FOLDER = "anole_drafter"


def write(folder: Path, dim: int = 64, heads: int = 4, codes: int = CODES, hidden: int = 96) -> dict[str, Path]:
    """{"drafter": its folder}; for a target of these sizes, Anole's stand-in, the same numbers every time."""
    out = folder / FOLDER
    out.mkdir(parents=True, exist_ok=True)
    held = words(codes)
    image = {
        "attn_resolutions": [], "ch": 128, "ch_mult": [1, 1, 2, 2, 4], "double_z": False,
        "model_type": "chameleon_vqgan", "n_embed": 8192, "out_ch": 3, "z_channels": 256,
    }  # fmt: skip
    said = {
        "architectures": ["ChameleonForConditionalGeneration"], "attention_bias": False, "attention_dropout": 0.0,
        "boi_token_id": 5, "bos_token_id": 1, "eoi_token_id": 4, "eos_token_id": 2, "hidden_act": "silu",
        "hidden_size": dim, "image_token_id": 7, "initializer_range": 0.02, "intermediate_size": hidden,
        "max_position_embeddings": 4096, "mlp_bias": False, "model_parallel_size": 1, "model_type": "chameleon",
        "num_attention_heads": heads, "num_hidden_layers": 1, "num_key_value_heads": heads, "rms_norm_eps": 1e-05,
        "rope_scaling": None, "rope_theta": 10000.0, "swin_norm": False, "tie_word_embeddings": False,
        "torch_dtype": "bfloat16", "use_cache": True, "vocab_size": held, "vq_config": image,
    }  # fmt: skip
    (out / "config.json").write_text(json.dumps(said, indent=2), encoding="utf-8")
    layer: dict[str, tuple[int, ...]] = {f"self_attn.{part}_proj.weight": (dim, dim) for part in "qkvo"}
    layer |= {f"self_attn.{part}_norm.{kind}": (heads, dim // heads) for part in "qk" for kind in ("weight", "bias")}
    layer |= {f"mlp.{part}_proj.weight": (hidden, dim) for part in ("gate", "up")}
    layer |= {"mlp.down_proj.weight": (dim, hidden)}
    layer |= {f"{place}_layernorm.weight": (dim,) for place in ("input", "post_attention")}
    shapes = {"embed_tokens.weight": (held, dim), "fc.weight": (dim, 2 * dim), "fc.bias": (dim,)}
    shapes |= {f"layers.0.{name}": shape for name, shape in layer.items()}
    generator = torch.Generator().manual_seed(0)
    state = {}
    for name, shape in shapes.items():
        spread = torch.randn(shape, generator=generator) / (4 if "norm" in name else shape[-1] ** 0.5)
        state[name] = spread + float("norm.weight" in name)
    torch.save({name: tensor.bfloat16() for name, tensor in state.items()}, out / "pytorch_model.bin")
    return {"drafter": Path(FOLDER)}
