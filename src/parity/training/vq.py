"""Recipe of the embedded image tokenizer (LlamaGen's VQ at stride 4, 1024 codes of 8 dimensions) on Scenes.

The first four fifths of the steps see crops of 32x32 (the network is convolutional, and a crop costs a quarter), the rest whole pictures.
"""

from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from parity.models.discrete.vq import VQ, VQConfig
from parity.training.loop import publish, scene_arrays, to_pictures, train

CONFIG = VQConfig(codebook=1024, code_dim=8, ch=16, ch_mult=(1, 2, 4), res_blocks=1, z_channels=64, norm_groups=8)
CROP = 32


def crops(pixels: np.ndarray, rng: np.random.Generator, batch: int) -> np.ndarray:
    """`batch` random 32x32 crops, uint8."""
    rows, corners = rng.integers(0, len(pixels), batch), rng.integers(0, pixels.shape[1] - CROP + 1, (batch, 2))
    return np.stack([pixels[r, y : y + CROP, x : x + CROP] for r, (y, x) in zip(rows, corners, strict=True)])


def main(
    work: Path, out: Path, steps: int, batch: int, examples: int, seed: int, processes: int
) -> list[dict[str, float]]:
    """Train, write `out`, return the log: reconstruction and commitment losses, codes in use. `batch` counts crops."""
    _, pixels = scene_arrays(work, 1_000_000, examples, test=False, processes=processes)
    torch.manual_seed(seed)
    vq = VQ(CONFIG).to(memory_format=torch.channels_last)
    torch.nn.init.normal_(vq.quantize.embedding.weight)
    used = torch.zeros(CONFIG.codebook)
    recent: list[torch.Tensor] = []  # the last batch's latents: where unused codes are put again

    @torch.compile
    def reconstruct(x):
        z, codes = vq.latents(x), vq.quantize.codes.float()
        tokens = (z @ codes.T).argmax(-1)
        e = codes[tokens]
        return z, e, tokens, vq.decode_latents(z + (e - z).detach()).float()

    def loss(step):
        rng = np.random.default_rng([seed, step])
        part = crops(pixels, rng, batch) if step < 0.8 * steps else pixels[rng.integers(0, len(pixels), batch // 4)]
        x = to_pictures(part).to(memory_format=torch.channels_last)
        with torch.autocast("cpu", torch.bfloat16):
            z, e, tokens, y = reconstruct(x)
        used.mul_(0.98).index_add_(0, tokens.flatten(), torch.ones(tokens.numel()))
        recent[:] = [z.detach().flatten(0, 2)]
        codebook, commit = F.mse_loss(e, z.detach()), F.mse_loss(z, e.detach())
        edges = (y.diff(dim=-1) - x.diff(dim=-1)).abs().mean() + (y.diff(dim=-2) - x.diff(dim=-2)).abs().mean()
        l1 = (y - x).abs().mean()
        figures = {"l1": l1.item(), "commit": commit.item(), "codes": float((used > 0.5).sum())}
        return l1 + 2 * F.mse_loss(y, x) + edges + codebook + 0.25 * commit, figures

    def revive(step):
        """Codes that nothing chose lately move to latents that occurred: a small codebook must not waste entries."""
        if step % 25 == 24 and step < 0.7 * steps:
            dead = (used < 0.05 * used.mean()).nonzero().flatten()
            rows = np.random.default_rng([seed, step, 1]).integers(0, len(recent[0]), len(dead))
            with torch.no_grad():
                vq.quantize.embedding.weight[dead] = recent[0][rows].to(vq.quantize.embedding.weight.dtype)
            used[dead] = used.mean()

    log = []
    for row in train(
        {"vq": vq}, loss, steps=steps, peak=3e-3, checkpoint=work / "vq.pt", average=0.998, after=revive, every=100
    ):
        print(row, flush=True)
        log.append(row)
    publish(vq, out, asdict(CONFIG))
    return log
