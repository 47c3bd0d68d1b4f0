"""Models of image tokens, and their drafters, as their authors or transformers publish them."""

import importlib
import json
import random
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from parity.base.weights import sha256
from parity.base.weights import shapes as stored_shapes
from parity.models.discrete.chameleon import VQGAN
from parity.models.discrete.llamagen import LlamaGenConfig, Transformer
from parity.models.discrete.vq import MIDDLE, VQ, VQConfig

WRITES = ("chameleon", "anole", "anole_drafter", "emu3", "janus", "llamagen", "llamagen_c2i", "eagle_drafter")
CODES, SIDE, GRID, TEXT = 64, 6, 8, 32  # codes; of a picture's side, LlamaGen's; width of its text encoder
PIXELS = {"chameleon": 128, "emu3": 48}  # of a picture's side, where the files do not say
CHAMELEON_WORDS = ["<s>", "<pad>", "</s>", "<unk>", "<eoss>", "<racm3:break>", "<reserved08706>", "<image>"]
CHAMELEON_SIZES = [f"<reserved{8799 + n:05d}>" for n in range(17)]  # the line token, then sizes in 32 pixels
EMU3_WORDS = [
    "<|endoftext|>", "<|extra_200|>", "<|extra_201|>", "<|extra_203|>", "<|extra_204|>", "<|image token|>",
    "<|image start|>", "<|image end|>", "<image>",
]  # fmt: skip
JANUS_WORDS = [
    "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>", "<|User|>", "<|Assistant|>",
    "<image_placeholder>", "<begin_of_image>", "<end_of_image>",
]  # fmt: skip


def entry(name: str, folder: Path) -> dict[str, Any]:
    """What a configuration says of a stand-in, written to `folder`: its sizes read as `parity models add` does."""
    files = {part: folder / path for part, path in globals()[name](folder).items()}
    digests = {part: sha256(path) for part, path in files.items()}
    record: dict[str, Any] = {"files": {part: str(path) for part, path in files.items()}, "sha256": digests}
    if "drafter" in files:
        return record
    family = {"anole": "chameleon", "llamagen_c2i": "llamagen"}.get(name, name)
    read_sizes = importlib.import_module(f"parity.models.discrete.{family}").read_sizes
    if family == "llamagen":
        sizes = read_sizes({k: tuple(v.shape) for k, v in stored_shapes(files["transformer"]).items()}, GRID)
    else:
        sizes = read_sizes(files["model"], PIXELS.get(name))
    return {"family": family, "source": "files", **record, "network": sizes}


def write_tokenizer(folder: Path, special: Iterable[str], plain: Iterable[str] = (), **config: str) -> dict[str, int]:
    """tokenizer.json and tokenizer_config.json: names of the grammar, then codes, then a token for each byte. Returns
    its vocabulary."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    special, plain = list(special), list(plain)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {name: i for i, name in enumerate([*special, *plain, *letters])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, normalized=False, special=True) for name in special])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", **config})
    return vocabulary


def write_json(file: Path, record: dict[str, Any]) -> None:
    file.write_text(json.dumps(record, indent=2), encoding="utf-8")


def sharpen(net: nn.Module, seed: int) -> None:
    """Random weights that make the network's laws differ from place to place: matrices by their width, norms near 1."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in net.named_parameters():
            if weight.ndim > 1 and "norm" not in name:
                deviation = 1.0 if "embed" in name else 1.5 * weight[0].numel() ** -0.5
                weight.copy_(deviation * torch.randn(weight.shape, generator=generator))
            else:
                centre = float(name.endswith("weight"))
                weight.copy_(centre + 0.1 * torch.randn(weight.shape, generator=generator))


def save(net: Any, folder: Path, state: dict[str, Tensor]) -> None:
    """A folder as transformers saves it: config.json, shards and their index, which all may read."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    net.save_pretrained(folder, state_dict=state, max_shard_size="300KB")
    if shown:
        logging.enable_progress_bar()
    for file in folder.iterdir():
        file.chmod(0o644)


def chameleon_network(folder: Path, architecture: str, codes: int, side: int) -> Any:
    """transformers' own model of tiny sizes, its configuration and tokenizer written."""
    from transformers import ChameleonConfig, ChameleonForConditionalGeneration

    # names of the codes in an order that is not the tokenizer's own, as in the published file
    names = ["IMGIMG" + "".join("ABCDEFGHIJ"[int(d)] for d in str(code)) + "Z" for code in range(codes)]
    random.Random(1).shuffle(names)
    words = write_tokenizer(folder, [*CHAMELEON_WORDS, *CHAMELEON_SIZES], names)
    vq = {
        "embed_dim": 8, "num_embeddings": codes, "latent_channels": 32, "resolution": 16 * side, "base_channels": 32,
        "channel_multiplier": [1, 1, 1, 1, 1], "num_res_blocks": 1,
    }  # fmt: skip
    config = ChameleonConfig(
        vocab_size=len(words), hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=4096, vq_config=vq, vocabulary_map=words,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(1)
        net = ChameleonForConditionalGeneration(config)
    sharpen(net, seed=2)
    net.__class__ = type(architecture, (type(net),), {})  # transformers writes the class's name
    return net


def diffusion_name(name: str, levels: int) -> str:
    """A parameter's name in latent diffusion's layout, where decoder levels are numbered from the finest."""
    name = re.sub(r"\.mid\.(\d)\.", lambda m: f".mid.{MIDDLE[int(m[1])]}.", name)
    name = re.sub(r"^encoder\.conv_blocks\.(\d)\.", r"encoder.down.\1.", name)
    name = re.sub(r"^decoder\.conv_blocks\.(\d)\.", lambda m: f"decoder.up.{levels - 1 - int(m[1])}.", name)
    return re.sub(r"(down|up)\.(\d)\.res\.", r"\1.\2.block.", name)


def chameleon_decoder(net: Any) -> dict[str, torch.Tensor]:
    """Weights of an image decoder that fits a model's encoder, under Meta's names."""

    c = net.config.vq_config
    made = VQGAN(
        VQConfig(c.num_embeddings, c.embed_dim, c.base_channels, tuple(c.channel_multiplier), c.num_res_blocks,
                 c.latent_channels, 32, False)
    )  # fmt: skip
    sharpen(made, seed=3)
    return {diffusion_name(name, len(c.channel_multiplier)): value for name, value in made.state_dict().items()}


def chameleon(folder: Path, codes: int = CODES, side: int = SIDE) -> dict[str, Path]:
    """Lumina-mGPT: `model` is a sharded folder without an image tokenizer, `vq` Meta's file."""
    net = chameleon_network(folder / "Lumina-mGPT-7B-768", "ChameleonXLLMXForConditionalGeneration", codes, side)
    state = net.state_dict()
    save(net, folder / "Lumina-mGPT-7B-768", {k: v for k, v in state.items() if ".vqmodel." not in k})
    image = {k.removeprefix("model.vqmodel."): v for k, v in state.items() if ".vqmodel." in k} | chameleon_decoder(net)
    image["loss.discriminator.main.0.weight"] = torch.zeros(1, 3, 4, 4)  # of its training, as published
    torch.save({"state_dict": image}, folder / "vqgan.ckpt")
    return {"model": Path("Lumina-mGPT-7B-768"), "vq": Path("vqgan.ckpt")}


def anole(folder: Path, codes: int = CODES, side: int = SIDE) -> dict[str, Path]:
    """`model` is a folder, the image tokenizer with its decoder in it; no line tokens."""
    net = chameleon_network(folder / "Anole-7b-v0.1-hf", "ChameleonForConditionalGeneration", codes, side)
    image = {f"model.vqmodel.{name}": tensor for name, tensor in chameleon_decoder(net).items()}
    save(net, folder / "Anole-7b-v0.1-hf", net.state_dict() | image)
    return {"model": Path("Anole-7b-v0.1-hf")}


def released_drafter(folder: Path, config: dict[str, Any], shapes: dict[str, tuple[int, ...]], dtype: Any) -> Path:
    """The name of a folder with config.json and pytorch_model.bin: the same numbers every time."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", config)
    generator = torch.Generator().manual_seed(0)
    state = {}
    for name, shape in shapes.items():
        spread = torch.randn(shape, generator=generator) / (4 if "norm" in name else shape[-1] ** 0.5)
        state[name] = (spread + float("norm.weight" in name)).to(dtype)
    torch.save(state, folder / "pytorch_model.bin")
    return Path(folder.name)


def anole_drafter(folder: Path, dim: int = 64, heads: int = 4, codes: int = CODES, hidden: int = 96) -> dict[str, Path]:
    """A drafter of Anole as LANTERN released it, for a target of these sizes.

    Source: the code that makes and reads it (jadohu/LANTERN, models/drafters/cnets_anole.py and data/configs/
    anole_config.json): one of Chameleon's layers, norms of queries and keys included, `fc` with a bias, embeddings of
    all words, no norm and no output matrix at the end.
    """
    words = len(CHAMELEON_WORDS) + len(CHAMELEON_SIZES) + codes + 256
    image = {
        "attn_resolutions": [], "ch": 128, "ch_mult": [1, 1, 2, 2, 4], "double_z": False,
        "model_type": "chameleon_vqgan", "n_embed": 8192, "out_ch": 3, "z_channels": 256,
    }  # fmt: skip
    config = {
        "architectures": ["ChameleonForConditionalGeneration"], "attention_bias": False, "attention_dropout": 0.0,
        "boi_token_id": 5, "bos_token_id": 1, "eoi_token_id": 4, "eos_token_id": 2, "hidden_act": "silu",
        "hidden_size": dim, "image_token_id": 7, "initializer_range": 0.02, "intermediate_size": hidden,
        "max_position_embeddings": 4096, "mlp_bias": False, "model_parallel_size": 1, "model_type": "chameleon",
        "num_attention_heads": heads, "num_hidden_layers": 1, "num_key_value_heads": heads, "rms_norm_eps": 1e-05,
        "rope_scaling": None, "rope_theta": 10000.0, "swin_norm": False, "tie_word_embeddings": False,
        "torch_dtype": "bfloat16", "use_cache": True, "vocab_size": words, "vq_config": image,
    }  # fmt: skip
    layer: dict[str, tuple[int, ...]] = {f"self_attn.{part}_proj.weight": (dim, dim) for part in "qkvo"}
    layer |= {f"self_attn.{part}_norm.{kind}": (heads, dim // heads) for part in "qk" for kind in ("weight", "bias")}
    layer |= {f"mlp.{part}_proj.weight": (hidden, dim) for part in ("gate", "up")}
    layer |= {"mlp.down_proj.weight": (dim, hidden)}
    layer |= {f"{place}_layernorm.weight": (dim,) for place in ("input", "post_attention")}
    shapes = {"embed_tokens.weight": (words, dim), "fc.weight": (dim, 2 * dim), "fc.bias": (dim,)}
    shapes |= {f"layers.0.{name}": shape for name, shape in layer.items()}
    return {"drafter": released_drafter(folder / "anole_drafter", config, shapes, torch.bfloat16)}


def emu3(folder: Path, codes: int = CODES) -> dict[str, Path]:
    """Emu3-Gen: `model` is a folder with a nested configuration, the vision tokenizer in it."""
    from transformers import Emu3Config, Emu3ForConditionalGeneration

    own = folder / "Emu3-Gen-hf"
    words = write_tokenizer(own, [*EMU3_WORDS, *(f"<|visual token {i:06d}|>" for i in range(codes))])
    text = {
        "vocab_size": len(words), "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 9216,
        "pad_token_id": words["<|endoftext|>"], "bos_token_id": words["<|extra_203|>"],
        "eos_token_id": words["<|extra_204|>"],
    }  # fmt: skip
    vision = {
        "codebook_size": codes, "base_channels": 32, "channel_multiplier": [1, 1, 1, 1], "num_res_blocks": 1,
        "hidden_size": 32,
    }  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(1)
        net = Emu3ForConditionalGeneration(Emu3Config(text_config=text, vq_config=vision, vocabulary_map=words))
    sharpen(net, seed=2)
    save(net, own, net.state_dict())
    return {"model": Path("Emu3-Gen-hf")}


def janus(folder: Path, codes: int = CODES, side: int = SIDE) -> dict[str, Path]:
    """Janus-Pro: `model` is a folder with the language model, what draws, the picture tokenizer, and the eyes, which
    drawing does not need."""
    from transformers import JanusConfig, JanusForConditionalGeneration

    own = folder / "Janus-Pro-1B"
    words = write_tokenizer(own, JANUS_WORDS)
    text = {
        "model_type": "llama", "vocab_size": len(words), "hidden_size": 64, "intermediate_size": 96,
        "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 2048,
        "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2,
    }  # fmt: skip
    vision = {
        "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 16 * side, "patch_size": 16,
        "num_image_tokens": side**2, "projection_dim": 64,
    }  # fmt: skip
    pictures = {
        "embed_dim": 8, "num_embeddings": codes, "latent_channels": 32, "base_channels": 32,
        "channel_multiplier": [1, 1, 1, 1, 1], "num_res_blocks": 1, "projection_dim": 64, "image_token_embed_dim": 64,
    }  # fmt: skip
    config = JanusConfig(
        text_config=text, vision_config=vision, vq_config=pictures, image_token_id=words["<image_placeholder>"]
    )
    with torch.random.fork_rng():
        torch.manual_seed(1)
        net: Any = JanusForConditionalGeneration(config)
    sharpen(net, seed=2)
    net.generation_config._from_model_config = False
    net.generation_config.update(bos_token_id=0, eos_token_id=1, pad_token_id=2)
    net.generation_config.generation_kwargs = {"boi_token_id": words["<begin_of_image>"]}
    save(net, own, net.state_dict())
    return {"model": Path("Janus-Pro-1B")}


def pickled(folder: Path, transformer: str, vq: str, codes: int, grid: int, **sizes: Any) -> None:
    """The two networks under the published names, each in a dict under "model"."""

    folder.mkdir(parents=True, exist_ok=True)
    with torch.random.fork_rng():
        net = Transformer(LlamaGenConfig(vocab=codes, dim=64, layers=2, heads=1, grid=grid, **sizes))
        tokenizer = VQ(VQConfig(codes, 8, 32, (1, 1, 1, 1, 1), 1, 32))
    for seed, part in enumerate((net, tokenizer)):
        sharpen(part, seed)
    torch.save({"model": net.state_dict()}, folder / transformer)
    state = tokenizer.state_dict() | {"quantize.codebook_used": torch.zeros(65536)}
    torch.save({"model": state}, folder / vq)


def text_encoder(folder: Path) -> None:
    """A T5 encoder as transformers saves it."""
    from transformers import T5Config, T5EncoderModel

    words = write_tokenizer(folder, ["<pad>", "</s>", "<unk>"], pad_token="<pad>")
    small: Any = {"d_model": TEXT, "d_kv": 16, "d_ff": 48, "num_layers": 2, "num_heads": 2}
    with torch.random.fork_rng():
        torch.manual_seed(1)
        net = T5EncoderModel(T5Config(vocab_size=len(words), **small, feed_forward_proj="gated-gelu", dropout_rate=0.0))
    save(net, folder, net.state_dict())


def llamagen(folder: Path, codes: int = CODES, side: int = GRID, **sizes: Any) -> dict[str, Path]:
    """Stage 1 of LlamaGen-XL, whose pictures here have 8 x 8 tokens; `sizes`, of the transformer, if not XL's."""
    files = {"transformer": Path("t2i_XL_stage1_256.pt"), "vq": Path("vq_ds16_t2i.pt"), "text": Path("flan-t5-xl")}
    pickled(folder, str(files["transformer"]), str(files["vq"]), codes, side, caption_dim=TEXT, **sizes)
    text_encoder(folder / files["text"])
    return files


def llamagen_c2i(folder: Path) -> dict[str, Path]:
    """LlamaGen-B for classes of ImageNet, whose pictures here have 8 x 8 tokens."""
    files = {"transformer": Path("c2i_B_256.pt"), "vq": Path("vq_ds16_c2i.pt")}
    pickled(folder, str(files["transformer"]), str(files["vq"]), CODES, GRID, prefix=1, caption_dim=0, classes=1000)
    return files


def eagle_drafter(
    folder: Path, dim: int = 64, heads: int = 1, codes: int = 64, grid: int = 8, hidden: int = 256
) -> dict[str, Path]:
    """A drafter of LlamaGen as LANTERN released them, for a target of these sizes.

    Source: jadohu/llamagen_drafter and the code that reads it (jadohu/LANTERN, models/drafters/cnets_llamagen.py): one
    Llama layer without a norm before its attention, `fc` with a bias, its own frozen embeddings, no norm and no output
    matrix at the end. The released configuration has no `block_size`, which follows from `input_type`: it stands here
    for small pictures.
    """
    config = {
        "architectures": ["LlamaForCausalLM"], "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
        "hidden_size": dim, "caption_dim": 2048, "class_dropout_p": 0.0, "initializer_range": 0.02,
        "intermediate_size": hidden, "max_position_embeddings": 2048, "model_type": "llama",
        "num_attention_heads": heads, "num_hidden_layers": 1, "num_key_value_heads": heads, "pretraining_tp": 1,
        "rms_norm_eps": 1e-06, "rope_scaling": None, "tie_word_embeddings": False, "torch_dtype": "float16",
        "use_cache": True, "vocab_size": codes, "input_type": "t2i", "block_size": grid**2,
    }  # fmt: skip
    shapes: dict[str, tuple[int, ...]] = {
        "embed_tokens.weight": (codes, dim),
        "fc.weight": (dim, 2 * dim),
        "fc.bias": (dim,),
    }
    shapes |= {f"layers.0.self_attn.{part}_proj.weight": (dim, dim) for part in "qkvo"}
    shapes |= {f"layers.0.mlp.{part}_proj.weight": (hidden, dim) for part in ("gate", "up")}
    shapes |= {"layers.0.mlp.down_proj.weight": (dim, hidden)}
    shapes["layers.0.post_attention_layernorm.weight"] = (dim,)
    return {"drafter": released_drafter(folder / "llamagen_drafter", config, shapes, torch.float16)}
