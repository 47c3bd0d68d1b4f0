"""Inception-V3 as the FID papers have it (TensorFlow's of 2015-12-05): torch-fidelity's network, of its published file.

torch-fidelity's own forward takes whole bytes and resizes them itself; a recipe may resize otherwise, to pixels that
are not rounded. So its layers are called here, in the order in which it calls them, behind the recipe's resizing.
"""

import warnings
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from parity.base.errors import ParityError
from parity.base.weights import unpickle
from parity.metrics.networks import batches

SIDE = 299


def load(file: Path, device: str = "cpu") -> nn.Module:
    """ParityError for a file that is not this network's, or that is more than tensors."""
    from torch_fidelity.feature_extractor_inceptionv3 import FeatureExtractorInceptionV3

    unpickle(file)  # torch-fidelity's reader would execute what this refuses
    wanted = ["2048", "logits_unbiased"]
    try:
        net = FeatureExtractorInceptionV3("inception", wanted, feature_extractor_weights_path=str(file))
    except RuntimeError as error:
        first = str(error).splitlines()[-1].strip()[:160]
        raise ParityError(f"networks.inception = {str(file)!r}: not the file of this network: {first}") from None
    return net.to(device)


@cache
def resizer(mode: str) -> Any:
    """uint8 [H, W, 3] to float32 [299, 299, 3] in 0 to 255, by a recipe's `resize`."""
    if mode == "tensorflow":
        from torch_fidelity.interpolate_compat_tensorflow import interpolate_bilinear_2d_like_tensorflow1x

        def resize(picture: np.ndarray) -> np.ndarray:
            x = torch.from_numpy(picture.transpose(2, 0, 1).astype(np.float32))[None]
            return (
                interpolate_bilinear_2d_like_tensorflow1x(x, size=(SIDE, SIDE), align_corners=False)[0]
                .permute(1, 2, 0)
                .numpy()
            )

        return resize
    from cleanfid.resize import build_resizer

    with warnings.catch_warnings():  # clean-fid ignores every warning from there on
        return build_resizer(mode)


def cropped(picture: np.ndarray, side: int) -> np.ndarray:
    """The largest square at the centre of uint8 [H, W, 3], as [side, side, 3] by Lanczos's filter; 0 leaves it."""
    if not side:
        return picture
    height, width = picture.shape[:2]
    least = min(height, width)
    top, left = (height - least) // 2, (width - least) // 2
    square = Image.fromarray(picture[top : top + least, left : left + least])
    return np.asarray(square.resize((side, side), Image.Resampling.LANCZOS))


def prepared(picture: np.ndarray, recipe: dict[str, Any]) -> Tensor:
    """uint8 [H, W, 3] to what the network's first layer reads [3, 299, 299], under a recipe of `metrics.protocols`."""
    with warnings.catch_warnings():
        resized = resizer(recipe["resize"])(cropped(picture, recipe["crop"]))
    x = torch.from_numpy(np.ascontiguousarray(resized.transpose(2, 0, 1), dtype=np.float32))
    return (x - recipe["centre"]) / recipe["centre"]


@torch.inference_mode()
def read(net: nn.Module, pictures: Iterable[np.ndarray], recipe: dict[str, Any], batch: int = 32) -> dict[str, Any]:
    """Features float32 [n, 2048] and logits [n, 1008] without their bias (as the Inception Score takes them) of
    pictures uint8 [H, W, 3], whose sizes may differ."""
    features, logits = [], []
    every: list[Any] = list(net.children())
    *layers, last = every
    for some in batches(pictures, batch):
        x = torch.stack([prepared(picture, recipe) for picture in some]).to(last.weight.device)
        for layer in layers:
            x = layer(x)
        x = x.flatten(1)
        features.append(x.cpu().numpy())
        logits.append((x @ last.weight.T).cpu().numpy())
    if not features:
        raise ParityError("pictures: none to look at")
    return {"features": np.concatenate(features), "logits": np.concatenate(logits)}
