"""shreyansh26/Speculative-Sampling: the whole loop, on tables in place of the two networks."""

import borrowed
import numpy as np
import torch
from parity_certify import Sampled
from parity_certify.distributions import random_distribution

GAMMA = 2
NAMES = "get_distribution", "sample", "sample_from_draft_model"


def sampler(distribution, models, temperature=1.0):
    """Make a sampler by their `speculative_sampling`."""
    scope = {"torch": torch}
    scope |= dict(zip(NAMES, borrowed.functions("utils.py", *NAMES, **scope), strict=True))
    (generate,) = borrowed.functions("speculative_sampling.py", "speculative_sampling", **scope)
    raw = random_distribution(distribution.vocab, distribution.length)  # the distribution before the temperature

    def sample(prompts, seed):
        torch.manual_seed(seed)
        skip = prompts.shape[1]
        target, draft = (borrowed.TableModel(table, skip) for table in (raw.tables[0], raw.extra["draft"]))
        settings = {
            "target_len": skip + distribution.length,
            "lookahead": GAMMA,
            "temperature": temperature,
            "debug": False,
        }
        rows = [generate(target, draft, torch.tensor(row)[None], tokenizer=None, **settings)[0] for row in prompts]
        tokens = np.stack([row[skip : skip + distribution.length].numpy() for row in rows])
        return Sampled(tokens, GAMMA * target.calls, sum(len(row) - skip for row in rows) - target.calls)

    return sample
