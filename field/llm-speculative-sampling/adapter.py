"""LLMSpeculativeSampling: Google's and DeepMind's version, their whole loops on tables."""

from typing import Optional
from unittest import mock

import borrowed
import numpy as np
import torch
from parity_certify import Sampled

GAMMA = 2


def sampler(distribution, models, function, **options):
    """Make a sampler by their `function`, Google's or DeepMind's version; options: its keywords."""
    scope = {"torch": torch, "F": torch.nn.functional, "Optional": Optional, "BloomForCausalLM": type(None)}
    names = "top_k_top_p_filter", "norm_logits", "sample", "max_fn"
    scope |= dict(zip(names, borrowed.functions("sampling/utils.py", *names, **scope), strict=True))
    scope["KVCacheModel"] = borrowed.functions("sampling/kvcache_model.py", "KVCacheModel", print=ignore, **scope)[0]
    scope |= {"tqdm": mock.MagicMock()}
    (generate,) = borrowed.functions("sampling/speculative_sampling.py", function, **scope)

    def sample(prompts, seed):
        torch.manual_seed(seed)
        skip = prompts.shape[1]
        target = borrowed.TableModel(distribution.tables[0], skip, shift=1)
        draft = borrowed.TableModel(distribution.extra["draft"], skip, shift=1)
        rows = [
            generate(torch.tensor(row)[None] + 1, draft, target, distribution.length, GAMMA, **options)
            for row in prompts
        ]
        drawn = sum(row.shape[1] - skip for row in rows)
        tokens = np.stack([row[0, skip : skip + distribution.length].numpy() - 1 for row in rows])
        return Sampled(tokens, GAMMA * target.calls, drawn - target.calls)

    return sample


def ignore(*_):
    """Print nothing, in place of what they print at every pass."""
