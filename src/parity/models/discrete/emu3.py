"""Emu3-Gen (Wang et al. 2024), the family: words and codes of one vocabulary, a line token after every row.

Source: BAAI's released code for prompts and grammar; the files in transformers' layout (Emu3-community/Emu3-Gen-hf, or
what transformers' converter makes of BAAI/Emu3-Gen), which hold the vision tokenizer too.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from parity_decoders.protocols.discrete import Encoder
from torch import nn

from parity.base.errors import ParityError
from parity.models.discrete import llama
from parity.models.discrete.llama import condition, embed_prompts, groups, images, make_speculator  # noqa: F401
from parity.models.discrete.vq import truncate_to_pixels as to_pixels  # noqa: F401

FAMILY: dict[str, Any] = {  # see models.discrete
    "files": ("model",),
    # "vq" is a folder of the vision tokenizer alone; without it the model's folder must hold that
    "also": ("vq", "drafter", "draft", "heads"),
    "trained": ("heads", "drafter"),
    "embedded": {},
    "model_types": ("emu3",),
    "network": {"vocab": 32768, "rows": 90, "columns": 90, "line": 1, "end": 2},  # its images have 720 pixels a side
    "at_most": {"line": 1, "end": 2},
    "sampling": {"guidance": 3.0, "top_k": 2048},
    "papers": {"Emu3-Gen": {}},
    "sizes": {"vocab": 32768, "rows": 90, "columns": 90, "line": 1, "end": 2},
}
CONFIG = {"vocab": ("vq_config", "codebook_size")}  # config.json says a size in this section and key
START = "<|extra_203|>"
LINE = "<|extra_200|>"
END_OF_FRAME = "<|extra_201|>"
END = "<|image end|>"
BEGIN, IMAGE = "<|image start|>", "<|image token|>"  # a prompt has the size, such as 90*90, between these
NAME = "<|visual token {:06d}|>"
POSITIVE = "{} masterpiece, film grained, best quality."
NEGATIVE = (
    "lowres, bad anatomy, bad hands, text, error, missing fingers, extra digit, fewer digits, cropped, worst quality,"
    " low quality, normal quality, jpeg artifacts, signature, watermark, username, blurry."
)
STRIDE = 8  # a code stands for this many pixels each way
KIND = ("emu3", "Emu3Config")
VISION = ("model.vqmodel.", "vqmodel.")
NETWORK = {  # prefixes of tensors are replaced by ours, those of transformers and of published files
    "model.text_model.": "backbone.", "text_model.model.": "backbone.", "text_model.lm_head.": "output.chosen.",
    "lm_head.": "output.chosen.",
}  # fmt: skip
sizes = partial(llama.merge_sizes, FAMILY)
shape = partial(llama.compute_shape, FAMILY, STRIDE)


def read_sizes(folder: Path, pixels: int | None) -> dict[str, int]:
    """Read the sizes of a folder's network that differ from its family's. pixels: of an image's side, None for 720."""
    side = (pixels or 720) // STRIDE
    codes = llama.read_config(folder, *KIND).vq_config.codebook_size
    return llama.select_changed(FAMILY, {"vocab": codes, "rows": side, "columns": side})


def read_vocabulary(manifest: Mapping[str, Any]) -> tuple[Any, list[int], dict[str, int]]:
    """Return the tokenizer; the ids of the codes, then of the forced tokens; and ids by name of the tokens that frame a
    prompt. Raises ParityError if the number of codes is not the manifest's."""
    folder = Path(manifest["files"]["model"])
    s = sizes(manifest)
    tokenizer = llama.read_tokenizer(folder)
    words = tokenizer.get_vocab()
    named = llama.look_up_ids([LINE, END_OF_FRAME, END, START, BEGIN, IMAGE], words, folder)
    ids = [*llama.look_up_ids((NAME.format(i) for i in range(s["vocab"])), words, folder).values()]
    if NAME.format(s["vocab"]) in words:
        raise ParityError(f"{folder}: the tokenizer has more codes than network says, vocab {s['vocab']}")
    return tokenizer, ids + [named[name] for name in (LINE, END_OF_FRAME, END)], named


def load(manifest: Mapping[str, Any], component: str, device: str, dtype: torch.dtype) -> nn.Module:
    """Load the network "net" or "vq" of a manifest. Raises ParityError if files do not fit together."""
    files = {name: Path(file) for name, file in manifest["files"].items()}
    s = sizes(manifest)
    folder = files["draft" if component == "draft" else "model"]
    if component in ("net", "draft", "drafter", "heads"):
        config = llama.read_config(folder, *KIND).text_config
        if component in ("drafter", "heads"):
            return llama.load_speculator(component, files[component], config, device, dtype)
        return llama.load_network(config, folder, read_vocabulary(manifest)[1], s["vocab"], NETWORK, device, dtype)
    vq_folder = files.get("vq", folder)
    prefixes = (*VISION, "") if "vq" in files else VISION
    vq_config = llama.read_config(vq_folder, "emu3_vqgan", "Emu3VQVAEConfig") if "vq" in files else None
    config = vq_config or llama.read_config(folder, *KIND).vq_config
    rename = llama.rename_prefixes({prefix + part: part for prefix in prefixes for part in llama.VISION})
    vq = llama.load_vision("Emu3VQVAE", config, vq_folder, rename, device, dtype)
    return llama.ImageTokenizer(vq, s)


def encoder(manifest: Mapping[str, Any], device: str) -> Encoder:
    """Make the function that encodes captions for `condition`. Unconditional rows have the authors' negative prompt."""
    s = sizes(manifest)
    folder = Path(manifest["files"]["model"])
    words, ids, named = read_vocabulary(manifest)
    size = words.encode(f"{s['rows']}*{s['columns']}", add_special_tokens=False).ids
    prompt_start, prompt_end = [named[START]], [named[BEGIN], *size, named[IMAGE]]
    negative = prompt_start + words.encode(NEGATIVE, add_special_tokens=False).ids + prompt_end
    reserved = frozenset([*ids, *named.values()])
    return llama.make_prompt_encoder(
        words, reserved, folder, POSITIVE, (prompt_start, prompt_end), lambda prompt: negative
    )
