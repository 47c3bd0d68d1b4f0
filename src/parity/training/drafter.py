"""Recipe of the embedded EAGLE drafter: one layer that learns to continue the trained target's features."""

from dataclasses import asdict

import torch
import torch.nn.functional as F

from parity.base.weights import load_weights, network, sha256
from parity.embedded.tokenizer import PREFIX, token_ids
from parity.models.discrete.llamagen import FeatureDrafter, LlamaGenConfig, Transformer
from parity.models.discrete.t5 import left_pad, t5_encoder
from parity.training.data import pictures, scene_tokens
from parity.training.recipe import UNCONDITIONAL, Job, Recipe

KIND = "discrete"
DATA = "scenes"
EXAMPLES = 48_000
READS = ("vq", "text", "llamagen")
RUN = {"drafter": (500, 32)}  # steps, batch
CARDS = {
    "drafter": "EAGLE drafter of `llamagen`: one layer that continues its features; the header names the"
    " target by its SHA-256.",
}
UNROLLED = 2  # how often it reads its own features in training; for a tree it does at every level but the first


def recipe(job: Job) -> Recipe:
    """Its log: how often its likeliest token is the target's, by how many of its own features it has read."""
    target = network(Transformer, LlamaGenConfig, job.weights("llamagen")).requires_grad_(False)
    config, t5 = target.config, t5_encoder().eval().requires_grad_(False)
    load_weights(t5, job.weights("text"))
    tokens, (ids, valid) = scene_tokens(job, config.grid), token_ids(pictures(job)[0], PREFIX)
    torch.manual_seed(job.seed)
    drafter = FeatureDrafter(config)
    L = config.grid**2 - 1
    table = target.table[None, config.prefix : config.prefix + L]
    mask = torch.ones(L, L, dtype=torch.bool).tril()[None, None]

    def truth(rows, rng):
        """The target's features [B, L + 1, dim] and law [B, L, V] of pictures, some of them without their captions."""
        e, v = left_pad(t5(input_ids=ids[rows], attention_mask=valid[rows]).last_hidden_state, valid[rows])
        dropped = torch.from_numpy(rng.random(job.batch) < UNCONDITIONAL)
        features = target.features(e.float(), v, dropped, tokens[rows, :-1])
        return features, target.output(features[:, 1:]).float().softmax(-1)

    @torch.autocast("cpu", torch.bfloat16)
    def loss(step, rng):
        rows = torch.from_numpy(rng.integers(0, len(tokens), job.batch))
        with torch.no_grad():
            true, law = truth(rows, rng)
        embeddings, features, value, figures = target.tok_embeddings(tokens[rows, :-1]), true[:, :-1], 0.0, {}
        for n in range(UNROLLED):
            guessed = drafter(embeddings, features, table, mask)
            logits = target.output(guessed).float()
            nats = F.cross_entropy(logits.flatten(0, 1), law.flatten(0, 1))
            value = value + nats + F.smooth_l1_loss(guessed.float(), true[:, 1:].float())
            figures[f"agree_{n}"] = (logits.argmax(-1) == law.argmax(-1)).float().mean().item()
            features = torch.cat([true[:, :1], guessed[:, :-1].detach()], 1)
        return value, figures

    header = asdict(config) | {"target": sha256(job.weights("llamagen"))}
    return Recipe(drafter, loss, lambda: ({}, header), stream=(5,), peak=2e-3, average=0.0, hidden=r"^layer\.")
