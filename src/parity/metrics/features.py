"""CLIP features of pictures, read through clean-fid's feature path, and the cosine of every picture with its caption.

`clip` is an open_clip model: `encode_image` of pixels in [-1, 1], `encode_text` of token ids.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from cleanfid.fid import get_files_features
from PIL import Image
from torch import Tensor

from parity.metrics.networks.clip import CONTEXT, SIDE
from parity.models.discrete.text import token_ids

Tokenise = Callable[[list[str]], Tensor]


def embedded_tokens(captions: list[str]) -> Tensor:
    """Captions to the embedded CLIP's ids [n, CONTEXT]."""
    return token_ids(captions, CONTEXT)[0]


def enlarged(pixels: np.ndarray, side: int) -> np.ndarray:
    """Smaller pictures uint8 [n, H, H, 3] to [n, side, side, 3], every pixel repeated: no filter is chosen, and nothing is smoothed away."""
    factor, rest = divmod(side, pixels.shape[1])
    if pixels.shape[1] != pixels.shape[2] or factor < 1 or rest:
        raise ValueError(
            f"pixels: {pixels.shape[1]}x{pixels.shape[2]} pictures; allowed: {side}x{side}, or squares of a divisor of that"
        )
    return pixels if factor == 1 else pixels.repeat(factor, 1).repeat(factor, 2)


def picture_features(pixels: np.ndarray, clip: Any, batch: int = 64) -> np.ndarray:
    """pixels uint8 [n, H, W, 3] to float32 [n, d], in the order given; not normalised, as in clean-fid. Smaller pictures than the network's
    own are `enlarged`.

    clean-fid reads files, so each picture passes through a PNG (lossless) in a temporary folder, named by its row: the list is explicit,
    and no stray file can be counted. Its defaults are a GPU, 12 workers and 299 x 299 pixels; all three are overridden.
    """
    if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[-1] != 3:
        raise ValueError(f"pixels: {pixels.dtype} {pixels.shape}; allowed: uint8 [n, H, W, 3]")
    if len(pixels) == 0:
        raise ValueError("pixels: no pictures")
    was_training, device = clip.training, next(clip.parameters()).device
    clip.eval()
    pixels = enlarged(pixels, SIDE)

    def extract(x: Tensor) -> Tensor:  # [B, 3, H, W] in [0, 255]
        return clip.encode_image(x.to(device) / 127.5 - 1)

    with tempfile.TemporaryDirectory(prefix="parity-") as folder, torch.inference_mode():
        files = [str(Path(folder, f"{row:06d}.png")) for row in range(len(pixels))]
        for file, picture in zip(files, pixels, strict=True):
            Image.fromarray(picture).save(file, compress_level=1)
        found = get_files_features(
            files, extract, num_workers=0, batch_size=batch, device=device, custom_fn_resize=lambda x: x, verbose=False
        )
    clip.train(was_training)
    return found.astype(np.float32)


def caption_features(
    captions: list[str], clip: Any, tokenise: Tokenise = embedded_tokens, batch: int = 256
) -> np.ndarray:
    """Captions to float32 [n, d]; a caption that occurs often is encoded once."""
    was_training, device = clip.training, next(clip.parameters()).device
    clip.eval()
    distinct, back = np.unique(captions, return_inverse=True)
    with torch.inference_mode():
        parts = [
            clip.encode_text(tokenise(distinct[i : i + batch].tolist()).to(device)).float().cpu()
            for i in range(0, len(distinct), batch)
        ]
    clip.train(was_training)
    return torch.cat(parts).numpy()[back]


def cell_features(
    ids: np.ndarray, captions: np.ndarray, pixels: np.ndarray, clip: Any, tokenise: Tokenise = embedded_tokens
) -> dict[str, np.ndarray]:
    """What is kept of a cell's pictures: ids [n], features float32 [n, d], cosine float32 [n]; for `storage.write_arrays`."""
    if not len(ids) == len(captions) == len(pixels):
        raise ValueError(f"{len(ids)} ids, {len(captions)} captions and {len(pixels)} pictures: must be as many")
    features = picture_features(pixels, clip)
    text = caption_features([str(c) for c in captions], clip, tokenise)
    cosine = F.cosine_similarity(torch.from_numpy(features), torch.from_numpy(text)).numpy()
    return {"ids": np.asarray(ids), "features": features, "cosine": cosine}
