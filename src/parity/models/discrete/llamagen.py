"""LlamaGen (Sun et al. 2024), the family: how its networks are read, a batch is conditioned, a picture is decoded.

Source: the released `t2i_XL_stage{1,2}_*.pt`, `vq_ds16_t2i.pt` and Flan-T5-XL's encoder. The embedded model is the same
with other sizes, which the headers of its files say.
"""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from parity.base.errors import ParityError
from parity.base.files import configured, foreign_json
from parity.base.weights import loaded, shapes
from parity.experiment.schema import ModelSpec
from parity.models.compiling import compiled
from parity.models.discrete import vq
from parity.models.discrete.cached import Cached, LlamaGen, a_pass
from parity.models.discrete.eagle import CaptionedDrafter, EagleDrafter, FeatureDrafter, released
from parity.models.discrete.t5 import Encoder, read_encoder
from parity.models.discrete.transformer import LlamaGenConfig, Transformer

FAMILY: dict[str, Any] = {  # see models.discrete.protocol
    "files": ("transformer", "vq", "text"),
    "also": ("clip", "drafter", "draft"),
    "embedded": {"vq": "vq", "text": "t5", "transformer": "llamagen", "clip": "clip"},
    "network": {"vocab": 16384, "grid": 16},
    "sizes": {  # that a configuration may give: LlamaGenConfig, of XL for captions at 256 pixels
        "vocab": 16384, "dim": 1280, "layers": 36, "heads": 20, "grid": 16, "prefix": 120, "caption_dim": 2048,
        "classes": 0, "multiple_of": 256, "rope_base": 10000.0, "eps": 1e-5,
    },
    "divides": {"heads": "dim"},
    "sampling": {"guidance": 7.5, "top_k": 1000},
    "papers": {"LlamaGen-XL stage 1": {}},
}  # fmt: skip
TENSORS = {  # by which a published file is known for what it is
    "transformer": ("tok_embeddings.weight", "layers.0.attention.wqkv.weight"),
    "vq": ("quantize.embedding.weight", "post_quant_conv.weight"),
    "drafter": ("layers.0.self_attn.q_proj.weight", "fc.weight", "embed_tokens.weight"),
}
COMPUTED = ("freqs_cis",)  # in some files, and computed here
HEADS = {3200: 32, 4096: 32}  # of the sizes 3B and 7B; the others have heads of width 64


def sizes(manifest: Mapping[str, Any]) -> LlamaGenConfig:
    """Of the transformer that a manifest names."""
    if manifest["source"] != "embedded":
        return LlamaGenConfig(**manifest["network"])
    return configured(LlamaGenConfig, Path(manifest["files"]["transformer"]))


def shape(manifest: Mapping[str, Any]) -> tuple[int, int]:
    """Tokens in a row of a picture, pixels of its side."""
    grid = sizes(manifest).grid
    return grid, grid * vq.config_of(Path(manifest["files"]["vq"])).stride


def read_sizes(shapes: Mapping[str, tuple[int, ...]], grid: int) -> dict[str, int]:
    """The configuration's `network` from the shapes of a published transformer's tensors, which do not tell the grid;
    what stands in FAMILY["sizes"] is left out. ParityError for shapes that are no LlamaGen's."""
    vocab, dim = shapes["tok_embeddings.weight"]
    layers = 1 + max(int(name.split(".")[1]) for name in shapes if name.startswith("layers."))
    said = {"vocab": vocab, "dim": dim, "layers": layers, "heads": HEADS.get(dim, dim // 64), "grid": grid}
    if "cls_embedding.embedding_table.weight" in shapes:  # of a class; one entry more stands for none
        classes = shapes["cls_embedding.embedding_table.weight"][0] - 1
        said |= {"prefix": 1, "caption_dim": 0, "classes": classes}
    elif "cls_embedding.uncond_embedding" in shapes:
        said |= dict(zip(("prefix", "caption_dim"), shapes["cls_embedding.uncond_embedding"], strict=True))
    else:
        raise ParityError("no cls_embedding that is known; allowed: a LlamaGen transformer, of captions or of classes")
    if shapes["layers.0.feed_forward.w1.weight"][0] != (hidden := LlamaGenConfig(dim=dim).hidden):
        width = shapes["layers.0.feed_forward.w1.weight"][0]
        raise ParityError(f"feed_forward.w1 has {width} rows; allowed: {hidden}, as published ones of width {dim}")
    return {key: value for key, value in said.items() if value != FAMILY["sizes"][key]}


def stride(shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Pixels a token, each way, by the shapes of a published tokenizer's tensors."""
    return vq.read_sizes(shapes).stride


def load(manifest: Mapping[str, Any], part: str, device: str, dtype: torch.dtype) -> nn.Module:
    """One network: "net", "vq", "drafter" or "draft"; ParityError for files that do not fit together."""
    files = {part: Path(file) for part, file in manifest["files"].items()}
    config, tokenizer = sizes(manifest), vq.config_of(files["vq"])
    if tokenizer.codebook != config.vocab:
        raise ParityError(
            f"models: the tokenizer has {tokenizer.codebook} codes, the transformer {config.vocab};"
            " take the tokenizer the model was trained with"
        )
    if part == "vq":
        return vq.load(files["vq"], tokenizer, device).to(dtype)
    if part == "net":
        return loaded(partial(Transformer, config), files["transformer"], COMPUTED, device, dtype)
    extra = configured(LlamaGenConfig, files[part], ignored=("target",))
    drafter = CaptionedDrafter if part == "drafter" and "fc.bias" in shapes(files[part]) else FeatureDrafter
    build: Callable[[], nn.Module] = partial(drafter if part == "drafter" else Transformer, extra)
    return loaded(build, files[part], (), device, dtype)


def published(part: str, path: Path, spec: ModelSpec) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """The tensors and sizes of a part that is released under other names, None for one that is read as it is: drafters
    of EAGLE-1 and LANTERN, a folder with config.json or its file of weights."""
    if part != "drafter" or TENSORS["drafter"][0] not in shapes(path):
        return None
    file = (path if path.is_dir() else path.parent) / "config.json"
    said = foreign_json(file) if file.is_file() else {}
    state, sizes = released(path, said, LlamaGenConfig(**spec.network))  # type: ignore[arg-type]
    return state, sizes | {"target": spec.sha256["transformer"]}  # which nothing of it tells


def condition(nets: dict[str, Any], inputs: dict[str, Tensor], guided: bool, fast: bool = False) -> Cached:
    """The token model of a batch: left-padded embeddings [B, prefix, caption_dim] and their mask, valid [B, prefix]; or
    labels [B] of classes. fast: its passes are compiled."""
    if "label" in inputs:
        told, valid = inputs["label"], torch.ones_like(inputs["label"])[:, None]
    else:
        told, valid = inputs["embeddings"].to(nets["net"].output.weight.dtype), inputs["valid"]
    read = compiled(a_pass, valid.device.type) if fast else None
    model, codes = LlamaGen(nets["net"], told, valid, guided, read=read), nets["vq"].quantize
    model.codebook, model.raw_codebook = codes.codes, codes.embedding.weight
    if "drafter" in nets:
        model.drafter = EagleDrafter(nets["drafter"], model)
    if "draft" in nets:
        model.draft = LlamaGen(nets["draft"], told, valid, guided, returns=True)
    return model


def pictures(nets: dict[str, Any], tokens: Tensor) -> Tensor:
    """tokens [n, L] of whole pictures to [n, 3, H, W] in [-1, 1]."""
    return nets["vq"].decode(tokens)


def groups(nets: dict[str, Any]) -> np.ndarray:
    """Indicators bool [G, V] of codes that look alike."""
    return nets["vq"].quantize.groups()


def labels(captions: list[str], classes: int) -> dict[str, Tensor]:
    """Numbers of classes, as text, to label [B]. ParityError for what is none."""
    for caption in captions:
        if not caption.isdecimal() or int(caption) >= classes:
            raise ParityError(f"caption: {caption[:60]!r}: allowed: the number of a class, 0 to {classes - 1}")
    return {"label": torch.tensor([int(caption) for caption in captions])}


def encoder(manifest: Mapping[str, Any], device: str) -> Encoder:
    """Captions to what `condition` takes of a batch; a class-conditional model's are numbers of classes."""
    if classes := sizes(manifest).classes:
        return partial(labels, classes=classes)
    return read_encoder(Path(manifest["files"]["text"]), sizes(manifest).prefix, device)
