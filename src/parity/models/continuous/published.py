"""Published checkpoints of MAR and xAR as a folder of weights that an experiment reads: `python -m parity.continuous convert`.

Source: the released files, mar_{base,large,huge}/checkpoint-last.pth, xAR-{B,L,H}.pth and kl16.ckpt. Parameter names are theirs, so a file's shapes
say its sizes; only the number of attention heads does not show in them.
"""

import json
import os
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from parity.base.errors import ConfigError
from parity.base.files import publish
from parity.models.checkpoints import check_fit, sha256, unpickle
from parity.models.continuous import kl
from parity.models.continuous.load import build
from parity.models.continuous.mar import MARConfig
from parity.models.continuous.xar import XARConfig

HEADS = {768: 12, 1024: 16, 1280: 16}  # by width: base, large, huge of both families
CELL = 8  # tokens a side of a released xAR's cell
COMPUTED = re.compile(r"mask|rope\..*|.*\.freqs.*")  # xAR's buffers, which its network here computes


def blocks(state: dict[str, Tensor], prefix: str) -> int:
    """How many blocks there are under a prefix."""
    return len({k.removeprefix(prefix).split(".")[0] for k in state if k.startswith(prefix)})


def config_of(model: str, state: dict[str, Tensor], file: Path) -> MARConfig | XARConfig:
    """The sizes of a network, from the shapes of its weights. ConfigError where they are not those of `model`."""
    try:
        width, dim = state["z_proj.weight"].shape
        classes, places = len(state["class_emb.weight"]), state["encoder_pos_embed_learned"].shape[1]
        tokens = state["diffusion_pos_embed_learned"].shape[1] if model == "mar" else places
        depth = {"encoder": blocks(state, "encoder_blocks."), "decoder": blocks(state, "decoder_blocks.")}
        head = state["diffloss.net.input_proj.weight"].shape[0] if model == "mar" else 0
    except KeyError as error:
        raise ConfigError(f"{file}: not a checkpoint of {model}: no entry {error}") from None
    if width not in HEADS:
        raise ConfigError(f"{file}: width {width}: allowed: {', '.join(map(str, HEADS))}, the released sizes")
    same: dict[str, Any] = {"grid": round(tokens**0.5), "dim": dim, "width": width, "heads": HEADS[width], **depth}
    if model == "xar":
        return XARConfig(classes=classes - 1, cell=CELL, **same)
    return MARConfig(
        classes=classes,
        buffer=places - tokens,
        head_width=head,
        head_depth=blocks(state, "diffloss.net.res_blocks."),
        **same,
    )


def write(state: dict[str, Tensor], file: Path, config: dict[str, Any]) -> str:
    """A safetensors file in its place, whole or not at all, and its SHA-256."""
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_name(f".{file.name}.part")
    save_file(
        {k: v.contiguous() for k, v in state.items()}, part, metadata={"config": json.dumps(config, sort_keys=True)}
    )
    os.replace(part, file)
    return sha256(file)


def convert(model: str, target: Path, draft: Path, autoencoder: Path, out: Path) -> None:
    """Write `out`: the pair, its autoencoder and SHA256SUMS. ConfigError for a file that does not fit its network."""
    state = kl.published_names(unpickle(autoencoder))
    with torch.device("meta"):
        check_fit(kl.KL(kl.KLConfig()), state, autoencoder)
    sums = {"kl": write(state, out / "kl.safetensors", asdict(kl.KLConfig()))}
    for name, file in ((model, target), (f"{model}-draft", draft)):
        state = {k: v for k, v in unpickle(file).items() if not COMPUTED.fullmatch(k)}
        config = asdict(config_of(model, state, file))
        with torch.device("meta"):
            check_fit(build(model, config), state, file)
        sums[name] = write(state, out / f"{name}.safetensors", config | {kl.LATENTS: sums["kl"][:16]})
    publish(out / "SHA256SUMS", "".join(f"{total}  {name}.safetensors\n" for name, total in sums.items()).encode())
