"""Recipe of the embedded KL autoencoder: stride 8, tokens of 16 numbers."""

from dataclasses import asdict

import numpy as np
import torch

from parity.models.continuous.kl import KL, KLConfig, gaussian_kl, scaled
from parity.training.autoencoder import examples, unlike
from parity.training.data import pictures, to_pictures
from parity.training.recipe import Job, Recipe

KIND = "continuous"
DATA = "scenes"
EXAMPLES = 48_000
RUN = {"kl": (4300, 48)}  # steps, batch
CARDS = {
    "kl": "Image tokenizer: a KL autoencoder (MAR's KL-16 at small scale). Pictures 64x64 to 8x8 tokens of 16"
    " numbers and back.",
}
CONFIG = KLConfig(dim=16, ch=16, ch_mult=(1, 2, 4, 4), res_blocks=1, norm_groups=8, decoder_attention=True, scale=1.0)
KL_WEIGHT = 3e-4  # of the mean over entries; at 3e-3 colours shift and textures blur


def recipe(job: Job) -> Recipe:
    """Its log ends with the error of held-out pictures; the header has the scale that makes latents' deviation one."""
    _, pixels = pictures(job)
    torch.manual_seed(job.seed)
    kl = KL(CONFIG).to(memory_format=torch.channels_last)

    @torch.compile
    def reconstruct(x, noise):
        mean, log_variance = kl.moments(x)
        z = mean + (0.5 * log_variance).exp() * noise
        return mean, log_variance, kl.decoder(kl.post_quant_conv(z)).float()

    def loss(step, rng):
        x = examples(job, pixels, step, rng)
        side = x.shape[-1] // CONFIG.stride
        noise = torch.from_numpy(rng.standard_normal((len(x), CONFIG.dim, side, side), np.float32))
        with torch.autocast("cpu", torch.bfloat16):
            mean, log_variance, y = reconstruct(x, noise)
        nats, (l1, value) = gaussian_kl(mean, log_variance), unlike(x, y)
        figures = {"l1": l1.item(), "kl": nats.item(), "deviation": mean.std().item()}
        return value + KL_WEIGHT * nats, figures

    def finish():
        kl.eval()
        parts = to_pictures(pictures(job, test=True)[1][:256]).split(64)
        z = [kl.encode(part) for part in parts]
        l1 = torch.cat([(kl.decode(t) - part).abs() for t, part in zip(z, parts, strict=True)]).mean()
        latents = torch.cat(z)
        figures = {"held_out_l1": l1.item(), "latent_deviation": latents.std().item()}
        return figures, asdict(scaled(CONFIG, latents))

    return Recipe(kl, loss, finish, stream=(6,), peak=3e-3, every=100)
