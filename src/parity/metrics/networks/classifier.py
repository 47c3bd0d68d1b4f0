"""The Scenes classifier: which of the 60 classes (a shape and its colour) a picture of one large plain thing shows. Inception's part in the Inception Score."""

from itertools import pairwise
from pathlib import Path

import torch.nn.functional as F
from torch import Tensor, nn

from parity.embedded.classes import CLASSES
from parity.models.checkpoints import load_weights

CHANNELS = (24, 48, 96, 160)


class Classifier(nn.Module):
    """Pictures [B, 3, 64, 64] in [-1, 1] to logits [B, 60]."""

    def __init__(self):
        super().__init__()
        widths = (3, *CHANNELS)
        self.convolutions = nn.ModuleList(nn.Conv2d(a, b, 3, stride=2, padding=1) for a, b in pairwise(widths))
        self.norms = nn.ModuleList(nn.GroupNorm(8, b) for b in CHANNELS)
        self.mix = nn.Conv2d(CHANNELS[-1], CHANNELS[-1], 3, padding=1)
        self.out = nn.Linear(CHANNELS[-1], len(CLASSES))

    def features(self, x: Tensor) -> Tensor:
        """[B, 160], what the last layer reads: FID's features."""
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = F.silu(norm(convolution(x)))
        return (x + F.silu(self.mix(x))).amax((2, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.features(x))


def load(file: Path) -> Classifier:
    net = Classifier()
    load_weights(net, file)
    return net.eval()
