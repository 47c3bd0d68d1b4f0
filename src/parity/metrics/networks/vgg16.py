"""VGG16 as torchvision publishes it (vgg16-397923af.pth), up to its second fully connected layer, before that layer's
ReLU: what LANTERN takes precision and recall of.

Pictures are squeezed to 224 pixels as torchvision's Resize does it to PIL pictures (bilinear, antialiased, rounded),
neither cropped nor reduced before. Widths are the file's, so that a stand-in may be small.
"""

from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from parity.base.errors import ParityError
from parity.base.weights import load_weights, shapes
from parity.metrics.networks import batches

SIDE = 224
BLOCKS = (2, 2, 3, 3, 3)  # convolutions before each halving of the picture
UNREAD = ("classifier.6.weight", "classifier.6.bias")  # its last layer, of ImageNet's classes
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet, as its training took them


def build(widths: Iterable[int], hidden: int) -> nn.Module:
    """widths: channels of the convolutions, in their order; pictures [n, 3, 224, 224] to features [n, hidden]."""
    from torchvision.models.vgg import make_layers

    each, last = iter(widths), 0
    plan: list[str | int] = []
    for count in BLOCKS:
        block = [next(each) for _ in range(count)]
        plan, last = [*plan, *block, "M"], block[-1]
    full = nn.Sequential(nn.Linear(last * 7 * 7, hidden), nn.ReLU(), nn.Dropout(), nn.Linear(hidden, hidden))
    return nn.Sequential(OrderedDict(features=make_layers(plan), flat=nn.Flatten(), classifier=full))


def load(file: Path, device: str = "cpu") -> nn.Module:
    """ParityError for a file that is not this network's."""
    tensors = shapes(file)
    every, at = [], 0
    for count in BLOCKS:
        every += [f"features.{at + 2 * i}.weight" for i in range(count)]
        at += 2 * count + 1
    wanted = [*every, "classifier.0.weight"]
    if missing := [name for name in wanted if name not in tensors or not tensors[name].ndim]:
        raise ParityError(f"networks.vgg16 = {str(file)!r}: not the file of this network: it lacks {missing[0]}")
    net = build([len(tensors[name]) for name in every], len(tensors["classifier.0.weight"]))
    load_weights(net, file, UNREAD)
    return net.eval().to(device)


def prepared(picture: np.ndarray) -> Tensor:
    """uint8 [H, W, 3] to what the network's first layer reads [3, 224, 224]."""
    small = Image.fromarray(picture).resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    x = torch.from_numpy(np.asarray(small, dtype=np.float32) / 255)
    return ((x - torch.tensor(MEAN)) / torch.tensor(DEVIATION)).permute(2, 0, 1)


@torch.inference_mode()
def read(net: nn.Module, pictures: Iterable[np.ndarray], batch: int = 32) -> np.ndarray:
    """Features float32 [n, hidden] of pictures uint8 [H, W, 3], whose sizes may differ."""
    device = next(net.parameters()).device
    parts = [net(torch.stack([prepared(p) for p in some]).to(device)).cpu() for some in batches(pictures, batch)]
    if not parts:
        raise ParityError("pictures: none to look at")
    return torch.cat(parts).numpy()
