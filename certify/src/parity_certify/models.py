"""Make models to certify on: tiny checkpoints of real architectures, as folders that any engine loads.

    write_model("llama", FOLDER, vocab=4, seed=0)              a target; its distributions are neither flat nor one-hot
    write_speculator(FOLDER, OTHER, tv=0.3)               a draft model whose conditionals are that far away
    write_gemma4(FOLDER), write_mellum(FOLDER)           a target with what drafts for it

Weights are random, scaled until the entropy of the next token, over all prefixes, is about SPREAD of the largest.
"""

import copy
import json
import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from parity_certify.adapters import transformers as adapter
from parity_certify.adapters.transformers import compute_distribution, get_vocab_size, load_model
from parity_certify.errors import ParityError
from parity_certify.files import replace_whole
from parity_certify.seeding import check_seed

SPREAD = 0.75
# scales of weights at which the first token moves the distribution as much as the last one
EMBEDDING, MATRIX = 0.3, 0.5
LETTERS = "abcdefgh"
END = "</s>"  # the tokenizers' end token: its number is the first after the model's vocabulary, so it is never drawn
SIZES: dict[str, Any] = {
    "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "max_position_embeddings": 64,
}  # fmt: skip
IDS: dict[str, Any] = {"bos_token_id": 0, "eos_token_id": None, "pad_token_id": 0}
TWO_KINDS = {"layer_types": ["sliding_attention", "full_attention"]}
GEMMA4 = SIZES | TWO_KINDS | {
    "sliding_window": 8, "hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0, "enable_moe_block": False,
    "use_double_wide_mlp": False, "num_kv_shared_layers": 0, "head_dim": 8, "global_head_dim": 8,
}  # fmt: skip
HEADED = ("llama", "qwen2", "qwen3", "gemma3", "mistral")  # these take wider heads and layers, which some engines need
MAKES: dict[str, tuple[str, str, dict[str, Any]]] = {  # class of the model, class of its configuration, its settings
    "llama": ("LlamaForCausalLM", "LlamaConfig", SIZES | {"head_dim": 8}),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", SIZES),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", SIZES | {"head_dim": 8}),
    "gemma3": ("Gemma3ForCausalLM", "Gemma3TextConfig", SIZES | TWO_KINDS | {"head_dim": 8, "sliding_window": 6}),
    "mistral": ("MistralForCausalLM", "MistralConfig", SIZES | {"head_dim": 8, "sliding_window": 3}),
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64}),
    "t5": ("T5ForConditionalGeneration", "T5Config", {
        "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2, "decoder_start_token_id": 0,
    }),
    "mamba": ("MambaForCausalLM", "MambaConfig", {
        "hidden_size": 16, "state_size": 4, "num_hidden_layers": 2, "use_cache": True,
    }),
    "janus": ("JanusForConditionalGeneration", "JanusConfig", {}),
    "gemma4": ("Gemma4ForCausalLM", "Gemma4TextConfig", GEMMA4 | {
        "num_hidden_layers": 4, "layer_types": TWO_KINDS["layer_types"] * 2, "hidden_size_per_layer_input": 4,
        "num_kv_shared_layers": 2,
    }),
    "mellum": ("MellumForCausalLM", "MellumConfig", SIZES | TWO_KINDS | {  # it has one head of multi-token prediction
        "head_dim": 8, "sliding_window": 6, "num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16,
        "mlp_layer_types": ["dense"] * 2, "num_mtp_layers": 1, "mtp_layer_types": ["full_attention"],
        "mtp_mlp_layer_types": ["dense"],
    }),
    "lfm2": ("Lfm2ForCausalLM", "Lfm2Config", SIZES | {
        "layer_types": ["conv", "full_attention"], "conv_L_cache": 3, "block_auto_adjust_ff_dim": False,
    }),
}  # fmt: skip
MTP_NAMES = {
    "enorm": "pre_fc_norm_embedding", "hnorm": "pre_fc_norm_hidden", "eh_proj": "fc", "post_norm": "norm",
    "mtp_block": "layers.0",
}  # fmt: skip


def make_config(kind: str, vocab: int, **changes: int) -> Any:
    """Make the configuration of a tiny model of an architecture of MAKES; changes replace settings (not of "janus")."""
    import transformers as t

    if kind == "janus":
        image: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
        image |= {"image_size": 8, "patch_size": 4, "projection_dim": 16, "num_image_tokens": 4, "depth": 1}
        vision = t.JanusVisionConfig(**image)
        codes = t.models.janus.JanusVQVAEConfig(
            embed_dim=4, num_embeddings=vocab, latent_channels=8, base_channels=32, channel_multiplier=(1, 1),
            num_res_blocks=1, projection_dim=16, num_hidden_layers=1, image_token_embed_dim=16,
        )  # fmt: skip
        text = t.LlamaConfig(vocab_size=vocab, **SIZES, **IDS)
        return t.JanusConfig(text_config=text, vision_config=vision, vq_config=codes, image_token_id=vocab + 1)
    settings = MAKES[kind][2] | IDS | {"vocab_size": vocab} | changes
    if kind == "gemma4":
        settings["vocab_size_per_layer_input"] = vocab
    return getattr(t, MAKES[kind][1])(**settings)


def check_changes(kind: str, changes: dict[str, int]) -> None:
    """Raise ParityError for a `head_dim` or `hidden_size` that this architecture does not take."""
    for key, size in changes.items():
        if kind not in HEADED:
            raise ParityError(f"{key} {size}: allowed for {', '.join(HEADED)} alone")
        if size < 2 or size % 2:
            raise ParityError(f"{key} {size}: allowed: an even number, 2 or more")


def make_model(kind: str, vocab: int, seed: int, **changes: int) -> Any:
    """Make a model with random weights whose distributions are neither flat nor one-hot; changes: `head_dim`,
    `hidden_size`."""
    import transformers

    if kind not in MAKES:
        raise ParityError(f"architecture {kind!r}: allowed: {', '.join(sorted(MAKES))}")
    if not 3 <= vocab <= 8:
        raise ParityError(f"vocab {vocab}: allowed: 3 to 8")
    check_changes(kind, changes)
    adapter.silence_transformers()
    torch.manual_seed(check_seed(seed))
    model = getattr(transformers, MAKES[kind][0])(make_config(kind, vocab, **changes)).eval()
    randomise_weights(model)
    scale_output(model, vocab)
    return model


def randomise_weights(model: Any) -> None:
    """Draw the weight matrices anew, from torch's global generator: normal, with deviation EMBEDDING or MATRIX."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim >= 2:
                weight.normal_(std=EMBEDDING if any(e in name for e in ("embed", "wte", "shared")) else MATRIX)


def measure_entropy(model: Any, vocab: int) -> float:
    """Measure the mean entropy of the next token after prefixes of one and two tokens, as a share of log(vocab)."""
    p = compute_conditionals(model, 2)
    return float(-(p * np.log(np.maximum(p, 1e-30))).sum(-1).mean() / math.log(vocab))


def scale_output(model: Any, vocab: int) -> None:
    """Scale the model's output matrix, in place, until the entropy is SPREAD, to within a hundredth. A matrix that is
    tied to the embeddings is first replaced by a random one."""
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    if head.weight.data_ptr() == embedding.weight.data_ptr():
        head.weight = torch.nn.Parameter(torch.randn_like(head.weight))
        model.config.tie_word_embeddings = False
        model.config.get_text_config().tie_word_embeddings = False
    unscaled = head.weight.detach().clone()
    low, high = 1e-3, 1e3
    for _ in range(40):
        middle = math.sqrt(low * high)
        with torch.no_grad():
            head.weight.copy_(unscaled * middle)
        share = measure_entropy(model, vocab)
        if abs(share - SPREAD) < 0.01:
            return
        low, high = (middle, high) if share > SPREAD else (low, middle)


def compute_conditionals(model: Any, length: int = 3) -> np.ndarray:
    """Compute the conditionals [V, N, V] after each one-token prompt, of the next `length` tokens by prefix."""
    return compute_distribution(model, np.arange(get_vocab_size(model))[:, None], length).tables


def compute_mean_tv(one: np.ndarray, two: np.ndarray) -> float:
    """Compute the mean TV of two tables of distributions [..., V]."""
    return float(0.5 * np.abs(one - two).sum(-1).mean())


def make_speculator(model: Any, tv: float, seed: int = 1) -> Any:
    """Make a copy of a model with noise added to its weights, so much that its conditionals are `tv` away (mean over
    prefixes, to a hundredth). Raises ParityError if no amount of noise is that far."""
    if not 0 < tv < 0.6:
        raise ParityError(f"tv {tv:g}: allowed: above 0, below 0.6")
    generator = torch.Generator().manual_seed(seed)
    draft = copy.deepcopy(model)
    noise = [torch.randn(w.shape, generator=generator) * w.std() for w in model.parameters()]
    probs = compute_conditionals(model)
    low, high = 0.0, 8.0
    for _ in range(40):
        middle = (low + high) / 2
        with torch.no_grad():
            for w, w_0, z in zip(draft.parameters(), model.parameters(), noise, strict=True):
                if w.ndim >= 2:
                    w.copy_((w_0 + middle * z) / math.sqrt(1 + middle**2 / 4))
        distance = compute_mean_tv(probs, compute_conditionals(draft))
        if abs(distance - tv) < 0.01:
            return draft
        low, high = (middle, high) if distance < tv else (low, middle)
    raise ParityError(f"tv {tv:g}: no speculator that far away (nearest {distance:.3f}); allowed: a smaller one")


def save_model(model: Any, folder: Path, letters: str | None = None, end: str | None = END) -> Path:
    """Save a model with a tokenizer of one letter a token, so that text and tokens are the same; return the folder. Its
    files are put there when all are written, config.json last, by which a whole checkpoint is known.

    end: the tokenizer's end token, for engines that need one; None: it has none.
    """
    letters = letters or LETTERS[: get_vocab_size(model)]
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as written:
        model.save_pretrained(written)
        Path(written, "generation_config.json").unlink(missing_ok=True)  # config.json says all, and some demand an end
        add_rope_theta(Path(written, "config.json"))
        write_tokenizer(letters, end, Path(written))
        for file in sorted(Path(written).iterdir(), key=lambda file: file.name == "config.json"):
            file.replace(folder / file.name)
    return folder


def add_rope_theta(file: Path) -> None:
    """Add `rope_theta` to a config.json, where engines look for it that do not know `rope_parameters`."""
    config = json.loads(file.read_text(encoding="utf-8"))
    theta = (config.get("rope_parameters") or {}).get("rope_theta")
    if theta is not None:
        file.write_text(json.dumps(config | {"rope_theta": theta}, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def write_tokenizer(letters: str, end: str | None, folder: Path) -> None:
    """Write a byte-level tokenizer whose tokens are letters and perhaps an end token. No letter is special, or it would
    be left out of texts; other characters, such as spaces, are read as nothing."""
    import tokenizers as tk

    tokenizer = tk.Tokenizer(tk.models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = tk.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = tk.decoders.ByteLevel()
    settings: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast"}
    settings["model_input_names"] = ["input_ids", "attention_mask"]
    if end is not None:
        tokenizer.add_special_tokens([end])
        settings["eos_token"] = end
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def write_model(kind: str, folder: Path, vocab: int = 4, seed: int = 0, **changes: int) -> Path:
    """Make a model and write it to a folder, which is returned."""
    return save_model(make_model(kind, vocab, seed, **changes), folder)


def write_speculator(target: Path, folder: Path, tv: float = 0.3) -> Path:
    """Make a draft model for a target, `tv` away, and write it to a folder, which is returned."""
    return save_model(make_speculator(load_model(target), tv), folder)


def write_speculators(target: Path, out: Path, tv: float = 0.3) -> list[Path]:
    """Write two assistants of a target: one `tv` away, and one with another tokenizer. That tokenizer has the target's
    letters in another order, and two more; it has no end token, which universal assisted decoding would look up in the
    model. Returns both folders."""
    assistant = write_speculator(target, out / f"{target.name}-assistant", tv)
    model = load_model(target)
    V = get_vocab_size(model)
    assistant_model = make_model(model.config.model_type.removesuffix("_text"), min(8, V + 2), seed=1)
    letters = LETTERS[:V][::-1] + "yz"[: min(8, V + 2) - V]
    return [assistant, save_model(assistant_model, out / f"{target.name}-other-tokenizer", letters, end=None)]


def write_mellum(folder: Path, vocab: int = 4, seed: int = 0) -> list[Path]:
    """Write a Mellum with a random head of multi-token prediction, named as in its checkpoints, to folder/mellum."""
    from safetensors.torch import load_file, save_file
    from transformers.modeling_layers import MtpModel

    model = make_model("mellum", vocab, seed)
    torch.manual_seed(seed + 1)
    head = MtpModel(model, 1)
    randomise_weights(head.layers)
    file = save_model(model, folder / "mellum") / "model.safetensors"
    weights = load_file(file)
    for name, weight in head.layers[0].state_dict().items():
        stem, rest = name.split(".", 1)
        weights[f"mtp.{MTP_NAMES[stem]}.{rest}"] = weight.contiguous()
    with replace_whole(file) as temporary:
        save_file(weights, temporary, metadata={"format": "pt"})
    return [folder / "mellum"]


def write_gemma4(folder: Path, vocab: int = 4, seed: int = 0) -> list[Path]:
    """Write a Gemma 4 target and its assistant, which reads the target's keys and values (tokens share a position), to
    folder/gemma4 and folder/gemma4-assistant, which are returned."""
    import transformers as t

    adapter.patch_gemma4_config()
    torch.manual_seed(seed + 1)
    shared = t.Gemma4TextConfig(vocab_size=vocab, **GEMMA4 | IDS | {"num_kv_shared_layers": 2})
    config = t.Gemma4AssistantConfig(text_config=shared, backbone_hidden_size=16, tie_word_embeddings=False)
    drafter = t.Gemma4AssistantForCausalLM(config).eval()
    randomise_weights(drafter)
    target = make_model("gemma4", vocab, seed)
    return [save_model(target, folder / "gemma4"), save_model(drafter, folder / "gemma4-assistant")]


make_companion, write_companion, write_companions = make_speculator, write_speculator, write_speculators  # deprecated
