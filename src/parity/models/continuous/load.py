"""Continuous models from their manifest: pairs that decoders see, with the classes or captions of a batch and the
settings of the sampler."""

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from parity_decoders.protocols.continuous import ContinuousModel, Pair
from torch import Tensor, nn

from parity.base.devices import RENDERED, run_in_batches
from parity.base.errors import ParityError
from parity.base.weights import check, load_network
from parity.embedded.classes import CLASSES, draw_scene_of_class
from parity.embedded.tokenizer import PREFIX, encode_ids
from parity.models.continuous import kl
from parity.models.continuous.diffusion import HeadSampling
from parity.models.discrete.vq import to_pixels


def choose_label(image: int, classes: int = len(CLASSES)) -> int:
    """Choose the class of an image by its number. Steps of 7, coprime to 60, give few images many classes."""
    return image * 7 % classes


def make_caption(image: int) -> str:
    """Make the caption of an image by its number, for models that read captions: a drawn scene of its class."""
    return draw_scene_of_class(choose_label(image), np.random.default_rng([image, 7])).caption


@dataclass
class Loaded:
    """Target, draft and autoencoder of one model, each read from its file on first use."""

    manifest: Mapping[str, Any]
    device: torch.device
    dtype: torch.dtype = torch.float32  # of target and draft; the autoencoder has at least float32
    nets: dict[str, nn.Module] = field(default_factory=dict)
    fast: bool = False  # whether heads are compiled

    def __post_init__(self) -> None:
        self.family = importlib.import_module(f"parity.models.continuous.{self.manifest['family']}")
        captioned = self.family.FAMILY["condition"] == "caption"
        self.classes = len(CLASSES) if captioned else self.manifest["network"].get("classes", len(CLASSES))

    def network(self, component: str) -> Any:
        """Return the network "target" or "draft", which is loaded, and its head compiled if `fast`, at the first call.
        Raises ParityError if the model does not have it."""
        if component not in self.nets:
            build = (self.family.Network, self.family.Config)
            file = self.file(component)
            net: Any = load_network(*build, file, kl.NOT_SIZES, self.device, self.dtype)
            if self.fast and hasattr(net, "diffloss"):
                net.diffloss.net.compile_run(self.device.type)
            self.nets[component] = net
        return self.nets[component]

    def take_speculator(self, name: str) -> "Loaded":
        """Load the speculator of this name ("": none) beside the target, unless it is here."""
        if name:
            self.network(name)
        return self

    def file(self, component: str) -> Path:
        """Verify the file of a component and return its path. Raises ParityError if the model does not have it."""
        if component not in self.manifest["files"]:
            raise ParityError(
                f"{self.manifest['family']}: has no {component}; allowed: {', '.join(self.manifest['files'])}"
            )
        file = Path(self.manifest["files"][component])
        check(file, self.manifest["sha256"][component], f"{self.manifest['family']}: {component}")
        return file

    @cached_property
    def kl(self) -> kl.KL:
        return kl.load(self.file("kl"), self.device, torch.promote_types(self.dtype, torch.float32))

    def labels(self, images: Sequence[int]) -> Tensor:
        """List the classes [n] of the images of these numbers."""
        return torch.tensor([choose_label(i, self.classes) for i in images])

    def class_of(self, image: int) -> str:
        """Describe what an image is to show: its caption, or its class, by name if embedded, else by number."""
        if "captions" in self.manifest:
            return self.caption(image)
        label = choose_label(image, self.classes)
        has_names = "classifier" in self.manifest["files"]
        return CLASSES[label] if has_names and self.classes == len(CLASSES) else str(label)

    def caption(self, image: int) -> str:
        """Return the caption of an image by its number: the manifest's captions in turn, or `make_caption`'s."""
        captions = self.manifest.get("captions")
        return captions[image % len(captions)] if captions else make_caption(image)

    def condition(self, images: Sequence[int]) -> Tensor:
        """Make the condition of the images of these numbers: classes [n], or captions' ids [n, P], padded with -1."""
        if self.family.FAMILY["condition"] == "class":
            return self.labels(images).to(self.device)
        captions = [self.caption(i) for i in images]
        if "tokenizer" in self.manifest["files"]:
            return self.prompts(captions).to(self.device)
        ids, valid = encode_ids(captions, PREFIX)
        return ids.masked_fill(valid == 0, -1).to(self.device)

    def prompts(self, captions: list[str]) -> Tensor:
        """Encode captions, inside the family's prompt, to token ids [n, P], padded on the right with -1."""
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(self.file("tokenizer")))
        rows = [torch.tensor(tokenizer.encode(self.family.PROMPT.format(caption)).ids) for caption in captions]
        return nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-1)

    def model(self, component: str, images: Sequence[int], sampling: dict[str, Any]) -> ContinuousModel:
        """Make "target" or "draft", conditioned on the images of these numbers. sampling: fields of HeadSampling."""
        return self.family.Model(self.network(component), self.condition(images), HeadSampling(**sampling))

    def pair(self, images: Sequence[int], sampling: dict[str, Any], draft: bool) -> Pair:
        """Make the target and, if `draft`, the draft model (else None), conditioned on the images of these numbers."""
        target = self.model("target", images, sampling)
        return Pair(target, self.model("draft", images, sampling) if draft else None)

    def images(self, tokens: Tensor | np.ndarray, batch: int = RENDERED) -> np.ndarray:
        """Decode tokens [n, L, D] of all ranks, in raster order, to pixels uint8 [n, H, W, 3], `batch` at a time, fewer
        if memory is too little for them."""
        return to_pixels(self.decode(tokens, batch))

    @torch.inference_mode()
    def decode(self, tokens: Tensor | np.ndarray, batch: int = RENDERED) -> Tensor:
        """Decode tokens [n, L, D] of all ranks, in raster order, to images [n, 3, H, W] in [-1, 1], not rounded."""
        grid = kl.unfold(torch.as_tensor(tokens), self.manifest["network"].get("cell", 1))
        render = lambda rows: self.kl.decode(rows.to(self.kl.quant_conv.weight))  # noqa: E731
        return torch.cat(list(run_in_batches(render, grid, batch, "images")))


def load(
    manifest: Mapping[str, Any],
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    needs: str = "",
    fast: bool = False,
) -> Loaded:
    """Load the target of a manifest, and the speculator `needs`, "draft", unless it is "". fast: compile their heads.
    Raises ParityError if a network is not in the manifest."""
    loaded = Loaded(manifest, torch.device(device), dtype, fast=fast)
    loaded.network("target")
    return loaded.take_speculator(needs)


def load_painter(manifest: Mapping[str, Any], device: str = "cpu") -> Loaded:
    """Make a model for `images` alone: the autoencoder is read on first use, and no other network."""
    return Loaded(manifest, torch.device(device))
