"""Discrete models from their manifest: networks ready for batches of prompts. Nothing here knows a family."""

import importlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from parity_decoders.compiling import CompiledPass
from parity_decoders.distribution import TokenSampling
from parity_decoders.engine import Sampled
from torch import Tensor, nn

from parity.base.devices import RENDERED, run_in_batches
from parity.models.discrete.vq import to_pixels


def load_family(manifest: Mapping[str, Any]) -> Any:
    """Import the module of the family that a manifest names."""
    return importlib.import_module(f"parity.models.discrete.{manifest['family']}")


@dataclass
class Loaded:
    """A text-to-image model on its device: the functions of a family (`models.discrete`), for one manifest."""

    manifest: Mapping[str, Any]
    nets: dict[str, nn.Module]
    device: torch.device
    run: CompiledPass | None = None  # the target, compiled
    captured: bool = False  # whether passes are captured where they can be

    def __post_init__(self) -> None:
        self.family = load_family(self.manifest)
        self.width, self.side = self.family.shape(self.manifest)  # of an image: tokens in a row, pixels of a side

    @property
    def compiles_whole(self) -> bool:
        """Whether a decoder's pass is compiled as one graph; on a CPU that costs more than the network's part alone."""
        return self.run is not None and self.device.type != "cpu"

    def take_speculator(self, name: str) -> "Loaded":
        """Return target and image tokenizer as they are, with the speculator of this name ("": none), which is loaded
        unless it is here."""
        nets = {key: net for key, net in self.nets.items() if key in ("vq", "net", name)}
        if name and name not in nets:
            dtype = next(nets["net"].parameters()).dtype
            nets |= load_networks(self.manifest, (name,), str(self.device), dtype)
        return replace(self, nets=nets)

    @torch.inference_mode()
    def model(self, inputs: Mapping[str, np.ndarray], sampling: dict[str, Any], queue: Any = None) -> Sampled:
        """Make the token model of encoded prompts; sampling: fields of TokenSampling; queue: rows that wait for a
        place. Columns of text are not read."""
        settings = TokenSampling(**sampling)
        numbers = {k: torch.as_tensor(v).to(self.device) for k, v in inputs.items() if np.asarray(v).dtype.kind != "U"}
        target, speculators = self.family.condition(self.nets, numbers, settings.guidance != 1, self.run)
        return Sampled(target, settings, speculators, queue)

    @torch.inference_mode()
    def images(self, tokens: np.ndarray | Tensor, batch: int = RENDERED) -> np.ndarray:
        """Decode tokens [n, L] to pixels uint8 [n, H, W, 3], `batch` images at a time, fewer if memory is too little
        for them."""
        as_bytes = getattr(self.family, "to_pixels", to_pixels)

        def render(rows: Tensor) -> np.ndarray:
            return as_bytes(self.family.images(self.nets, rows.to(self.device)))

        return np.concatenate(list(run_in_batches(render, torch.as_tensor(tokens).long(), batch, "images")))

    def groups(self) -> np.ndarray:
        """Find groups of tokens that look alike: bool [G, V], for each group its tokens."""
        return self.family.groups(self.nets)


def load(
    manifest: Mapping[str, Any],
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    needs: str = "",
    fast: bool = False,
) -> Loaded:
    """Load the networks of a manifest, and `needs`, a speculator, unless it is "". fast: compile the pass."""
    nets = load_networks(manifest, ("vq", "net"), device, dtype)
    run = CompiledPass(nets["net"].forward, torch.device(device).type) if fast else None
    return Loaded(manifest, nets, torch.device(device), run).take_speculator(needs)


def load_painter(manifest: Mapping[str, Any], device: str = "cpu") -> Loaded:
    """Load the image tokenizer alone, for `images` and `groups`: no transformer is read."""
    return Loaded(manifest, load_networks(manifest, ("vq",), device), torch.device(device))


def load_networks(
    manifest: Mapping[str, Any], components: Iterable[str], device: str, dtype: torch.dtype = torch.float32
) -> dict[str, nn.Module]:
    """Load the networks "net", "vq" and speculators, by name. The image tokenizer has at least float32."""
    read = load_family(manifest).load
    dtypes = {"vq": torch.promote_types(dtype, torch.float32)}
    return {c: read(manifest, c, device, dtypes.get(c, dtype)).eval() for c in components}


def image_side(manifest: Mapping[str, Any]) -> int:
    """Compute the pixels a side of a model's images, before it is loaded."""
    return load_family(manifest).shape(manifest)[1]


def load_encoder(manifest: Mapping[str, Any], device: str = "cpu") -> Any:
    """Load the text encoder of a model: a function of captions that returns tensors for `Loaded.model`, a row each."""
    return load_family(manifest).encoder(manifest, device)
