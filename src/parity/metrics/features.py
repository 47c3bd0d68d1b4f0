"""CLIP features of pictures, and the cosine of every picture with its caption.

The features are those of clean-fid's file path, which leaves pictures of the network's own size as they are
(tests/metrics/test_features.py).
"""

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from parity.base.errors import ParityError
from parity.embedded.tokenizer import token_ids
from parity.metrics.networks.clip import CLIP, CONTEXT, SIDE


def enlarged(pixels: np.ndarray, side: int) -> np.ndarray:
    """Smaller pictures uint8 [n, H, H, 3] to [n, side, side, 3], every pixel repeated: no filter is chosen, nothing
    smoothed away."""
    factor, rest = divmod(side, pixels.shape[1])
    if pixels.shape[1] != pixels.shape[2] or factor < 1 or rest:
        size = f"{pixels.shape[1]}x{pixels.shape[2]}"
        raise ParityError(f"pixels: {size} pictures; allowed: {side}x{side}, or squares of a divisor of that")
    return pixels if factor == 1 else pixels.repeat(factor, 1).repeat(factor, 2)


def encoded(encode: Callable[[Tensor], Tensor], inputs: Tensor, batch: int) -> np.ndarray:
    """float32 [n, d] of what a network in evaluation mode makes of inputs [n, ...]."""
    with torch.inference_mode():
        return np.concatenate([encode(part).float().cpu().numpy() for part in inputs.split(batch)])


def picture_features(pixels: np.ndarray, clip: CLIP, batch: int = 64) -> np.ndarray:
    """pixels uint8 [n, H, W, 3] to float32 [n, d], in the order given; not normalised, as in clean-fid. Smaller
    pictures than the network's own are `enlarged`."""
    if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[-1] != 3:
        raise ParityError(f"pixels: {pixels.dtype} {pixels.shape}; allowed: uint8 [n, H, W, 3]")
    if len(pixels) == 0:
        raise ParityError("pixels: no pictures")
    device = clip.logit_scale.device
    bytes_ = torch.from_numpy(enlarged(pixels, SIDE)).permute(0, 3, 1, 2)
    return encoded(lambda x: clip.encode_image(x.contiguous().to(device).float() / 127.5 - 1), bytes_, batch)


def caption_features(captions: list[str], clip: CLIP, batch: int = 256) -> np.ndarray:
    """Captions to float32 [n, d]; one that occurs often is encoded once."""
    distinct, back = np.unique(captions, return_inverse=True)
    ids = token_ids(distinct.tolist(), CONTEXT)[0].to(clip.logit_scale.device)
    return encoded(clip.encode_text, ids, batch)[back]


def cell_features(ids: np.ndarray, captions: np.ndarray, pixels: np.ndarray, clip: CLIP) -> dict[str, np.ndarray]:
    """What is kept of a cell's pictures: ids [n], features float32 [n, d], cosine float32 [n] with their captions."""
    if not len(ids) == len(captions) == len(pixels):
        raise ParityError(f"{len(ids)} ids, {len(captions)} captions and {len(pixels)} pictures: must be as many")
    features = picture_features(pixels, clip)
    text = caption_features([str(c) for c in captions], clip)
    cosine = F.cosine_similarity(torch.from_numpy(features), torch.from_numpy(text)).numpy()
    return {"ids": np.asarray(ids), "features": features, "cosine": cosine}
