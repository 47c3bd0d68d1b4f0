"""jaymody/speculative-sampling: their loops in numpy, on tables in place of GPT-2."""

import functools
from unittest import mock

import borrowed
import numpy as np
from parity_certify import Sampled
from parity_certify.distributions import random_distribution

GAMMA = 2
NAMES = "max_fn", "sample", "create_model_fn", "autoregressive_sampling", "speculative_sampling"


def softmax(logits):
    """Compute distributions [n, V], as picoGPT does."""
    e = np.exp(logits - logits.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def sampler(distribution, models, function="speculative_sampling", temperature=1.0):
    """Make a sampler by their `function`; a table stands in place of `gpt2`, with logits [n, V] of n tokens."""
    skip, calls = distribution.prompts.shape[1], []
    raw = random_distribution(distribution.vocab, distribution.length)  # the distribution before the temperature

    def compute_logits(tokens, table, n_head):
        calls.append(len(tokens))
        ends = [tokens[None, skip : max(end, skip)] for end in range(1, len(tokens) + 1)]
        return np.log(np.concatenate([borrowed.look_up_distributions(table, prefix) for prefix in ends]))

    scope = {"np": np, "functools": functools, "gpt2": compute_logits, "softmax": softmax, "tqdm": mock.MagicMock()}
    loops = dict(zip(NAMES, borrowed.functions("main.py", *NAMES, **scope), strict=True))
    target, draft = (
        loops["create_model_fn"]({"table": table}, {"n_head": 1}, temperature)
        for table in (raw.tables[0], raw.extra["draft"])
    )
    is_plain = function == "autoregressive_sampling"

    def sample(prompts, seed):
        np.random.seed(seed)
        calls.clear()
        settings = {"model": target} if is_plain else {"draft_model": draft, "target_model": target, "K": GAMMA}
        rows = [loops[function](row, N=distribution.length, **settings) for row in prompts]
        tokens = np.stack([row[skip : skip + distribution.length] for row in rows])
        if is_plain:
            return tokens
        rounds = len(calls) // (GAMMA + 1)
        return Sampled(tokens, GAMMA * rounds, sum(len(row) - skip for row in rows) - rounds)

    return sample
