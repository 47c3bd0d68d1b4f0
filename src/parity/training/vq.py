"""Recipe of the embedded image tokenizer: LlamaGen's VQ at stride 4, 1024 codes of 8 dimensions."""

from dataclasses import asdict

import numpy as np
import torch
import torch.nn.functional as F

from parity.models.discrete.vq import VQ, VQConfig
from parity.training.autoencoder import examples, unlike
from parity.training.data import pictures
from parity.training.recipe import Job, Recipe

KIND = "discrete"
DATA = "scenes"
EXAMPLES = 48_000
THREADS = 2
RUN = {"vq": (2800, 48)}  # steps, batch
CARDS = {
    "vq": "Image tokenizer: LlamaGen's VQ at small scale. Pictures 64x64 to 16x16 tokens and back.",
}
CONFIG = VQConfig(codebook=1024, code_dim=8, ch=16, ch_mult=(1, 2, 4), res_blocks=1, z_channels=64, norm_groups=8)


def recipe(job: Job) -> Recipe:
    """Its log: reconstruction and commitment losses, codes in use."""
    _, pixels = pictures(job)
    torch.manual_seed(job.seed)
    vq = VQ(CONFIG).to(memory_format=torch.channels_last)
    codebook = vq.quantize.embedding.weight
    torch.nn.init.normal_(codebook)
    used = torch.zeros(CONFIG.codebook)
    recent: list[torch.Tensor] = []  # the last batch's latents: where unused codes are put again

    @torch.compile
    def reconstruct(x):
        z, codes = vq.latents(x), vq.quantize.codes.float()
        tokens = (z @ codes.T).argmax(-1)
        e = codes[tokens]
        return z, e, tokens, vq.decode_latents(z + (e - z).detach()).float()

    def loss(step, rng):
        x = examples(job, pixels, step, rng)
        with torch.autocast("cpu", torch.bfloat16):
            z, e, tokens, y = reconstruct(x)
        used.mul_(0.98).index_add_(0, tokens.flatten(), torch.ones(tokens.numel()))
        recent[:] = [z.detach().flatten(0, 2)]
        learned, commit = F.mse_loss(e, z.detach()), F.mse_loss(z, e.detach())
        l1, value = unlike(x, y)
        figures = {"l1": l1.item(), "commit": commit.item(), "codes": float((used > 0.5).sum())}
        return value + learned + 0.25 * commit, figures

    def revive(step):
        """Codes that nothing chose lately move to latents that occurred: a small codebook must not waste entries."""
        if step % 25 == 24 and step < 0.7 * job.steps:
            dead = (used < 0.05 * used.mean()).nonzero().flatten()
            rows = np.random.default_rng([job.seed, step, 1]).integers(0, len(recent[0]), len(dead))
            with torch.no_grad():
                codebook[dead] = recent[0][rows].to(codebook.dtype)
            used[dead] = used.mean()

    return Recipe(vq, loss, lambda: ({}, asdict(CONFIG)), (), peak=3e-3, after=revive, every=100, memory=(used,))
