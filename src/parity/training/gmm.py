"""Recipe of the embedded Gaussian-mixture pair: causal transformers on the classes and latents of the MAR pair."""

from dataclasses import replace

import numpy as np
import torch

from parity.embedded.classes import CLASSES
from parity.models.continuous import gmm
from parity.models.continuous.gmm import GMMConfig, GMMNet
from parity.training.latents import latents_recipe
from parity.training.loop import short_bf16
from parity.training.recipe import Job, Recipe

KIND = "continuous"
DATA = "classes"
EXAMPLES = 20_000
READS = ("kl",)
RUN = {"gmm": (2500, 64), "gmm-draft": (1500, 64)}  # steps, batch
CARDS = {
    "gmm": "Causal transformer with a Gaussian-mixture head, class-conditional, over the tokens of `kl` with"
    " noise of deviation 0.15: the target.",
    "gmm-draft": "Draft model of `gmm`.",
}
# Deviation of the noise on the latents. A mixture is exact about tokens that training never strays from; drawing one a
# little off leads astray.
NOISE = 0.15
CONFIG = GMMConfig(classes=len(CLASSES), grid=8, dim=16, width=128, blocks=4, heads=4, components=16)
CONFIGS = {"gmm": CONFIG, "gmm-draft": replace(CONFIG, width=64, blocks=3)}


def value(net, tokens, labels, rng):
    """Nats per number of noisy latents."""
    with short_bf16():
        return gmm.loss(net, tokens + NOISE * torch.from_numpy(rng.standard_normal(tokens.shape, np.float32)), labels)


def recipe(job: Job) -> Recipe:
    """Its log: nats per number on training and on held-out pictures. No label is dropped: it knows no guidance."""
    return latents_recipe(
        job, GMMNet, CONFIGS[job.name], value, stream=9, hidden=r"^blocks\.", tested=((14,),), unconditional=0.0
    )
