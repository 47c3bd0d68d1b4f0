"""Models made for being certified: tiny checkpoints of real architectures, as folders that any engine loads.

    write("llama", FOLDER, vocab=4, seed=0)              a target; its laws are neither flat nor one-hot
    write_companion(FOLDER, OTHER, tv=0.3)               a draft model whose conditionals are that far away
    write_pair(kind, FOLDER)                             both, and what the kind of speculation needs beside

Weights are random, scaled until the entropy of the next token, over all prefixes, is about SPREAD of the largest.
"""

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from parity_certify.adapters.transformers import all_shared, law, load, quiet, vocab_of
from parity_certify.errors import ParityError

SPREAD = 0.75
EMBEDDING, MATRIX = 0.3, 0.5  # of weights: a token early in the prefix moves the law as much as the last one
LETTERS = "abcdefgh"
SIZES = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
GROUPED = SIZES | {"num_key_value_heads": 1, "max_position_embeddings": 64}
MTP_NAMES = {
    "enorm": "pre_fc_norm_embedding", "hnorm": "pre_fc_norm_hidden", "eh_proj": "fc", "post_norm": "norm",
    "mtp_block": "layers.0",
}  # fmt: skip
HEADED = ("llama", "qwen3", "gemma3", "mistral")  # whose heads may be wider: some engines take 32 and more alone
IDS = {"bos_token_id": 0, "eos_token_id": None, "pad_token_id": 0}


def _llama(t: Any, V: int, head_dim: int = 8) -> Any:
    return t.LlamaForCausalLM(t.LlamaConfig(vocab_size=V, head_dim=head_dim, **GROUPED, **IDS))


def _qwen3(t: Any, V: int, head_dim: int = 8) -> Any:
    return t.Qwen3ForCausalLM(t.Qwen3Config(vocab_size=V, head_dim=head_dim, **GROUPED, **IDS))


def _gemma3(t: Any, V: int, head_dim: int = 8) -> Any:
    window = {"sliding_window": 6, "layer_types": ["sliding_attention", "full_attention"]}
    return t.Gemma3ForCausalLM(t.Gemma3TextConfig(vocab_size=V, head_dim=head_dim, **window, **GROUPED, **IDS))


def _mistral(t: Any, V: int, head_dim: int = 8) -> Any:
    return t.MistralForCausalLM(t.MistralConfig(vocab_size=V, sliding_window=3, head_dim=head_dim, **GROUPED, **IDS))


def _gpt2(t: Any, V: int) -> Any:
    return t.GPT2LMHeadModel(t.GPT2Config(vocab_size=V, n_embd=16, n_layer=2, n_head=2, n_positions=64, **IDS))


def _t5(t: Any, V: int) -> Any:
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2}
    return t.T5ForConditionalGeneration(t.T5Config(vocab_size=V, decoder_start_token_id=0, **sizes, **IDS))


def _mamba(t: Any, V: int) -> Any:
    return t.MambaForCausalLM(
        t.MambaConfig(vocab_size=V, hidden_size=16, state_size=4, num_hidden_layers=2, use_cache=True, **IDS)
    )


def _janus(t: Any, V: int) -> Any:
    picture = {"image_size": 8, "patch_size": 4, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    vision = t.JanusVisionConfig(**picture, projection_dim=16, num_image_tokens=4, depth=1)
    codes = t.models.janus.JanusVQVAEConfig(
        embed_dim=4, num_embeddings=V, latent_channels=8, base_channels=32, channel_multiplier=(1, 1),
        num_res_blocks=1, projection_dim=16, num_hidden_layers=1, image_token_embed_dim=16,
    )  # fmt: skip
    text = t.LlamaConfig(vocab_size=V, **GROUPED, **IDS)
    config = t.JanusConfig(text_config=text, vision_config=vision, vq_config=codes, image_token_id=V + 1)
    return t.JanusForConditionalGeneration(config)


def _gemma4(t: Any, V: int) -> Any:
    layers = {"num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2}
    each = {"hidden_size_per_layer_input": 4, "vocab_size_per_layer_input": V, "num_kv_shared_layers": 2}
    return t.Gemma4ForCausalLM(_gemma4_config(t, V, **each, **layers))


def _gemma4_config(t: Any, V: int, **more: Any) -> Any:
    window = {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}
    plain = {"hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0, "enable_moe_block": False}
    plain |= {"use_double_wide_mlp": False, "num_kv_shared_layers": 0, "head_dim": 8, "global_head_dim": 8}
    return t.Gemma4TextConfig(vocab_size=V, **(window | plain | GROUPED | IDS | more))


def _mellum(t: Any, V: int) -> Any:
    """With one head of multi-token prediction; its weights are written by `write_mellum`."""
    layers = {"layer_types": ["sliding_attention", "full_attention"], "mlp_layer_types": ["dense"] * 2}
    heads = {"num_mtp_layers": 1, "mtp_layer_types": ["full_attention"], "mtp_mlp_layer_types": ["dense"]}
    experts = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16}
    sizes = {"head_dim": 8, "sliding_window": 6} | experts | layers | heads
    return t.MellumForCausalLM(t.MellumConfig(vocab_size=V, **sizes, **GROUPED, **IDS))


def _lfm2(t: Any, V: int) -> Any:
    layers = {"layer_types": ["conv", "full_attention"], "conv_L_cache": 3, "block_auto_adjust_ff_dim": False}
    return t.Lfm2ForCausalLM(t.Lfm2Config(vocab_size=V, **layers, **GROUPED, **IDS))


MAKES: dict[str, Callable[..., Any]] = {
    "llama": _llama, "qwen3": _qwen3, "gemma3": _gemma3, "mistral": _mistral, "gpt2": _gpt2, "t5": _t5,
    "mamba": _mamba, "janus": _janus, "gemma4": _gemma4, "mellum": _mellum, "lfm2": _lfm2,
}  # fmt: skip


def new(kind: str, vocab: int, seed: int, **more: int) -> Any:
    """A model with random weights whose laws are neither flat nor one-hot; `head_dim`: see HEADED."""
    import transformers

    if kind not in MAKES:
        raise ParityError(f"architecture {kind!r}: allowed: {', '.join(sorted(MAKES))}")
    if not 3 <= vocab <= 8:
        raise ParityError(f"vocab {vocab}: allowed: 3 to 8")
    if more and kind not in HEADED:
        raise ParityError(f"head_dim {more['head_dim']}: allowed for {', '.join(HEADED)} alone")
    quiet()
    torch.manual_seed(seed)
    model = MAKES[kind](transformers, vocab, **more).eval()
    randomise(model)
    sharpen(model, vocab)
    return model


def randomise(model: Any) -> None:
    """Normal weights, from torch's generator as it stands."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim >= 2:
                weight.normal_(std=EMBEDDING if any(e in name for e in ("embed", "wte", "shared")) else MATRIX)


def head_of(model: Any) -> Any:
    """The output matrix, untied from the embeddings."""
    head = model.get_output_embeddings()
    embedding = model.get_input_embeddings()
    if head.weight is embedding.weight or head.weight.data_ptr() == embedding.weight.data_ptr():
        head.weight = torch.nn.Parameter(torch.randn_like(head.weight))
        model.config.tie_word_embeddings = False
        model.config.get_text_config().tie_word_embeddings = False
    return head


def entropy(model: Any, vocab: int, length: int = 2) -> float:
    """Mean entropy of the conditionals over short prefixes, as a share of the largest."""
    p = law(model, np.arange(vocab)[:, None], length, bare=True).tables
    return float(-(p * np.log(np.maximum(p, 1e-30))).sum(-1).mean() / math.log(vocab))


def sharpen(model: Any, vocab: int) -> None:
    """Scale the output matrix until the entropy is SPREAD, to within a hundredth."""
    head = head_of(model)
    own = head.weight.detach().clone()
    low, high = 1e-3, 1e3
    for _ in range(40):
        middle = math.sqrt(low * high)
        with torch.no_grad():
            head.weight.copy_(own * middle)
        found = entropy(model, vocab)
        if abs(found - SPREAD) < 0.01:
            return
        low, high = (middle, high) if found > SPREAD else (low, middle)


def conditionals(model: Any, length: int = 3) -> np.ndarray:
    """Of all prefixes behind one-token prompts: [V, N, V]."""
    return law(model, np.arange(vocab_of(model))[:, None], length, bare=True).tables


def distance(model: Any, other: Any, length: int = 3) -> float:
    """Mean TV of the conditionals of two models over all prefixes (behind one-token prompts)."""
    return mean_tv(conditionals(model, length), conditionals(other, length))


def mean_tv(one: np.ndarray, two: np.ndarray) -> float:
    return float(0.5 * np.abs(one - two).sum(-1).mean())


def companion(model: Any, tv: float, seed: int = 1) -> Any:
    """A model of the same architecture whose conditionals are `tv` away (mean over prefixes, to within a hundredth)."""
    if not 0 < tv < 0.6:
        raise ParityError(f"tv {tv:g}: allowed: above 0, below 0.6")
    generator = torch.Generator().manual_seed(seed)
    other = copy.deepcopy(model)
    noise = [torch.randn(w.shape, generator=generator) * w.std() for w in model.parameters()]
    own_laws, low, high = conditionals(model), 0.0, 8.0
    for _ in range(40):
        middle = (low + high) / 2
        with torch.no_grad():
            for w, own, z in zip(other.parameters(), model.parameters(), noise, strict=True):
                if w.ndim >= 2:
                    w.copy_((own + middle * z) / math.sqrt(1 + middle**2 / 4))
        found = mean_tv(own_laws, conditionals(other))
        if abs(found - tv) < 0.01:
            return other
        low, high = (middle, high) if found < tv else (low, middle)
    raise ParityError(f"tv {tv:g}: no companion that far away was found (nearest {found:.3f}); allowed: a smaller one")


def tokenizer(letters: str) -> Any:
    """One token a letter, in this order: text and tokens are the same thing."""
    import tokenizers
    import transformers

    made = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({c: i for i, c in enumerate(letters)}, unk_token=letters[0])
    )
    made.normalizer = tokenizers.normalizers.Replace(" ", "")  # else it is read as the unknown token
    made.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    made.decoder = tokenizers.decoders.Fuse()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, unk_token=letters[0])


def save(model: Any, folder: Path, letters: str | None = None) -> Path:
    """A folder with configuration, weights and a tokenizer of one letter a token."""
    model.generation_config.pad_token_id = 0
    model.generation_config.eos_token_id = None
    model.save_pretrained(folder)
    tokenizer(letters or LETTERS[: vocab_of(model)]).save_pretrained(folder)
    return folder


def write(kind: str, folder: Path, vocab: int = 4, seed: int = 0, **more: int) -> Path:
    return save(new(kind, vocab, seed, **more), folder)


def write_companion(target: Path, folder: Path, tv: float = 0.3, seed: int = 1) -> Path:
    return save(companion(load(target), tv, seed), folder)


def write_companions(target: Path, out: Path, tv: float = 0.3) -> list[Path]:
    """An assistant at that TV, and one with a tokenizer of its own: the target's letters in another order, and more."""
    name = target.name
    made = [write_companion(target, out / f"{name}-assistant", tv)]
    model = load(target)
    return [*made, save_universal(model, out / f"{name}-other-tokenizer", tv)]


def save_universal(target: Any, folder: Path, tv: float, seed: int = 1) -> Path:
    """A draft model whose vocabulary overlaps the target's: its letters in another order, and two that only it has."""
    V = vocab_of(target)
    other = new(str(target.config.model_type), min(8, V + 2), seed)
    letters = LETTERS[:V][::-1] + "yz"[: min(8, V + 2) - V]
    return save(other, folder, letters)


def write_mellum(folder: Path, vocab: int = 4, seed: int = 0) -> list[Path]:
    """A Mellum with a random head of multi-token prediction, under the names of its checkpoints: `use_mtp=true`."""
    from safetensors.torch import load_file, save_file
    from transformers.modeling_layers import MtpModel

    model = new("mellum", vocab, seed)
    torch.manual_seed(seed + 1)
    head = MtpModel(model, 1)
    randomise(head.layers)
    file = save(model, folder / "mellum") / "model.safetensors"
    weights = load_file(file)
    for name, weight in head.layers[0].state_dict().items():
        stem, rest = name.split(".", 1)
        weights[f"mtp.{MTP_NAMES[stem]}.{rest}"] = weight.contiguous()
    save_file(weights, file, metadata={"format": "pt"})
    return [folder / "mellum"]


def write_gemma4(folder: Path, vocab: int = 4, seed: int = 0) -> list[Path]:
    """A Gemma 4 target and its assistant, which reads the target's keys and values (several tokens at one position)."""
    import transformers as t

    all_shared()
    torch.manual_seed(seed + 1)
    shared = _gemma4_config(t, vocab, num_kv_shared_layers=2)
    config = t.Gemma4AssistantConfig(text_config=shared, backbone_hidden_size=16, tie_word_embeddings=False)
    drafter = t.Gemma4AssistantForCausalLM(config).eval()
    randomise(drafter)
    return [save(new("gemma4", vocab, seed), folder / "gemma4"), save(drafter, folder / "gemma4-assistant")]


__all__ = [
    "MAKES", "companion", "distance", "new", "save", "save_universal", "tokenizer", "write", "write_companion",
    "write_companions", "write_gemma4", "write_mellum",
]  # fmt: skip
