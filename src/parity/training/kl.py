"""Recipe of the embedded KL autoencoder (stride 8, tokens of 16 numbers) on Scenes.

The first four fifths of the steps see crops of 32x32 (the network is convolutional, and a crop costs a quarter), the rest whole pictures.
"""

from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from parity.models.continuous.kl import KL, KLConfig, gaussian_kl, scaled
from parity.training.loop import publish, scene_arrays, to_pictures, train
from parity.training.vq import crops

CONFIG = KLConfig(dim=16, ch=16, ch_mult=(1, 2, 4, 4), res_blocks=1, norm_groups=8, decoder_attention=True, scale=1.0)
KL_WEIGHT = 3e-4  # of the mean over entries; at 3e-3 colours shift and textures blur


def main(
    work: Path, out: Path, steps: int, batch: int, examples: int, seed: int, processes: int
) -> list[dict[str, float]]:
    """Train, write `out`, return the log; the last row holds the held-out reconstruction error. `batch` counts crops."""
    _, pixels = scene_arrays(work, 1_000_000, examples, test=False, processes=processes)
    torch.manual_seed(seed)
    kl = KL(CONFIG).to(memory_format=torch.channels_last)

    @torch.compile
    def reconstruct(x, noise):
        mean, log_variance = kl.moments(x)
        z = mean + (0.5 * log_variance).exp() * noise
        return mean, log_variance, kl.decoder(kl.post_quant_conv(z)).float()

    def loss(step):
        rng = np.random.default_rng([seed, step, 6])
        part = crops(pixels, rng, batch) if step < 0.8 * steps else pixels[rng.integers(0, len(pixels), batch // 4)]
        x = to_pictures(part).to(memory_format=torch.channels_last)
        side = x.shape[-1] // CONFIG.stride
        noise = torch.from_numpy(rng.standard_normal((len(x), CONFIG.dim, side, side), np.float32))
        with torch.autocast("cpu", torch.bfloat16):
            mean, log_variance, y = reconstruct(x, noise)
        edges = (y.diff(dim=-1) - x.diff(dim=-1)).abs().mean() + (y.diff(dim=-2) - x.diff(dim=-2)).abs().mean()
        l1, nats = (y - x).abs().mean(), gaussian_kl(mean, log_variance)
        figures = {"l1": l1.item(), "kl": nats.item(), "deviation": mean.std().item()}
        return l1 + 2 * F.mse_loss(y, x) + edges + KL_WEIGHT * nats, figures

    log = []
    for row in train(
        {"kl": kl}, loss, steps=steps, peak=3e-3, checkpoint=out.with_suffix(".pt"), average=0.998, every=100
    ):
        print(row, flush=True)
        log.append(row)
    kl.eval()
    _, test = scene_arrays(work, 3_000_000, 1000, test=True, processes=processes)
    x = to_pictures(test[:256])
    with torch.inference_mode():
        z = torch.cat([kl.encode(part) for part in x.split(64)])
        l1 = (
            torch.cat([(kl.decode(t) - part).abs() for t, part in zip(z.split(64), x.split(64), strict=True)])
            .mean()
            .item()
        )
    log.append({"held_out_l1": l1, "latent_deviation": z.std().item()})
    print(log[-1], flush=True)
    publish(kl, out, asdict(scaled(CONFIG, z)))
    return log
