"""The Scenes classifier: which of the 60 classes (a shape and its colour) an image of one large plain shape shows. It
stands in Inception's place in the Inception Score."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parity.base.weights import load_weights
from parity.embedded.classes import CLASSES
from parity.models.discrete.vq import to_images

CHANNELS = (24, 48, 96, 160)


class Classifier(nn.Module):
    """Images [B, 3, 64, 64] in [-1, 1] to logits [B, 60]."""

    def __init__(self):
        super().__init__()
        widths = (3, *CHANNELS)
        self.convolutions = nn.ModuleList(nn.Conv2d(a, b, 3, stride=2, padding=1) for a, b in pairwise(widths))
        self.norms = nn.ModuleList(nn.GroupNorm(8, b) for b in CHANNELS)
        self.mix = nn.Conv2d(CHANNELS[-1], CHANNELS[-1], 3, padding=1)
        self.out = nn.Linear(CHANNELS[-1], len(CLASSES))

    def features(self, x: Tensor) -> Tensor:
        """Compute what the last layer reads, [B, 160]: FID's features."""
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = F.silu(norm(convolution(x)))
        return (x + F.silu(self.mix(x))).amax((2, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.features(x))

    @torch.inference_mode()
    def read(self, pixels: np.ndarray, batch: int = 128) -> dict[str, np.ndarray]:
        """Compute features [n, 160] and logits [n, 60] of images uint8 [n, 64, 64, 3]."""
        images = to_images(pixels).to(self.out.weight.device)
        features = torch.cat([self.features(pixel_batch) for pixel_batch in images.split(batch)])
        return {"features": features.cpu().numpy(), "logits": self.out(features).cpu().numpy()}


def load(file: Path, device: str = "cpu") -> Classifier:
    """Load the classifier's weights of a file, in evaluation mode. Raises ParityError unless they fit."""
    net = Classifier()
    load_weights(net, file)
    return net.eval().to(device)
