"""Published checkpoints of a continuous family as a folder of weights that an experiment reads: `parity.models
convert`.

Source: the released files, mar_{base,large,huge}/checkpoint-last.pth, xAR-{B,L,H}.pth and kl16.ckpt. Parameter names
are theirs, so a file's shapes say its sizes; only the number of attention heads does not show in them. A family that
has released files says so with a function `released(state, **sizes)`, which adds the sizes that are its own.
"""

import importlib
import json
import os
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from parity.base.errors import ParityError
from parity.base.files import publish
from parity.base.weights import check_fit, sha256, unpickle
from parity.experiment.declared import function, modules
from parity.models.continuous import kl

FOLDER = "models/continuous"
RELEASED = [m for m in modules(FOLDER) if function(FOLDER, m, "released")]
HEADS = {768: 12, 1024: 16, 1280: 16}  # by width: base, large, huge of the released families
COMPUTED = re.compile(r"mask|rope\..*|.*\.freqs.*")  # released buffers, which the networks here compute


def write(state: dict[str, Tensor], file: Path, config: dict[str, Any]) -> str:
    """A safetensors file in its place, whole or not at all, and its SHA-256."""
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_name(f".{file.name}.part")
    said = {"config": json.dumps(config, sort_keys=True)}
    save_file({k: v.contiguous() for k, v in state.items()}, part, metadata=said)
    os.replace(part, file)
    return sha256(file)


def sizes(family: Any, state: dict[str, Tensor], file: Path) -> Any:
    """The sizes of a network, from the shapes of its weights; ParityError where they are not those of its family."""
    name = family.__name__.rpartition(".")[2]

    def blocks(prefix: str) -> int:
        return len({k.removeprefix(prefix).split(".")[0] for k in state if k.startswith(prefix)})

    try:
        width, dim = state["z_proj.weight"].shape
        if width not in HEADS:
            allowed = ", ".join(map(str, HEADS))
            raise ParityError(f"{file}: width {width}: allowed: {allowed}, the released sizes")
        same = {"width": width, "heads": HEADS[width], "dim": dim}
        return family.released(state, **same, encoder=blocks("encoder_blocks."), decoder=blocks("decoder_blocks."))
    except KeyError as error:
        raise ParityError(f"{file}: not a checkpoint of {name}: no entry {error}") from None


def convert(model: str, target: Path, draft: Path, autoencoder: Path, out: Path) -> None:
    """Write `out`: the pair, its autoencoder and SHA256SUMS. ParityError for a file that does not fit its network."""
    family = importlib.import_module(f"parity.models.continuous.{model}")
    state = kl.published_names(unpickle(autoencoder))
    with torch.device("meta"):
        check_fit(kl.KL(kl.KLConfig()), state, autoencoder)
    sums = {"kl": write(state, out / "kl.safetensors", asdict(kl.KLConfig()))}
    for name, file in ((model, target), (f"{model}-draft", draft)):
        state = {k: v for k, v in unpickle(file).items() if not COMPUTED.fullmatch(k)}
        config = sizes(family, state, file)
        with torch.device("meta"):
            check_fit(family.Network(config), state, file)
        sums[name] = write(state, out / f"{name}.safetensors", asdict(config) | {kl.LATENTS: sums["kl"][:16]})
    publish(out / "SHA256SUMS", "".join(f"{total}  {name}.safetensors\n" for name, total in sums.items()).encode())
