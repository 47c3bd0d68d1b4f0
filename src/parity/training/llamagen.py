"""Recipe of the embedded LlamaGens: on the tokens of Scenes, their text encoder frozen as the published model's is."""

from dataclasses import asdict, replace

import numpy as np
import torch
import torch.nn.functional as F

from parity.base.weights import load_weights
from parity.embedded.tokenizer import PREFIX, token_ids
from parity.models.discrete.llamagen import LlamaGenConfig, Transformer
from parity.models.discrete.t5 import left_pad, t5_encoder
from parity.training.data import TOKENS_TESTED, pictures, scene_tokens
from parity.training.recipe import UNCONDITIONAL, Job, Recipe

KIND = "discrete"
DATA = "scenes"
EXAMPLES = 48_000
READS = ("vq", "text")
RUN = {"llamagen": (6500, 32), "draft": (2000, 32), "llamagen8": (1500, 32)}  # steps, batch
CARDS = {
    "llamagen": "Autoregressive transformer: LlamaGen at small scale over the tokens of `vq`, captions through `t5`.",
    "draft": "Draft model of `llamagen`, for speculative sampling: the same architecture, smaller, over the"
    " same tokens and captions.",
    "llamagen8": "Autoregressive transformer over 8x8 tokens: `llamagen` in all but the grid, on pictures"
    " reduced to 32x32 by 2x2 means.",
}
CONFIG = LlamaGenConfig(vocab=1024, dim=192, layers=6, heads=3, grid=16, prefix=PREFIX, caption_dim=128, multiple_of=64)
CONFIGS = {
    "llamagen": CONFIG,
    "draft": replace(CONFIG, dim=96, layers=2, heads=2, multiple_of=32),  # over the same tokens
    "llamagen8": replace(CONFIG, grid=8),  # of pictures of half the size
}


def initialise(net: Transformer) -> None:
    """Small normal weights, smaller where a layer writes to the sum; all tokens as likely at first."""
    for name, p in net.named_parameters():
        if p.ndim > 1:
            writes = name.endswith(("wo.weight", "w2.weight"))
            torch.nn.init.normal_(p, std=0.02 / (2 * net.config.layers) ** 0.5 if writes else 0.02)
    torch.nn.init.zeros_(net.output.weight)


def recipe(job: Job) -> Recipe:
    """Its log: nats per token on training and held-out captions."""
    config = CONFIGS[job.name]
    ids, valid = token_ids(pictures(job)[0], PREFIX)
    tokens = scene_tokens(job, config.grid)
    test_ids, test_valid = token_ids(pictures(job, test=True)[0][:TOKENS_TESTED], PREFIX)
    test_tokens = scene_tokens(job, config.grid, test=True)
    torch.manual_seed(job.seed)
    net, t5 = Transformer(config), t5_encoder()
    # Frozen: trained along, at first against an image model that knows nothing, it forgets which colour is the ground's
    # (61 % of captions where it began with all).
    load_weights(t5.requires_grad_(False), job.weights("text"))
    initialise(net)
    compiled = torch.compile(lambda e, v, d, x: net(e, v, d, x))

    def nats(ids, valid, tokens, dropped, f):
        with torch.autocast("cpu", torch.bfloat16):
            with torch.no_grad():
                e, v = left_pad(t5(input_ids=ids, attention_mask=valid).last_hidden_state, valid)
            logits = f(e.float(), v, dropped, tokens[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten())

    def loss(step, rng):
        rows = torch.from_numpy(rng.integers(0, len(tokens), job.batch))
        dropped = torch.from_numpy(rng.random(job.batch) < UNCONDITIONAL)
        return nats(ids[rows], valid[rows], tokens[rows], dropped, compiled), {}

    def held_out():
        captioned = torch.zeros(64, dtype=torch.bool)
        parts = zip(*(x.split(64) for x in (test_ids, test_valid, test_tokens)), strict=True)
        return float(np.mean([nats(*part, captioned, net).item() for part in parts]))

    header = asdict(config)
    return Recipe(net, loss, lambda: ({}, header), (3,), peak=2e-3, hidden=r"^layers\.", held_out=held_out)
