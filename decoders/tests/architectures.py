"""Small networks of transformers with random weights, one for each architecture that is named as supported."""

import torch
import transformers as hf

SIZES = {"vocab_size": 40, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4}
SIZES |= {"num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 128}
SIZES |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
GPT_SIZES = {"vocab_size": 40, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 128}
GPT_SIZES |= {"bos_token_id": 1, "eos_token_id": 2}
WINDOW = {"sliding_window": 6}
MIXED = {"sliding_window": 6, "layer_types": ["sliding_attention", "full_attention"] * 2}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
CONFIGURATIONS = {
    "llama": ("Llama", SIZES),
    "mistral": ("Mistral", SIZES | WINDOW),
    "mixtral": ("Mixtral", SIZES | EXPERTS | WINDOW),
    "qwen2": ("Qwen2", SIZES | {"use_sliding_window": True, "max_window_layers": 2} | WINDOW),
    "qwen3": ("Qwen3", SIZES),
    "gemma": ("Gemma", SIZES),
    "gemma2": ("Gemma2", SIZES | MIXED),
    "gemma3": ("Gemma3", SIZES | MIXED),
    "gpt_oss": ("GptOss", SIZES | EXPERTS | MIXED),
    "olmo2": ("Olmo2", SIZES),
    "olmo3": ("Olmo3", SIZES | MIXED),
    "phi": ("Phi", SIZES),
    "phi3": ("Phi3", SIZES | WINDOW),
    "granite": ("Granite", SIZES),
    "smollm3": ("SmolLM3", SIZES),
    "stablelm": ("StableLm", SIZES),
    "gpt2": ("GPT2", GPT_SIZES),
    "gpt_neox": ("GPTNeoX", SIZES),
    "opt": ("OPT", SIZES | {"ffn_dim": 48, "word_embed_proj_dim": 32}),
    "starcoder2": ("Starcoder2", SIZES),
    "cohere": ("Cohere", SIZES),
    "emu3": ("Emu3", SIZES),
}


def make_model(name: str, vocab: int = 40) -> torch.nn.Module:
    """Make a small random network of an architecture of CONFIGURATIONS, with distributions that are far from
    uniform."""
    family, sizes = CONFIGURATIONS[name]
    sizes = sizes | {"vocab_size": vocab}
    config_class = getattr(hf, f"{family}{'Text' if name in ('gemma3', 'emu3') else ''}Config")
    torch.manual_seed(0)
    model = getattr(hf, "GPT2LMHeadModel" if name == "gpt2" else f"{family}ForCausalLM")(config_class(**sizes)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.25)
    return model
