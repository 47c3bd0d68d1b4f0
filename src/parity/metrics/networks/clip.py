"""The embedded CLIP (Radford et al. 2021), of our own sizes: the network of CLIP-score, FID, precision and recall.

open_clip trains the network (`build`). Jobs that measure use the modules below instead, which have the same parameter
names and give the same features to the bit: importing open_clip takes longer than all that such a job measures."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parity.base.errors import ParityError
from parity.base.weights import load_weights
from parity.embedded.tokenizer import VOCAB, encode_ids

CONTEXT = 24  # CLIP reads this many tokens of a caption, the end token included
SIDE = 64  # CLIP reads images of this many pixels each way
MODEL_CONFIG: dict[str, Any] = {
    "embed_dim": 128,
    "vision_cfg": {"image_size": SIDE, "layers": 4, "width": 192, "head_width": 48, "patch_size": 8},
    "text_cfg": {"context_length": CONTEXT, "vocab_size": VOCAB, "width": 128, "heads": 4, "layers": 3},
}


def build() -> Any:
    """Build open_clip's network with new random weights: pixels in [-1, 1], ids of
    `parity.embedded.tokenizer.encode_ids`."""
    import open_clip

    return open_clip.CLIP(**MODEL_CONFIG)


class Block(nn.Module):
    """Attention and a layer of 4 times the width, each after a norm and added to its input: [B, S, width]."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = nn.MultiheadAttention(width, heads, batch_first=True)
        self.mlp = nn.Sequential()
        self.mlp.add_module("c_fc", nn.Linear(width, 4 * width))
        self.mlp.add_module("gelu", nn.GELU())
        self.mlp.add_module("c_proj", nn.Linear(4 * width, width))

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Add attention and then the MLP to x [B, S, width]; mask [S, S] is added to the attention's scores."""
        normed = self.ln_1(x)
        x = x + self.attn(normed, normed, normed, need_weights=False, attn_mask=mask)[0]
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
    """Images [B, 3, SIDE, SIDE] in [-1, 1] to features [B, d], taken at a token in front of the patches."""

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
        """Build both towers with the sizes of MODEL_CONFIG; weights are placeholders until loaded."""
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
        return self.visual(x)

    def encode_text(self, ids: Tensor) -> Tensor:
        """Encode token ids [B, CONTEXT] as features [B, d], taken at the end token, whose id is the highest."""
        x = self.transformer(self.token_embedding(ids) + self.positional_embedding, self.get_buffer("mask"))
        return self.ln_final(x)[torch.arange(len(x), device=x.device), ids.argmax(-1)] @ self.text_projection


def load(file: Path, device: str = "cpu") -> CLIP:
    """Load CLIP's weights of a file, in evaluation mode. Raises ParityError unless they fit."""
    clip = CLIP()
    load_weights(clip, file)
    return clip.eval().to(device)


def enlarge(pixels: np.ndarray, side: int) -> np.ndarray:
    """Enlarge images uint8 [n, H, H, 3] to [n, side, side, 3] by repeating every pixel, so that nothing is smoothed.
    Raises ParityError unless they are squares whose side divides `side`."""
    height, width = pixels.shape[1:3]
    if height != width or side % height:
        size = f"{height}x{width}"
        raise ParityError(f"pixels: {size} images; allowed: {side}x{side}, or squares of a divisor of that")
    return pixels.repeat(side // height, 1).repeat(side // height, 2)


def encode(network: Callable[[Tensor], Tensor], inputs: Tensor, batch: int) -> np.ndarray:
    """Encode inputs [n, ...] by a network as float32 [n, d] on the CPU, `batch` at once."""
    with torch.inference_mode():
        return np.concatenate([network(batched).float().cpu().numpy() for batched in inputs.split(batch)])


def image_features(pixels: np.ndarray, clip: CLIP, batch: int = 64) -> np.ndarray:
    """Encode pixels uint8 [n, H, W, 3], enlarged if small, by CLIP as float32 [n, d], not normalised (clean-fid)."""
    device = clip.logit_scale.device

    def read(some: Tensor) -> Tensor:
        large = torch.from_numpy(enlarge(some.numpy(), SIDE)).permute(0, 3, 1, 2).contiguous().to(device)
        return clip.encode_image(large.float() / 127.5 - 1)

    return encode(read, torch.from_numpy(pixels), batch)


def caption_features(captions: list[str], clip: CLIP, batch: int = 256) -> np.ndarray:
    """Encode captions by CLIP as float32 [n, d], not normalised; one that occurs often is encoded once."""
    distinct, back = np.unique(captions, return_inverse=True)
    ids = encode_ids(distinct.tolist(), CONTEXT)[0].to(clip.logit_scale.device)
    return encode(clip.encode_text, ids, batch)[back]


def cell_features(captions: np.ndarray, pixels: np.ndarray, clip: CLIP) -> dict[str, np.ndarray]:
    """Compute CLIP's features of images, float32 [n, d], and their `cosine` with their captions, float32 [n]."""
    features = image_features(pixels, clip)
    text = caption_features([str(c) for c in captions], clip)
    cosine = F.cosine_similarity(torch.from_numpy(features), torch.from_numpy(text)).numpy()
    return {"features": features, "cosine": cosine}
