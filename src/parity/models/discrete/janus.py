"""Janus-Pro (Chen et al. 2025), the family: a language model that draws with an embedding and a head of their own.

576 codes of LlamaGen's tokenizer in 24 rows, nothing forced. Source: DeepSeek's released code. Files are one folder for
all, in DeepSeek's layout (deepseek-ai/Janus-Pro-{1B,7B}) or in transformers' (deepseek-community/...): another
config.json and other names of the same tensors.
"""

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from parity_decoders.protocols.discrete import Encoder
from torch import Tensor, nn

from parity.base.errors import ParityError
from parity.base.weights import read_shapes
from parity.models.discrete import llama, vq
from parity.models.discrete.llama import Llama, condition, embed_prompts, make_speculator  # noqa: F401
from parity.models.discrete.vq import mark_above_median
from parity.models.discrete.vq import truncate_to_pixels as to_pixels  # noqa: F401

FAMILY: dict[str, Any] = {  # see models.discrete
    "files": ("model",),
    "also": ("drafter", "draft", "heads"),
    "trained": ("heads", "drafter"),
    "embedded": {},
    "model_types": ("janus", "multi_modality"),
    "network": {"vocab": 16384, "rows": 24, "columns": 24},
    "sampling": {"guidance": 5.0},
    "papers": {"Janus-Pro": {}},
    "sizes": {"vocab": 16384, "rows": 24, "columns": 24},
}
CONFIG = {"vocab": ("vq_config", "num_embeddings")}  # config.json says a size in this section and key
START, PAD = "<｜begin▁of▁sentence｜>", "<｜▁pad▁｜>"
BEGIN = "<begin_of_image>"
END = "<end_of_image>"
IMAGE = "<image_placeholder>"
TEMPLATE = "<|User|>:{}<|Assistant|>:"
KIND = ("janus", "JanusConfig")
RELEASED = "multi_modality"  # model_type of DeepSeek's layout
NETWORK = {  # prefixes of tensors are replaced by ours: transformers', then DeepSeek's
    "model.language_model.": "backbone.", "model.generation_embeddings.": "output.embed.",
    "model.generation_aligner.": "output.aligner.", "model.generation_head.": "output.head.",
    "language_model.model.": "backbone.", "gen_embed.": "output.embed.",
    "gen_aligner.layers.0.": "output.aligner.fc1.", "gen_aligner.layers.2.": "output.aligner.hidden_layers.0.",
    "gen_head.output_mlp_projector.": "output.head.proj_out.", "gen_head.vision_head.": "output.head.vision_head.",
}  # fmt: skip
VISION = "gen_vision_model."  # of the image tokenizer, which has LlamaGen's names in DeepSeek's layout
sizes = partial(llama.merge_sizes, FAMILY)
shape = partial(llama.compute_shape, FAMILY, 16)


class Generation(nn.Module):
    """What draws: codes are read through `aligner` of their own embedding, and chosen by `head`."""

    def __init__(self, config: Any):
        super().__init__()
        from transformers.models.janus.modeling_janus import JanusVQVAEAlignerMLP, JanusVQVAEHead

        self.embed = nn.Embedding(config.num_embeddings, config.embed_dim)
        self.aligner = JanusVQVAEAlignerMLP(config)
        self.head = JanusVQVAEHead(config)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.head(hidden)

    def embeddings(self, words: Tensor) -> Tensor:
        """Compute the input of the network for each code, [V, dim]; `words` is not read."""
        return self.aligner(self.embed.weight)


def read_config(folder: Path) -> Any:
    """Read the configuration of a folder, in either layout, as transformers'. Raises ParityError for another model."""
    record = llama.read_object(folder / "config.json")
    if record.get("model_type") != RELEASED:
        return llama.read_config(folder, *KIND)
    from transformers import JanusConfig

    stored = read_shapes(folder)
    sizes = vq.read_sizes({n.removeprefix(VISION): tuple(x.shape) for n, x in stored.items() if n.startswith(VISION)})
    try:
        aligner, head = (record[part]["params"] for part in ("gen_aligner_config", "gen_head_config"))
        side = record["vision_config"]["params"]["image_size"]
        images = {
            "embed_dim": sizes.code_dim, "num_embeddings": sizes.codebook, "latent_channels": sizes.z_channels,
            "base_channels": sizes.ch, "channel_multiplier": list(sizes.ch_mult), "num_res_blocks": sizes.res_blocks,
            "projection_dim": aligner["n_embed"], "num_hidden_layers": aligner["depth"],
            "image_token_embed_dim": head["image_token_embed"],
        }  # fmt: skip
        return JanusConfig(
            text_config={"model_type": "llama", **record["language_config"]},
            vision_config={"image_size": side, "patch_size": 16},
            vq_config=images,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ParityError(f"{folder / 'config.json'}: not a configuration of Janus: {error!r}") from None


def rename_vision(name: str) -> str | None:
    """Map the name of a tensor of the image tokenizer in DeepSeek's layout to transformers'; None for any other, and
    for those of its encoder."""
    own = name.removeprefix(VISION)
    if own == name or not own.startswith(llama.VISION) or own == "quantize.codebook_used":
        return None
    own = re.sub(r"\.mid\.(\d)\.", lambda m: f".mid.{vq.MIDDLE[int(m[1])]}.", own)
    return re.sub(r"conv_blocks\.(\d)\.", r"up.\1.", own).replace(".res.", ".block.")


def read_sizes(folder: Path, pixels: int | None) -> dict[str, int]:
    """Read from a folder the sizes of a network that differ from its family's; `pixels` is not read."""
    c = read_config(folder)
    side = c.vision_config.image_size // c.vision_config.patch_size
    return llama.select_changed(FAMILY, {"vocab": c.vq_config.num_embeddings, "rows": side, "columns": side})


def load(manifest: Mapping[str, Any], component: str, device: str, dtype: torch.dtype) -> nn.Module:
    """Load "net", "vq" or a speculator of a manifest. Raises ParityError if files are missing or of other sizes."""
    files = {name: Path(file) for name, file in manifest["files"].items()}
    folder = files["draft" if component == "draft" else "model"]
    s = sizes(manifest)
    config = read_config(folder)
    if component in ("drafter", "heads"):
        return llama.load_speculator(component, files[component], config.text_config, device, dtype)
    codes, side = config.vq_config.num_embeddings, config.vq_config.num_patches
    if (codes, side, side) != (s["vocab"], s["rows"], s["columns"]):
        raise ParityError(f"{folder}: {codes} codes, {side} x {side} an image; network says others: {s}")
    if component == "vq":
        named = llama.rename_prefixes({f"model.vqmodel.{part}": part for part in llama.VISION})
        painter = llama.load_vision(
            "JanusVQVAE", config.vq_config, folder, lambda name: named(name) or rename_vision(name), device, dtype
        )
        return llama.ImageTokenizer(painter, s)
    build = lambda: Llama(config.text_config, Generation(config.vq_config))  # noqa: E731
    return llama.fill(build, folder, llama.rename_prefixes(NETWORK), device, dtype)


def images(nets: dict[str, Any], tokens: Tensor) -> Tensor:
    """Decode tokens [n, L] of whole images to [n, 3, H, W] in [-1, 1]."""
    return nets["vq"].decode(tokens)


def groups(nets: dict[str, Any]) -> np.ndarray:
    """Find groups of codes that look alike, by their vectors' directions: bool [G, V], for each group its codes."""
    return mark_above_median(F.normalize(nets["vq"].quantize.embedding.weight, dim=-1))


def encoder(manifest: Mapping[str, Any], device: str) -> Encoder:
    """Make the function that encodes captions for `condition`. The unconditional row is the prompt with padding for
    every word between its first token and its last, and attends to it."""
    folder = Path(manifest["files"]["model"])
    words = llama.read_tokenizer(folder)
    start, padding, *image = llama.look_up_ids((START, PAD, BEGIN, END, IMAGE), words.get_vocab(), folder).values()
    encode = llama.make_prompt_encoder(
        words, frozenset([start, *image]), folder, TEMPLATE, ([start], image[:1]),
        lambda prompt: [start, *[padding] * (len(prompt) - 2), image[0]],
    )  # fmt: skip
    # a message stands between a space and two line ends, an empty one without them
    return lambda captions: encode([f" {text}\n\n" if (text := caption.strip()) else "" for caption in captions])
