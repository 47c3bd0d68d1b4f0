"""A drafter of LlamaGen as LANTERN released them: config.json and pytorch_model.bin.

Source: jadohu/llamagen_drafter and the code that reads it (jadohu/LANTERN, models/drafters/cnets_llamagen.py): one
Llama layer without a norm before its attention, `fc` with a bias, its own frozen embeddings, no norm and no output
matrix at the end. The released configuration has no `block_size`, which follows from `input_type`: it stands here for
small pictures.
"""

import json
from pathlib import Path

import torch

FOLDER = "llamagen_drafter"


def write(
    folder: Path, dim: int = 64, heads: int = 1, codes: int = 64, grid: int = 8, hidden: int = 256
) -> dict[str, Path]:
    """{"drafter": its folder}; for a target of these sizes, LlamaGen's stand-in, the same numbers every time."""
    out = folder / FOLDER
    out.mkdir(parents=True, exist_ok=True)
    said = {
        "architectures": ["LlamaForCausalLM"], "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
        "hidden_size": dim, "caption_dim": 2048, "class_dropout_p": 0.0, "initializer_range": 0.02,
        "intermediate_size": hidden, "max_position_embeddings": 2048, "model_type": "llama",
        "num_attention_heads": heads, "num_hidden_layers": 1, "num_key_value_heads": heads, "pretraining_tp": 1,
        "rms_norm_eps": 1e-06, "rope_scaling": None, "tie_word_embeddings": False, "torch_dtype": "float16",
        "use_cache": True, "vocab_size": codes, "input_type": "t2i", "block_size": grid**2,
    }  # fmt: skip
    (out / "config.json").write_text(json.dumps(said, indent=2), encoding="utf-8")
    shapes = {"embed_tokens.weight": (codes, dim), "fc.weight": (dim, 2 * dim), "fc.bias": (dim,)}
    shapes |= {f"layers.0.self_attn.{part}_proj.weight": (dim, dim) for part in "qkvo"}
    shapes |= {f"layers.0.mlp.{part}_proj.weight": (hidden, dim) for part in ("gate", "up")}
    shapes |= {"layers.0.mlp.down_proj.weight": (dim, hidden)}
    generator = torch.Generator().manual_seed(0)
    state = {name: torch.randn(size, generator=generator) / size[-1] ** 0.5 for name, size in shapes.items()}
    state["layers.0.post_attention_layernorm.weight"] = torch.ones(dim)
    torch.save({name: tensor.half() for name, tensor in state.items()}, out / "pytorch_model.bin")
    return {"drafter": Path(FOLDER)}
