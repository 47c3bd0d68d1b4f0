"""Models of image tokens, and their drafters, as their authors or transformers publish them."""

import base64
import random
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from parity.base.files import write_json
from parity.models.discrete.chameleon import VQGAN
from parity.models.discrete.llamagen import LlamaGenConfig, Transformer
from parity.models.discrete.vq import MIDDLE, VQ, VQConfig
from parity.stand_ins.text import save_tokenizer

WRITES = (
    "chameleon",
    "anole",
    "anole_drafter",
    "emu3",
    "emu3p5",
    "imagegpt",
    "liquid",
    "janus",
    "janus_released",
    "llamagen",
    "llamagen_c2i",
    "eagle_drafter",
)
NONE: Mapping[str, Any] = MappingProxyType({})
CODES = 64
SIDE = 6  # images have this many codes a side, unless they are LlamaGen's
GRID = 8  # LlamaGen's images have this many codes a side
TEXT = 32  # LlamaGen's text encoder makes embeddings of this width
PUBLISHED: dict[str, dict[str, Any]] = {  # the arguments of a function with which it writes the sizes of its authors
    "llamagen": {
        "codes": 16384, "side": 16, "sizes": {"dim": 1280, "layers": 36, "heads": 20}, "tokenizer": VQConfig(),
        "text": {"d_model": 2048, "d_kv": 64, "d_ff": 5120, "num_layers": 24, "num_heads": 32, "vocab_size": 32128},
    },
    "llamagen_c2i": {
        "codes": 16384, "side": 16, "sizes": {"dim": 768, "layers": 12, "heads": 12}, "tokenizer": VQConfig(),
    },
    "eagle_drafter": {"dim": 1280, "heads": 20, "codes": 16384, "grid": 16, "hidden": 3584},
    "janus": {
        "codes": 16384, "side": 24,
        "text": {"vocab_size": 102400, "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 24,
                 "num_attention_heads": 16},
        "vision": {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16},
        "images": {"latent_channels": 256, "base_channels": 128, "channel_multiplier": [1, 1, 2, 2, 4],
                     "num_res_blocks": 2},
    },
}  # fmt: skip
SMALL_TOKENIZER = VQConfig(CODES, 8, 32, (1, 1, 1, 1, 1), 1, 32)
PIXELS = {"chameleon": 128, "emu3": 48, "emu3p5": 96}  # pixels of an image's side, which no file says
CHAMELEON_WORDS = ["<s>", "<pad>", "</s>", "<unk>", "<eoss>", "<racm3:break>", "<reserved08706>", "<image>"]
EMU3_WORDS = [
    "<|endoftext|>", "<|extra_200|>", "<|extra_201|>", "<|extra_203|>", "<|extra_204|>", "<|image token|>",
    "<|image start|>", "<|image end|>", "<image>",
]  # fmt: skip
JANUS_WORDS = [
    "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>", "<|User|>", "<|Assistant|>",
    "<image_placeholder>", "<begin_of_image>", "<end_of_image>",
]  # fmt: skip


def write_tokenizer(folder: Path, special: Iterable[str], plain: Iterable[str] = (), **config: str) -> dict[str, int]:
    """Write a tokenizer's folder and return its vocabulary: the tokens `special`, then `plain`, then one for each byte.
    config: more entries of tokenizer_config.json."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    special, plain = list(special), list(plain)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {name: i for i, name in enumerate([*special, *plain, *letters])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, normalized=False, special=True) for name in special])
    save_tokenizer(tokenizer, folder, {"tokenizer_class": "PreTrainedTokenizerFast", **config})
    return vocabulary


def sharpen(net: nn.Module, seed: int) -> nn.Module:
    """Fill a network with random weights by a seed and return it: matrices scaled by their width, vectors near 1
    (weights) or 0 (biases), so that its distributions differ between positions."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in net.named_parameters():
            if weight.ndim > 1 and "norm" not in name:
                deviation = 1.0 if "embed" in name else 1.5 * weight[0].numel() ** -0.5
                weight.copy_(deviation * torch.randn(weight.shape, generator=generator, dtype=torch.float32))
            else:
                centre = float(name.endswith("weight"))
                weight.copy_(centre + 0.1 * torch.randn(weight.shape, generator=generator, dtype=torch.float32))
    return net


def save(net: Any, folder: Path, state: dict[str, Tensor] | None = None) -> None:
    """Save a transformers network to a folder of shards with an index, readable by all; state: other weights."""
    state = state or net.state_dict()
    large = sum(tensor.nbytes for tensor in state.values()) > 2**28
    net.save_pretrained(folder, state_dict=state, max_shard_size="2GB" if large else "300KB")
    for file in folder.iterdir():
        file.chmod(0o644)


def name_chameleon_sizes(side: int) -> list[str]:
    """Name Chameleon's tokens of lines and sizes: a line token, then sizes in units of 32 pixels, two codes, up to that
    of `side` codes, or of 30 if that is more."""
    return [f"<reserved{8799 + n:05d}>" for n in range(max(15, side // 2) + 2)]


def make_chameleon_network(folder: Path, architecture: str, codes: int, side: int) -> Any:
    """Make a random Chameleon of transformers, tiny, and write its tokenizer to `folder`. architecture: the class that
    its config.json will name; codes: how many image codes; side: codes of an image's side."""
    from transformers import ChameleonConfig, ChameleonForConditionalGeneration

    # as in the published file, the tokenizer's ids are in another order than the numbers in the names of the codes
    names = ["IMGIMG" + "".join("ABCDEFGHIJ"[int(d)] for d in str(code)) + "Z" for code in range(codes)]
    random.Random(1).shuffle(names)
    words = write_tokenizer(folder, [*CHAMELEON_WORDS, *name_chameleon_sizes(side)], names)
    vq = {
        "embed_dim": 8, "num_embeddings": codes, "latent_channels": 32, "resolution": 16 * side, "base_channels": 32,
        "channel_multiplier": [1, 1, 1, 1, 1], "num_res_blocks": 1,
    }  # fmt: skip
    config = ChameleonConfig(
        vocab_size=len(words), hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=4096, vq_config=vq, vocabulary_map=words,
    )  # fmt: skip
    net: Any = sharpen(ChameleonForConditionalGeneration(config), seed=2)
    net.__class__ = type(architecture, (type(net),), {})  # transformers writes the class's name into config.json
    return net


def diffusion_name(name: str, levels: int) -> str:
    """Rename a parameter of our autoencoder (`models.discrete.vq`) to latent diffusion's layout, in which a decoder's
    `levels` are numbered from the finest."""
    name = re.sub(r"\.mid\.(\d)\.", lambda m: f".mid.{MIDDLE[int(m[1])]}.", name)
    name = re.sub(r"^encoder\.conv_blocks\.(\d)\.", r"encoder.down.\1.", name)
    name = re.sub(r"^decoder\.conv_blocks\.(\d)\.", lambda m: f"decoder.up.{levels - 1 - int(m[1])}.", name)
    return re.sub(r"(down|up)\.(\d)\.res\.", r"\1.\2.block.", name)


def make_chameleon_decoder(net: Any) -> dict[str, Tensor]:
    """Make random weights of an image decoder that fits the image encoder of a Chameleon `net`, by Meta's names."""
    c = net.config.vq_config
    widths = tuple(c.channel_multiplier)
    blocks = c.num_res_blocks
    sizes = (c.num_embeddings, c.embed_dim, c.base_channels, widths, blocks, c.latent_channels, 32, False)
    state = sharpen(VQGAN(VQConfig(*sizes)), seed=3).state_dict()
    return {diffusion_name(name, len(widths)): value for name, value in state.items()}


def chameleon(folder: Path, codes: int = CODES, side: int = SIDE) -> dict[str, str]:
    """Write Lumina-mGPT, a folder of shards without an image tokenizer, and that tokenizer in Meta's file. Return their
    paths in `folder` as "model" and "vq". codes: how many image codes; side: codes of an image's side."""
    net = make_chameleon_network(folder / "Lumina-mGPT-7B-768", "ChameleonXLLMXForConditionalGeneration", codes, side)
    state = net.state_dict()
    save(net, folder / "Lumina-mGPT-7B-768", {k: v for k, v in state.items() if ".vqmodel." not in k})
    image = {
        k.removeprefix("model.vqmodel."): v for k, v in state.items() if ".vqmodel." in k
    } | make_chameleon_decoder(net)
    image["loss.discriminator.main.0.weight"] = torch.zeros(1, 3, 4, 4)  # the published file has its training loss too
    torch.save({"state_dict": image}, folder / "vqgan.ckpt")
    return {"model": "Lumina-mGPT-7B-768", "vq": "vqgan.ckpt"}


def anole(folder: Path, codes: int = CODES, side: int = SIDE) -> dict[str, str]:
    """Write Anole, a folder of shards that holds the image tokenizer too; return {"model": its name}."""
    net = make_chameleon_network(folder / "Anole-7b-v0.1-hf", "ChameleonForConditionalGeneration", codes, side)
    image = {f"model.vqmodel.{name}": tensor for name, tensor in make_chameleon_decoder(net).items()}
    save(net, folder / "Anole-7b-v0.1-hf", net.state_dict() | image)
    return {"model": "Anole-7b-v0.1-hf"}


def write_drafter(folder: Path, config: dict[str, Any], heads: int, norms: Iterable[str], dtype: Any) -> dict[str, str]:
    """Write a drafter as LANTERN released them to `folder`, config.json and pytorch_model.bin, and return {"drafter":
    name of the folder}. It has embeddings, `fc` with a bias, one layer, no norm and no output matrix at the end. The
    random numbers are the same every time. heads: of the layer's norms of queries and keys, 0 for no such norms; norms:
    names of its other norms."""
    dim = config["hidden_size"]
    hidden = config["intermediate_size"]
    words = config["vocab_size"]
    layer: dict[str, tuple[int, ...]] = {f"self_attn.{projection}_proj.weight": (dim, dim) for projection in "qkvo"}
    if heads:
        kinds = ("weight", "bias")
        layer |= {f"self_attn.{projection}_norm.{kind}": (heads, dim // heads) for projection in "qk" for kind in kinds}
    layer |= {f"mlp.{projection}_proj.weight": (hidden, dim) for projection in ("gate", "up")}
    layer |= {"mlp.down_proj.weight": (dim, hidden), **{f"{norm}_layernorm.weight": (dim,) for norm in norms}}
    shapes = {"embed_tokens.weight": (words, dim), "fc.weight": (dim, 2 * dim), "fc.bias": (dim,)}
    shapes |= {f"layers.0.{name}": shape for name, shape in layer.items()}
    generator = torch.Generator().manual_seed(0)
    state = {}
    for name, shape in shapes.items():
        spread = torch.randn(shape, generator=generator) / (4 if "norm" in name else shape[-1] ** 0.5)
        state[name] = (spread + float("norm.weight" in name)).to(dtype)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", config)
    torch.save(state, folder / "pytorch_model.bin")
    return {"drafter": folder.name}


def anole_drafter(folder: Path, dim: int = 64, heads: int = 4, codes: int = CODES, hidden: int = 96) -> dict[str, str]:
    """Write a drafter of Anole for a target of these sizes, with norms of queries and keys as in Chameleon's layers;
    return {"drafter": its folder's name}.

    Source: the code that makes and reads it (jadohu/LANTERN, models/drafters/cnets_anole.py and data/configs/
    anole_config.json).
    """
    config = {
        "architectures": ["ChameleonForConditionalGeneration"], "model_type": "chameleon", "hidden_act": "silu",
        "hidden_size": dim, "intermediate_size": hidden, "max_position_embeddings": 4096,
        "num_attention_heads": heads, "num_key_value_heads": heads, "num_hidden_layers": 1, "rms_norm_eps": 1e-05,
        "rope_theta": 10000.0, "swin_norm": False, "torch_dtype": "bfloat16",
        "vocab_size": len(CHAMELEON_WORDS) + len(name_chameleon_sizes(SIDE)) + codes + 256,
    }  # fmt: skip
    norms = ("input", "post_attention")
    return write_drafter(folder / "anole_drafter", config, heads, norms, torch.bfloat16)


def eagle_drafter(
    folder: Path, dim: int = 64, heads: int = 1, codes: int = CODES, grid: int = GRID, hidden: int = 256
) -> dict[str, str]:
    """Write a drafter of LlamaGen for a target of these sizes, without a norm before its attention; return {"drafter":
    its folder's name}.

    Source: jadohu/llamagen_drafter and the code that reads it (jadohu/LANTERN, models/drafters/cnets_llamagen.py). The
    released configuration has no `block_size`, which follows from `input_type`; here it is for small images.
    """
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": dim,
        "caption_dim": 2048, "intermediate_size": hidden, "num_attention_heads": heads, "num_key_value_heads": heads,
        "num_hidden_layers": 1, "rms_norm_eps": 1e-06, "rope_scaling": None, "torch_dtype": "float16",
        "vocab_size": codes, "input_type": "t2i", "block_size": grid**2,
    }  # fmt: skip
    return write_drafter(folder / "llamagen_drafter", config, 0, ("post_attention",), torch.float16)


def emu3(folder: Path, codes: int = CODES) -> dict[str, str]:
    """Write Emu3-Gen, a folder of shards that holds the vision tokenizer too; return {"model": its name}."""
    from transformers import Emu3Config, Emu3ForConditionalGeneration

    model_folder = folder / "Emu3-Gen-hf"
    words = write_tokenizer(model_folder, [*EMU3_WORDS, *(f"<|visual token {i:06d}|>" for i in range(codes))])
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
    config = Emu3Config(text_config=text, vq_config=vision, vocabulary_map=words)
    save(sharpen(Emu3ForConditionalGeneration(config), seed=2), model_folder)
    return {"model": "Emu3-Gen-hf"}


def emu3p5(folder: Path, codes: int = CODES) -> dict[str, str]:
    """Write Emu3.5, a folder of shards with the authors' config.json and table of byte pairs, and its image tokenizer.
    Return their paths in `folder` as "model" and "vq"."""
    from parity_decoders.families.emu3p5_prompts import SPECIAL, START
    from transformers import Qwen3Config, Qwen3ForCausalLM

    model_folder = folder / "Emu3.5-Image"
    vocab = 256 + len(SPECIAL) + codes
    sizes: dict[str, Any] = {
        "vocab_size": vocab, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 9216,
        "rms_norm_eps": 1e-6, "pad_token_id": 256, "bos_token_id": 256 + SPECIAL.index(START), "eos_token_id": None,
    }  # fmt: skip
    save(sharpen(Qwen3ForCausalLM(Qwen3Config(**sizes)), seed=2), model_folder)
    write_json(model_folder / "config.json", {"model_type": "Emu3", "hidden_act": "silu", "rope_theta": 1e6, **sizes})
    table = "".join(f"{base64.b64encode(bytes([i])).decode()} {i}\n" for i in range(256))
    (model_folder / "emu3.tiktoken").write_text(table)
    vq = sharpen(VQGAN(VQConfig(codes, 8, 32, (1, 1, 1, 1, 1), 1, 32)), seed=3).state_dict()
    tokenizer = folder / "Emu3.5-VisionTokenizer" / "model.ckpt"
    tokenizer.parent.mkdir()
    torch.save({"state_dict": {diffusion_name(name, 5): value for name, value in vq.items()}}, tokenizer)
    return {"model": model_folder.name, "vq": f"{tokenizer.parent.name}/{tokenizer.name}"}


def imagegpt(folder: Path, codes: int = CODES) -> dict[str, str]:
    """Write ImageGPT, which only transformers reads, with the colours of its tokens; return {"model": its name}."""
    from transformers import ImageGPTConfig, ImageGPTForCausalImageModeling

    config = ImageGPTConfig(vocab_size=codes + 1, n_positions=1024, n_embd=32, n_layer=2, n_head=4)
    save(sharpen(ImageGPTForCausalImageModeling(config), seed=2), folder / "imagegpt-small")
    colours = torch.rand(codes, 3, generator=torch.Generator().manual_seed(1)) * 2 - 1
    write_json(folder / "imagegpt-small/preprocessor_config.json", {"clusters": colours.tolist()})
    return {"model": "imagegpt-small"}


def liquid(folder: Path, codes: int = CODES) -> dict[str, str]:
    """Write Liquid, which only transformers reads, a folder without image tokenizer; return {"model": its name}."""
    from transformers import GemmaConfig, GemmaForCausalLM

    model_folder = folder / "Liquid_V1_7B"
    words = write_tokenizer(model_folder, ["<pad>", "<eos>", "<bos>", "<unconditional>", "<boi>"])
    config = GemmaConfig(
        vocab_size=len(words) + codes, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=1, head_dim=16, max_position_embeddings=2048, pad_token_id=0,
        eos_token_id=1, bos_token_id=2,
    )  # fmt: skip
    save(sharpen(GemmaForCausalLM(config), seed=2), model_folder)
    return {"model": "Liquid_V1_7B"}


def janus(
    folder: Path,
    codes: int = CODES,
    side: int = SIDE,
    text: Mapping[str, Any] = NONE,
    vision: Mapping[str, Any] = NONE,
    images: Mapping[str, Any] = NONE,
) -> dict[str, str]:
    """Write Janus-Pro, a folder of shards that holds all its networks, in bfloat16 if it is large; return {"model": its
    name}. text, vision, images: of transformers' configurations, in place of small sizes."""
    from transformers import JanusConfig, JanusForConditionalGeneration
    from transformers.modeling_utils import local_torch_dtype

    model_folder = folder / "Janus-Pro-1B"
    words = write_tokenizer(model_folder, JANUS_WORDS)
    language = {
        "model_type": "llama", "vocab_size": len(words), "hidden_size": 64, "intermediate_size": 96,
        "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 2048,
        "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2, **text,
    }  # fmt: skip
    width = language["hidden_size"]
    encoder = {
        "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 16 * side, "patch_size": 16,
        "num_image_tokens": side**2, "projection_dim": width, **vision,
    }  # fmt: skip
    tokenizer = {
        "embed_dim": 8, "num_embeddings": codes, "latent_channels": 32, "base_channels": 32,
        "channel_multiplier": [1, 1, 1, 1, 1], "num_res_blocks": 1, "projection_dim": width,
        "image_token_embed_dim": width, **images,
    }  # fmt: skip
    config = JanusConfig(
        text_config=language, vision_config=encoder, vq_config=tokenizer, image_token_id=words["<image_placeholder>"]
    )
    with local_torch_dtype(torch.bfloat16 if text else torch.float32):
        net: Any = sharpen(JanusForConditionalGeneration(config), seed=2)
    net.generation_config._from_model_config = False
    net.generation_config.update(bos_token_id=0, eos_token_id=1, pad_token_id=2)
    net.generation_config.generation_kwargs = {"boi_token_id": words["<begin_of_image>"]}
    save(net, model_folder)
    return {"model": "Janus-Pro-1B"}


def name_as_released(name: str) -> str | None:
    """Rename a tensor of Janus from transformers' layout to DeepSeek's; None for the encoder of images."""
    if name.startswith(("model.vision_model.", "model.aligner.")):
        return None
    own = name.removeprefix("model.")
    if own.startswith("vqmodel."):
        own = re.sub(r"\.mid\.(block_1|attn_1|block_2)\.", lambda m: f".mid.{MIDDLE.index(m[1])}.", own)
        own = re.sub(r"\.(?:up|down)\.(\d)\.", r".conv_blocks.\1.", own).replace(".block.", ".res.")
        return own.replace("vqmodel.", "gen_vision_model.")
    renamed = {
        "language_model.": "language_model.model.", "lm_head.": "language_model.lm_head.",
        "generation_embeddings.": "gen_embed.", "generation_aligner.fc1.": "gen_aligner.layers.0.",
        "generation_aligner.hidden_layers.0.": "gen_aligner.layers.2.",
        "generation_head.proj_out.": "gen_head.output_mlp_projector.",
        "generation_head.vision_head.": "gen_head.vision_head.",
    }  # fmt: skip
    return next(new + own.removeprefix(old) for old, new in renamed.items() if own.startswith(old))


def janus_released(folder: Path) -> dict[str, str]:
    """Write the networks of `janus` in DeepSeek's layout, one pickle of all; return {"model": its name}."""
    from transformers import JanusForConditionalGeneration

    source = folder / "transformers" / janus(folder / "transformers")["model"]
    net: Any = JanusForConditionalGeneration.from_pretrained(source)
    model_folder = folder / "Janus-Pro-1B"
    model_folder.mkdir()
    for file in source.glob("tokenizer*.json"):
        shutil.move(file, model_folder)
    text, images = net.config.text_config, net.config.vq_config
    sizes = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    language = {name: getattr(text, name) for name in (*sizes, "num_key_value_heads", "max_position_embeddings")}
    depth = {"depth": 2, "projector_type": "mlp_gelu", "n_embed": images.projection_dim}
    codes = {"image_token_size": images.num_embeddings, "n_embed": images.embed_dim}
    head = {"image_token_embed": images.image_token_embed_dim, "image_token_size": images.num_embeddings}
    config = {
        "model_type": "multi_modality", "architectures": ["MultiModalityCausalLM"],
        "language_config": {"model_type": "llama", **language},
        "vision_config": {"cls": "CLIPVisionTower", "params": {"image_size": net.config.vision_config.image_size}},
        "gen_vision_config": {"cls": "VQ-16", "params": codes},
        "gen_aligner_config": {"cls": "MlpProjector", "params": {**depth, "input_dim": images.embed_dim}},
        "gen_head_config": {"cls": "vision_head", "params": {**head, "n_embed": images.projection_dim}},
    }  # fmt: skip
    write_json(model_folder / "config.json", config)
    state = {new: tensor.clone() for name, tensor in net.state_dict().items() if (new := name_as_released(name))}
    state["gen_vision_model.quantize.codebook_used"] = torch.zeros(65536)
    state["vision_model.vision_tower.pos_embed"] = torch.zeros(1, 4, 8)
    torch.save(state, model_folder / "pytorch_model.bin")
    shutil.rmtree(folder / "transformers")
    return {"model": "Janus-Pro-1B"}


def write_llamagen(
    folder: Path, transformer: str, vq: str, codes: int, grid: int, tokenizer: VQConfig, **sizes: Any
) -> dict[str, str]:
    """Write a random transformer and image tokenizer, {"model": tensors} each, to these files; return their names."""
    net = Transformer(LlamaGenConfig(vocab=codes, grid=grid, **{"dim": 64, "layers": 2, "heads": 1, **sizes}))
    folder.mkdir(parents=True, exist_ok=True)
    torch.save({"model": sharpen(net, 0).state_dict()}, folder / transformer)
    state = sharpen(VQ(replace(tokenizer, codebook=codes)), 1).state_dict() | {
        "quantize.codebook_used": torch.zeros(65536)
    }
    torch.save({"model": state}, folder / vq)
    return {"transformer": transformer, "vq": vq}


def llamagen(
    folder: Path,
    codes: int = CODES,
    side: int = GRID,
    sizes: Mapping[str, Any] = NONE,
    tokenizer: VQConfig = SMALL_TOKENIZER,
    text: Mapping[str, Any] = NONE,
) -> dict[str, str]:
    """Write LlamaGen-XL, stage 1: transformer and image tokenizer, of images of side x side codes, and the folder of
    a T5 encoder, in bfloat16 if it is large. Return their paths in `folder` by part. sizes, text: of the transformer
    and of the encoder, in place of small ones."""
    from transformers import T5Config, T5EncoderModel
    from transformers.modeling_utils import local_torch_dtype

    small: Any = {"d_model": TEXT, "d_kv": 16, "d_ff": 48, "num_layers": 2, "num_heads": 2}
    words = write_tokenizer(folder / "flan-t5-xl", ["<pad>", "</s>", "<unk>"], pad_token="<pad>")
    config = {"vocab_size": len(words), **small, **text}
    names = ("t2i_XL_stage1_256.pt", "vq_ds16_t2i.pt")
    files = write_llamagen(folder, *names, codes, side, tokenizer, **{"caption_dim": config["d_model"], **sizes})
    with local_torch_dtype(torch.bfloat16 if text else torch.float32):
        encoder = T5EncoderModel(T5Config(**config, dropout_rate=0.0, feed_forward_proj="gated-gelu"))
        save(sharpen(encoder, 2), folder / "flan-t5-xl")
    return {**files, "text": "flan-t5-xl"}


def llamagen_c2i(
    folder: Path,
    codes: int = CODES,
    side: int = GRID,
    sizes: Mapping[str, Any] = NONE,
    tokenizer: VQConfig = SMALL_TOKENIZER,
) -> dict[str, str]:
    """Write LlamaGen-B for 1,000 classes, transformer and image tokenizer; return the names of both files by part.
    sizes: of the transformer, in place of small ones."""
    classes = {"prefix": 1, "caption_dim": 0, "classes": 1000, **sizes}
    return write_llamagen(folder, "c2i_B_256.pt", "vq_ds16_c2i.pt", codes, side, tokenizer, **classes)
