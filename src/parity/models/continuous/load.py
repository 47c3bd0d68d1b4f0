"""Continuous models from their files, with the labels or captions of a batch and the sampler's settings: pairs that decoders see."""

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from parity.base.files import sums
from parity.decode.continuous import Clocked
from parity.embedded.classes import CLASSES, scene
from parity.experiment.continuous import WEIGHTS
from parity.models.checkpoints import check, load_weights
from parity.models.continuous.diffusion import Sampling
from parity.models.continuous.guided import MAR
from parity.models.continuous.kl import KL, LATENTS, KLConfig
from parity.models.continuous.protocol import ContinuousModel, Pair
from parity.models.discrete.llamagen import read_config
from parity.models.discrete.vq import to_uint8


def load_kl(file: Path) -> KL:
    config = read_config(file)
    kl = KL(KLConfig(**{**config, "ch_mult": tuple(config["ch_mult"])}))
    load_weights(kl, file)
    return kl.eval()


def label_of(image: int, classes: int = len(CLASSES)) -> int:
    """The class of an image by its number: in turn, by steps coprime to their number, so that a few images are of many shapes and colours."""
    return image * 7 % classes


def labels_of(images: range, classes: int = len(CLASSES)) -> Tensor:
    return torch.tensor([label_of(i, classes) for i in images])


def caption_of(image: int) -> str:
    """The caption of an image by its number, for text-conditional models: of its class, any ground."""
    return scene(label_of(image), np.random.default_rng([image, 7])).caption


@dataclass
class Networks:
    """Target, draft and autoencoder of one kind of model."""

    name: str
    device: str = "cpu"
    folder: Path = WEIGHTS
    loaded: dict[str, torch.nn.Module] = field(default_factory=dict)

    def network(self, part: str) -> Any:
        """`part` is "" for the target, "-draft" for the draft."""
        if part not in self.loaded:
            file = self.checked(f"{self.name}{part}")
            config = {k: v for k, v in read_config(file).items() if k != LATENTS}
            net: Any = build(self.name, config)
            load_weights(net, file)
            net = net.eval().to(self.device)
            if self.device == "cuda" and hasattr(
                net, "diffloss"
            ):  # T small calls a token: launches would cost more than the arithmetic
                net.diffloss.net.run = torch.compile(net.diffloss.net.run, dynamic=True)
            self.loaded[part] = net
        return self.loaded[part]

    def checked(self, part: str) -> Path:
        """A part's file, of the SHA-256 that its folder says; ConfigError if not."""
        file = self.folder / f"{part}.safetensors"
        check(file, sums(self.folder).get(file.name, "none"), "continuous.weights")
        return file

    @cached_property
    def kl(self) -> KL:
        return load_kl(self.checked("kl")).to(self.device)

    def class_of(self, image: int) -> str:
        """The name of an image's class, or its number where classes have no names here."""
        classes = read_config(self.folder / f"{self.name}.safetensors").get("classes", len(CLASSES))
        return CLASSES[label_of(image)] if classes == len(CLASSES) else str(label_of(image, classes))

    def of(self, part: str, images: range, settings: dict[str, Any]) -> ContinuousModel:
        """One network conditioned on the images of these numbers."""
        net = self.network(part)
        if self.name in ("mar", "xar"):
            from parity.models.continuous.xar import XAR

            labels = labels_of(images, net.config.classes).to(self.device)
            return (MAR if self.name == "mar" else XAR)(net, labels, Sampling(**settings))
        if self.name == "harmon":
            from parity.models.continuous.harmon import Harmon
            from parity.models.discrete.text import PREFIX, token_ids

            ids, valid = token_ids([caption_of(i) for i in images], PREFIX)
            return Harmon(net, ids.to(self.device), valid.to(self.device), Sampling(**settings))
        from parity.models.continuous.gmm import GMM

        return GMM(net, labels_of(images).to(self.device), settings["temperature"])

    def pair(self, images: range, settings: dict[str, Any], draft: bool) -> Pair:
        """Target and, if asked for, draft; each counts and times what it is asked."""
        return Pair(
            Clocked(self.of("", images, settings)), Clocked(self.of("-draft", images, settings)) if draft else None
        )

    @torch.inference_mode()
    def pictures(self, tokens: Tensor) -> np.ndarray:
        """uint8 [n, H, W, 3] of the tokens [n, L, D] of all places, in raster order."""
        if self.name == "xar":
            from parity.models.continuous.xar import unfold

            tokens = unfold(tokens, read_config(self.folder / "xar.safetensors")["cell"])
        parts = [self.kl.decode(t.float().to(self.device)) for t in tokens.split(64)]
        return to_uint8(torch.cat(parts)).permute(0, 2, 3, 1).cpu().numpy()


def build(name: str, config: dict[str, Any]) -> torch.nn.Module:
    """A network from the configuration in its file's header."""
    if name == "mar":
        from parity.models.continuous.mar import MARConfig, MARNet

        return MARNet(MARConfig(**config))
    if name == "xar":
        from parity.models.continuous.xar import XARConfig, XARNet

        return XARNet(XARConfig(**config))
    if name == "harmon":
        from parity.models.continuous.harmon import HarmonConfig, HarmonNet

        return HarmonNet(HarmonConfig(**config))
    from parity.models.continuous.gmm import GMMConfig, GMMNet

    return GMMNet(GMMConfig(**config))
