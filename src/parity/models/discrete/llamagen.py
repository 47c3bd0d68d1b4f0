"""LlamaGen (Sun et al. 2024), the family: how its networks are read, a batch is conditioned, a picture is decoded.

Source: the released `t2i_XL_stage{1,2}_*.pt`, `vq_ds16_t2i.pt` and Flan-T5-XL's encoder. The embedded model is the same
with other sizes, which the headers of its files say.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from parity.base.errors import ParityError
from parity.base.files import configured
from parity.base.weights import load_weights
from parity.models.compiling import compiled
from parity.models.discrete import vq
from parity.models.discrete.cached import LlamaGen, a_pass
from parity.models.discrete.eagle import EagleDrafter, FeatureDrafter
from parity.models.discrete.t5 import Encoder, read_encoder
from parity.models.discrete.transformer import LlamaGenConfig, Transformer
from parity.models.discrete.vq import VQConfig

FAMILY = {  # see models.discrete.protocol
    "files": ("transformer", "vq", "text"),
    "embedded": {"vq": "vq", "text": "t5", "transformer": "llamagen", "clip": "clip"},
    "network": {"vocab": 16384, "grid": 16},
}


def sizes(manifest: Mapping[str, Any]) -> tuple[LlamaGenConfig, VQConfig]:
    """Of the transformer and the image tokenizer that a manifest names."""
    if manifest["source"] != "embedded":
        return LlamaGenConfig(**manifest["network"]), VQConfig()
    files = manifest["files"]
    return configured(LlamaGenConfig, Path(files["transformer"])), configured(VQConfig, Path(files["vq"]))


def shape(manifest: Mapping[str, Any]) -> tuple[int, int]:
    """Tokens in a row of a picture, pixels of its side."""
    config, tokenizer = sizes(manifest)
    return config.grid, config.grid * tokenizer.stride


def load(manifest: Mapping[str, Any], needs: str) -> dict[str, nn.Module]:
    """net, vq, and of "drafter" and "draft" the one that is needed; ParityError for files that do not fit together."""
    files = {part: Path(file) for part, file in manifest["files"].items()}
    config, tokenizer = sizes(manifest)
    if tokenizer.codebook != config.vocab:
        raise ParityError(
            f"models: the tokenizer has {tokenizer.codebook} codes, the transformer {config.vocab};"
            " take the tokenizer the model was trained with"
        )
    networks: dict[str, nn.Module] = {"net": Transformer(config), "vq": vq.load(files["vq"], tokenizer)}
    load_weights(networks["net"], files["transformer"])
    if needs:
        extra = configured(LlamaGenConfig, files[needs], ignored=("target",))
        networks[needs] = FeatureDrafter(extra) if needs == "drafter" else Transformer(extra)
        load_weights(networks[needs], files[needs])
    return networks


def condition(nets: dict[str, Any], inputs: dict[str, Tensor], guided: bool, fast: bool = False) -> LlamaGen:
    """The token model of a batch: left-padded embeddings [B, prefix, caption_dim] and their mask, valid [B, prefix].
    fast: its passes are compiled."""
    given = inputs["embeddings"].to(nets["net"].output.weight.dtype), inputs["valid"], guided
    read = compiled(a_pass, inputs["valid"].device.type) if fast else None
    model, codes = LlamaGen(nets["net"], *given, read=read), nets["vq"].quantize
    model.codebook, model.raw_codebook = codes.codes, codes.embedding.weight
    if "drafter" in nets:
        model.drafter = EagleDrafter(nets["drafter"], model)
    if "draft" in nets:
        model.draft = LlamaGen(nets["draft"], *given, returns=True)
    return model


def pictures(nets: dict[str, Any], tokens: Tensor) -> Tensor:
    """tokens [n, L] of whole pictures to [n, 3, H, W] in [-1, 1]."""
    return nets["vq"].decode(tokens)


def groups(nets: dict[str, Any]) -> np.ndarray:
    """Indicators bool [G, V] of codes that look alike."""
    return nets["vq"].quantize.groups()


def encoder(manifest: Mapping[str, Any], device: str) -> Encoder:
    """Captions to what `condition` takes of a batch."""
    return read_encoder(Path(manifest["files"]["text"]), sizes(manifest)[0].prefix, device)
