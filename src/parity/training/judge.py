"""Recipe of the embedded judge: a small GPT-2 over the same words, from left to right. It scores what others write."""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

from parity.embedded import stories
from parity.training.data import texts
from parity.training.recipe import Job, Recipe

KIND = "anysubset"
DATA = "texts"
EXAMPLES = 30_000
RUN = {"judge": (600, 16)}  # steps, batch
CARDS = {
    "judge": "Judge of generative perplexity: transformers' GPT-2 at small scale over the same words (recipe `judge`).",
}


def gpt2(vocab: int, length: int = stories.LENGTH + 1) -> GPT2LMHeadModel:
    """No dropout; the first input is the separator, hence one position more than a text has."""
    sizes: dict[str, Any] = {"vocab_size": vocab, "n_positions": length, "n_embd": 128, "n_layer": 3, "n_head": 4}
    sizes |= {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 1, "eos_token_id": 1}
    return GPT2LMHeadModel(GPT2Config(**sizes))


def recipe(job: Job) -> Recipe:
    """Its log: nats per word, in the end also on held-out texts."""
    tokens, test = texts(job), texts(job, test=True)
    torch.manual_seed(job.seed)
    words = stories.vocabulary()
    net = gpt2(len(words))

    def nats(rows: Tensor) -> Tensor:
        inputs = torch.cat([torch.ones_like(rows[:, :1]), rows[:, :-1]], 1)  # word 1 is the separator
        return F.cross_entropy(net(inputs).logits.flatten(0, 1).float(), rows.flatten())

    def loss(step, rng):
        rows = tokens[torch.from_numpy(rng.integers(0, job.examples, job.batch))]
        with torch.autocast("cpu", torch.bfloat16):
            return nats(rows), {}

    def finish():
        figures = {"held_out_nats": float(np.mean([nats(t).item() for t in test.split(32)]))}
        return figures, {"network": net.config.to_diff_dict(), "words": words, "mask": 0}

    return Recipe(net, loss, finish, stream=(8,), peak=2e-3, average=0.99)
