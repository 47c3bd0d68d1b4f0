"""Emu3-Gen (Wang et al. 2024), the family: words and codes of one vocabulary, a line token behind every row.

Source: BAAI's released code for prompts and grammar; the files in transformers' layout (Emu3-community/Emu3-Gen-hf, or
what transformers' converter makes of BAAI/Emu3-Gen), which hold the vision tokenizer too.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parity.base.errors import ParityError
from parity.models.discrete import codes, folders, prompts
from parity.models.discrete.cached import Cached
from parity.models.discrete.llama import Codes, Llama
from parity.models.discrete.t5 import Encoder
from parity.models.discrete.vq import truncated

FAMILY: dict[str, Any] = {  # see models.discrete.protocol
    "files": ("model",),
    "also": ("vq",),  # a folder of the vision tokenizer alone; else the model's own folder holds it
    "embedded": {},
    "model_types": ("emu3",),
    "network": {"vocab": 32768, "rows": 90, "columns": 90, "line": 1, "end": 2},  # 720 pixels
    "at_most": {"line": 1, "end": 2},
    "sampling": {"guidance": 3.0, "top_k": 2048},
    "papers": {"Emu3-Gen": {}},
    "sizes": {"vocab": 32768, "rows": 90, "columns": 90, "line": 1, "end": 2},
}
START, LINE, END_OF_FRAME, END = "<|extra_203|>", "<|extra_200|>", "<|extra_201|>", "<|image end|>"
BEGIN, IMAGE = "<|image start|>", "<|image token|>"  # between them the size, such as 90*90
NAME = "<|visual token {:06d}|>"
POSITIVE = "{} masterpiece, film grained, best quality."
NEGATIVE = (
    "lowres, bad anatomy, bad hands, text, error, missing fingers, extra digit, fewer digits, cropped, worst quality,"
    " low quality, normal quality, jpeg artifacts, signature, watermark, username, blurry."
)
STRIDE = 8  # pixels a code
KIND = ("emu3", "Emu3Config")
VISION = ("model.vqmodel.", "vqmodel.")
LANGUAGE = ("model.text_model.", "text_model.model.")  # as transformers names it now, and as published files have it
WANTED = ("decoder.", "post_quant_conv.", "quantize.")
to_pixels = truncated
sizes = partial(codes.sizes, FAMILY)


def shape(manifest: Mapping[str, Any]) -> tuple[int, int]:
    """Tokens in a row of a picture, pixels of its longer side."""
    return codes.shape(sizes(manifest), STRIDE)


def read_sizes(folder: Path, pixels: int | None) -> dict[str, int]:
    """The configuration's `network` from a folder and the pixels of a side, None for 720; what stands in
    FAMILY["sizes"] is left out."""
    side = (pixels or 720) // STRIDE
    found = {"vocab": folders.config(folder, *KIND).vq_config.codebook_size, "rows": side, "columns": side}
    return {key: value for key, value in found.items() if value != FAMILY["sizes"][key]}


def vocabulary(manifest: Mapping[str, Any]) -> tuple[Any, list[int], dict[str, int]]:
    """The tokenizer, ids of the codes and then of what is forced, and ids by name of what a prompt needs."""
    folder, s = Path(manifest["files"]["model"]), sizes(manifest)
    held = folders.tokenizer(folder)
    words, wanted = held.get_vocab(), [LINE, END_OF_FRAME, END, START, BEGIN, IMAGE]
    named = dict(zip(wanted, folders.names(words, wanted, folder), strict=True))
    ids = folders.names(words, (NAME.format(i) for i in range(s["vocab"])), folder)
    if NAME.format(s["vocab"]) in words:
        raise ParityError(f"{folder}: the tokenizer has more codes than network says, vocab {s['vocab']}")
    return held, ids + [named[name] for name in (LINE, END_OF_FRAME, END)], named


def network(manifest: Mapping[str, Any], device: str, dtype: torch.dtype) -> Llama:
    """The transformer, its output matrix that of the codes alone."""
    folder, s = Path(manifest["files"]["model"]), sizes(manifest)
    ids = torch.tensor(vocabulary(manifest)[1])
    own = folders.sizes(folders.config(folder, *KIND).text_config, folder)
    if int(ids.max()) >= own.vocab:
        raise ParityError(f"{folder}: the tokenizer has more tokens than the network's {own.vocab}")

    def rename(name: str) -> str | None:
        if folders.stripped(name, VISION) is not None:
            return None
        inner = folders.stripped(name, LANGUAGE)
        return inner if inner is not None else name.removeprefix("text_model.").replace("lm_head", "output.chosen")

    chosen = {"output.chosen.weight": ids[: s["vocab"]]}
    return folders.fill(lambda: Llama(own, Codes(own.dim, ids, s["vocab"])), folder, rename, device, dtype, chosen)


def vision(manifest: Mapping[str, Any], device: str, dtype: torch.dtype) -> Any:
    """transformers' vision tokenizer without its encoder, of a folder of its own, or of the model's."""
    from transformers import Emu3VQVAE

    folder = Path(manifest["files"].get("vq", manifest["files"]["model"]))
    if "vq" in manifest["files"]:
        config = folders.config(folder, "emu3_vqgan", "Emu3VQVAEConfig")
    else:
        config = folders.config(folder, *KIND).vq_config
    prefixes = (*VISION, "") if "vq" in manifest["files"] else VISION

    def build() -> Any:
        net: Any = Emu3VQVAE(config)
        del net.encoder, net.quant_conv
        return net

    def rename(name: str) -> str | None:
        own = folders.stripped(name, prefixes)
        return own if own is not None and own.startswith(WANTED) else None

    return folders.fill(build, folder, rename, device, dtype)


def load(manifest: Mapping[str, Any], part: str, device: str, dtype: torch.dtype) -> nn.Module:
    """One network: "net" or "vq"; ParityError for files that do not fit together."""
    if part == "net":
        return network(manifest, device, dtype)
    vq, s = vision(manifest, device, dtype), sizes(manifest)
    if vq.config.codebook_size != s["vocab"]:
        raise ParityError(f"models: the image tokenizer has {vq.config.codebook_size} codes, the model {s['vocab']}")
    vq.size = s
    return vq


def condition(nets: dict[str, Any], inputs: dict[str, Tensor], guided: bool, fast: bool = False) -> Cached:
    """The token model of a batch of encoded captions; see `prompts`."""
    vq, s = nets["vq"], nets["vq"].size
    line, frame, end = range(s["vocab"], s["vocab"] + 3)
    forced = codes.grammar(s["rows"], s["columns"], [line], [frame, end])
    model, own = prompts.conditioned(nets["net"], inputs, guided, forced, s["columns"] + 1, fast), vq.quantize.embedding
    model.raw_codebook = codes.pad_codes(own.weight, model.vocab)
    model.codebook = codes.pad_codes(F.normalize(own.weight, dim=-1), model.vocab)
    return model


def pictures(nets: dict[str, Any], tokens: Tensor) -> Tensor:
    """tokens [n, L] of whole pictures to [n, 3, H, W] in [-1, 1]."""
    s = nets["vq"].size
    return nets["vq"].decode(codes.codes_of(tokens, s["rows"], s["columns"], s["line"]))


def groups(nets: dict[str, Any]) -> np.ndarray:
    """Indicators bool [G, V] of codes that look alike."""
    s = nets["vq"].size
    return codes.groups(nets["vq"].quantize.embedding.weight, s["vocab"] + s["line"] + s["end"])


def encoder(manifest: Mapping[str, Any], device: str) -> Encoder:
    """Captions to what `condition` takes of a batch. The unconditional row has the authors' negative prompt."""
    s, folder = sizes(manifest), Path(manifest["files"]["model"])
    words, ids, named = vocabulary(manifest)
    size = words.encode(f"{s['rows']}*{s['columns']}", add_special_tokens=False).ids
    before, behind = [named[START]], [named[BEGIN], *size, named[IMAGE]]
    unlike = before + words.encode(NEGATIVE, add_special_tokens=False).ids + behind
    reserved = frozenset([*ids, *named.values()])
    return prompts.encoder(words, reserved, folder, POSITIVE, (before, behind), lambda prompt: unlike)
