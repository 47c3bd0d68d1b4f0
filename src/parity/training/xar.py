"""Recipe of the embedded xAR pair (draft and target): cells of one token, on the data of the MAR pair."""

from dataclasses import replace

import numpy as np
import torch

from parity.embedded.classes import CLASSES
from parity.models.continuous import xar
from parity.models.continuous.kl import fold
from parity.models.continuous.xar import XARConfig, XARNet
from parity.training.latents import latents_recipe
from parity.training.loop import short_bf16
from parity.training.recipe import Job, Recipe

KIND = "continuous"
DATA = "classes"
EXAMPLES = 20_000
READS = ("kl",)
RUN = {"xar": (5000, 32), "xar-draft": (2500, 32)}  # steps, batch
CARDS = {
    "xar": "xAR at small scale (cells of one token), class-conditional, over the tokens of `kl`: the target.",
    "xar-draft": "Draft model of `xar`.",
}
CONFIG = XARConfig(classes=len(CLASSES), grid=8, cell=1, width=128, encoder=2, decoder=2, heads=4)
CONFIGS = {"xar": CONFIG, "xar-draft": replace(CONFIG, width=64)}


def value(net, tokens, labels, rng):
    """The velocity's squared error, at a time of its own for each cell: logit-normal."""
    cells = fold(tokens, net.config.cell)
    t = torch.from_numpy(1 / (1 + np.exp(-rng.standard_normal(cells.shape[:2], np.float32))))
    noise = torch.from_numpy(rng.standard_normal(cells.shape, np.float32))
    with short_bf16():
        return xar.loss(net, cells, labels, t, noise).mean()


def recipe(job: Job) -> Recipe:
    """Its log: the velocity's squared error on training and on held-out pictures."""
    config, tested = CONFIGS[job.name], ((0, 11), (1, 11))
    return latents_recipe(job, XARNet, config, value, stream=10, hidden=r"_blocks\.", tested=tested)
