"""Write a tiny Llama as a GGUF file for llama.cpp; needs the packages gguf and safetensors.

The vocabulary is written as RWKV's: each token is a letter, and there is no beginning, end or unknown token that
llama.cpp would add to prompts or stop at.
"""

import json
from pathlib import Path

import numpy as np
from gguf import GGUFWriter
from safetensors.numpy import load_file

LAYER = {
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip
TENSORS = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def interleave(weights: np.ndarray, heads: int) -> np.ndarray:
    """Interleave the halves of each head in queries or keys [heads * d, hidden], as llama.cpp's rotation takes them."""
    return weights.reshape(heads, 2, -1, weights.shape[1]).swapaxes(1, 2).reshape(weights.shape)


def write_gguf(folder: Path) -> Path:
    """Write the Llama in a folder as folder/model.gguf, and return that."""
    c = json.loads((folder / "config.json").read_text())
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    letters = sorted(vocabulary, key=lambda letter: vocabulary[letter])[: c["vocab_size"]]
    file = folder / "model.gguf"
    heads = {"self_attn.q_proj": c["num_attention_heads"], "self_attn.k_proj": c["num_key_value_heads"]}
    out = GGUFWriter(file, "llama")
    out.add_name(folder.name)
    out.add_vocab_size(c["vocab_size"])
    out.add_context_length(c["max_position_embeddings"])
    out.add_embedding_length(c["hidden_size"])
    out.add_feed_forward_length(c["intermediate_size"])
    out.add_block_count(c["num_hidden_layers"])
    out.add_head_count(c["num_attention_heads"])
    out.add_head_count_kv(c["num_key_value_heads"])
    out.add_layer_norm_rms_eps(c["rms_norm_eps"])
    out.add_key_length(c["head_dim"])
    out.add_value_length(c["head_dim"])
    out.add_rope_dimension_count(c["head_dim"])
    out.add_rope_freq_base(c["rope_parameters"]["rope_theta"])
    out.add_tokenizer_model("rwkv")
    out.add_token_list(letters)
    out.add_token_types([1] * c["vocab_size"])
    for name, weights in load_file(folder / "model.safetensors").items():
        stem = name.removesuffix(".weight")
        if stem in TENSORS:
            out.add_tensor(f"{TENSORS[stem]}.weight", weights)
            continue
        number, layer = stem.removeprefix("model.layers.").split(".", 1)
        tensor = interleave(weights, heads[layer]) if layer in heads else weights
        out.add_tensor(f"blk.{number}.{LAYER[layer]}.weight", np.ascontiguousarray(tensor))
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    return file
