"""Emu3.5 (Cui et al. 2025), the family: words and codes of one vocabulary, a line token after every row.

The authors' image has its end in place of the last row's line token, which changes no code, since nothing follows.
Guidance is theirs too: they normalise logits before it, which adds one number to all tokens of a position.

Source: the authors' code (baaivision/Emu3.5); their files, with `emu3.tiktoken` of that code in the model's folder.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from parity_decoders.families import emu3p5, emu3p5_prompts
from parity_decoders.families.emu3p5_prompts import BEGIN, IMAGE, INSTRUCTION, LINE, SPECIAL, START, TURN, UNCONDITIONAL
from parity_decoders.protocols.discrete import Encoder
from torch import nn

from parity.base.errors import ParityError
from parity.base.weights import read_shapes
from parity.models.discrete import llama
from parity.models.discrete.chameleon import load_vqgan
from parity.models.discrete.llama import condition, embed_prompts, groups, images, make_speculator  # noqa: F401
from parity.models.discrete.vq import truncate_to_pixels as to_pixels  # noqa: F401

FAMILY: dict[str, Any] = {  # see models.discrete
    "files": ("model", "vq"),
    "also": ("drafter", "draft", "heads"),
    "trained": ("heads", "drafter"),
    "embedded": {},
    "model_types": ("Emu3",),
    "network": {"vocab": 131072, "rows": 64, "columns": 64, "line": 1},  # its images have 1,024 pixels a side
    "at_most": {"line": 1},
    "sampling": {"guidance": 5.0, "top_k": 5120},
    "papers": {},
    "sizes": {"vocab": 131072, "rows": 64, "columns": 64, "line": 1},
}
STRIDE = 16  # pixels of a code each way
NETWORK = {"model.": "backbone.", "lm_head.": "output.chosen."}  # prefixes of tensors are replaced by ours
IBQ = "image decoder of Emu3.5; allowed: model.ckpt of BAAI/Emu3.5-VisionTokenizer, as vq"
sizes = partial(llama.merge_sizes, FAMILY)
shape = partial(llama.compute_shape, FAMILY, STRIDE)


def read_sizes(folder: Path, pixels: int | None) -> dict[str, int]:
    """Read the sizes of a folder's network that differ from its family's. pixels: of an image's side, None for 1,024.
    All ids after the special tokens are codes. Raises ParityError for BAAI's own Emu3, of the same model_type."""
    if "model.layers.0.self_attn.q_norm.weight" not in read_shapes(folder):
        raise ParityError(
            f"{folder}: no norms of queries; allowed: Emu3.5, or of Emu3 a folder in transformers' layout"
        )
    side = (pixels or 1024) // STRIDE
    codes = emu3p5.read_config(folder).vocab_size - emu3p5_prompts.read_tokenizer(folder).get_vocab_size()
    return llama.select_changed(FAMILY, {"vocab": codes, "rows": side, "columns": side})


def load(manifest: Mapping[str, Any], component: str, device: str, dtype: torch.dtype) -> nn.Module:
    """Load the network "net" or "vq" of a manifest. Raises ParityError if files do not fit together."""
    files = {name: Path(file) for name, file in manifest["files"].items()}
    s = sizes(manifest)
    if component == "vq":
        return llama.ImageTokenizer(load_vqgan(files["vq"], device, dtype, IBQ), s)
    folder = files["draft" if component == "draft" else "model"]
    config = emu3p5.read_config(folder)
    if component in ("drafter", "heads"):
        return llama.load_speculator(component, files[component], config, device, dtype)
    words = emu3p5_prompts.read_tokenizer(folder)
    first = words.get_vocab_size()
    ids = [*range(first, first + s["vocab"]), words.token_to_id(LINE)]
    return llama.load_network(config, folder, ids, s["vocab"], NETWORK, device, dtype)


def encoder(manifest: Mapping[str, Any], device: str) -> Encoder:
    """Make the function that encodes captions for `condition`. Unconditional rows have the authors' template without a
    caption; both begin the image and say its size."""
    s = sizes(manifest)
    folder = Path(manifest["files"]["model"])
    words = emu3p5_prompts.read_tokenizer(folder)
    start = words.encode(START).ids
    end = words.encode(f"{TURN}{BEGIN}{s['rows']}*{s['columns']}{IMAGE}").ids
    unconditional = start + words.encode(UNCONDITIONAL).ids + end
    n_codes_before = words.get_vocab_size()
    reserved = frozenset(range(n_codes_before - len(SPECIAL), n_codes_before))
    return llama.make_prompt_encoder(words, reserved, folder, INSTRUCTION, (start, end), lambda prompt: unconditional)
