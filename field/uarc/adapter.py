"""UARC: its greedy speculative engine on tables; the prompt is the first token of the table's text."""

import borrowed
import numpy as np
import torch
from parity_certify import Distribution, Sampled
from parity_certify.distributions import random_distribution
from uarc.scheduling.eads_engine import EADSSpeculativeEngine

LENGTH = 4


class Table(borrowed.TableModel):
    """A table that is asked to evaluate, as a module is."""

    def eval(self):
        """Do nothing."""


def distribution(case, models):
    """Compute the distribution of greedy decoding after each prompt of one token, the first of the table's text."""
    table, V = random_distribution(4, LENGTH + 1).tables[0], 4
    prompts = np.arange(V)[:, None]
    tables = []
    for first in range(V):
        levels = []
        for length in range(LENGTH):
            codes = first * V**length + np.arange(V**length)
            levels.append(np.eye(V)[table[(V ** (length + 1) - 1) // (V - 1) + codes].argmax(-1)])
        tables.append(np.concatenate(levels))
    return Distribution("a table, greedy", prompts, np.stack(tables), LENGTH)


def sampler(distribution, models):
    """Make a sampler by their engine."""
    tables = random_distribution(4, LENGTH + 1)
    near = (tables.tables[0] + tables.extra["draft"]) / 2  # a draft whose first choice is often the target's
    target, draft = Table(tables.tables[0], 0), Table(near, 0)
    engine = EADSSpeculativeEngine(target, draft)

    def sample(prompts, seed):
        before = engine.scheduler.stats()
        rows = [engine.generate(torch.tensor(row)[None], LENGTH)[0, 1:].numpy() for row in prompts]
        after = engine.scheduler.stats()
        counts = [after[k] - before[k] for k in ("total_drafted_tokens", "total_accepted_tokens")]
        return Sampled(np.stack(rows), *counts)

    return sample
