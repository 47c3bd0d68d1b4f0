"""The embedded CLIP (Radford et al. 2021), of our own sizes: read by CLIP-score, and the feature extractor of FID.

Parameters have open_clip's names and the features are open_clip's to the bit; it trains the network (`build`), but to
import it, and torchvision with it, takes a job longer than all that it measures.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parity.base.errors import ParityError
from parity.base.weights import load_weights
from parity.embedded.tokenizer import VOCAB, token_ids

CONTEXT = 24  # caption tokens, end token included
SIDE = 64  # pixels of a picture, each way
MODEL_CONFIG: dict[str, Any] = {
    "embed_dim": 128,
    "vision_cfg": {"image_size": SIDE, "layers": 4, "width": 192, "head_width": 48, "patch_size": 8},
    "text_cfg": {"context_length": CONTEXT, "vocab_size": VOCAB, "width": 128, "heads": 4, "layers": 3},
}


def build() -> Any:
    """open_clip's, freshly initialised: pixels in [-1, 1], token ids of `parity.embedded.tokenizer.token_ids`."""
    import open_clip

    return open_clip.CLIP(**MODEL_CONFIG)


class Block(nn.Module):
    """Attention and a layer of 4 times the width, each added to what it read, normed: [B, S, width]."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = nn.MultiheadAttention(width, heads, batch_first=True)
        self.mlp = nn.Sequential()
        self.mlp.add_module("c_fc", nn.Linear(width, 4 * width))
        self.mlp.add_module("gelu", nn.GELU())
        self.mlp.add_module("c_proj", nn.Linear(4 * width, width))

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        read = self.ln_1(x)
        x = x + self.attn(read, read, read, need_weights=False, attn_mask=mask)[0]
        return x + self.mlp(self.ln_2(x))


class Blocks(nn.Module):
    def __init__(self, width: int, heads: int, layers: int):
        super().__init__()
        self.resblocks = nn.ModuleList(Block(width, heads) for _ in range(layers))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        for block in self.resblocks:
            x = block(x, mask)
        return x


class Vision(nn.Module):
    """Pictures [B, 3, SIDE, SIDE] in [-1, 1] to features [B, d], read off a token that stands before the patches."""

    def __init__(self, d: int, image_size: int, layers: int, width: int, head_width: int, patch_size: int):
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, patch_size, stride=patch_size, bias=False)
        self.class_embedding = nn.Parameter(torch.zeros(width))
        self.positional_embedding = nn.Parameter(torch.zeros((image_size // patch_size) ** 2 + 1, width))
        self.ln_pre, self.ln_post = nn.LayerNorm(width), nn.LayerNorm(width)
        self.transformer = Blocks(width, width // head_width, layers)
        self.proj = nn.Parameter(torch.zeros(width, d))

    def forward(self, x: Tensor) -> Tensor:
        patches = self.conv1(x).flatten(2).mT
        x = torch.cat([self.class_embedding.expand(len(x), 1, -1), patches], 1) + self.positional_embedding
        return self.ln_post(self.transformer(self.ln_pre(x)))[:, 0] @ self.proj


class CLIP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        d, text = MODEL_CONFIG["embed_dim"], MODEL_CONFIG["text_cfg"]
        self.visual = Vision(d, **MODEL_CONFIG["vision_cfg"])
        self.transformer = Blocks(text["width"], text["heads"], text["layers"])
        self.token_embedding = nn.Embedding(VOCAB, text["width"])
        self.positional_embedding = nn.Parameter(torch.zeros(CONTEXT, text["width"]))
        self.ln_final = nn.LayerNorm(text["width"])
        self.text_projection = nn.Parameter(torch.zeros(text["width"], d))
        self.logit_scale = nn.Parameter(torch.zeros(()))
        self.register_buffer("mask", torch.full((CONTEXT, CONTEXT), -torch.inf).triu(1), persistent=False)

    def encode_image(self, x: Tensor) -> Tensor:
        """[B, d]."""
        return self.visual(x)

    def encode_text(self, ids: Tensor) -> Tensor:
        """Token ids [B, CONTEXT] to features [B, d], read off the end token, whose id is the highest."""
        x = self.transformer(self.token_embedding(ids) + self.positional_embedding, self.get_buffer("mask"))
        return self.ln_final(x)[torch.arange(len(x), device=x.device), ids.argmax(-1)] @ self.text_projection


def load(file: Path, device: str = "cpu") -> CLIP:
    """With the weights of a file; ParityError unless they fit."""
    clip = CLIP()
    load_weights(clip, file)
    return clip.eval().to(device)


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
