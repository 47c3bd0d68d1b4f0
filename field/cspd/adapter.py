"""CSpD: one call of `DistributionProcessor` on Gaussians, whose values are cut into four intervals."""

import math

import borrowed
import numpy as np
import torch
from parity_certify import Distribution, Sampled
from scipy.special import ndtri

TARGET, DRAFT = (0.0, 1.0), (-0.5, 0.8)  # means and standard deviations
SHARES = np.array([0.4, 0.3, 0.2, 0.1])  # of the target in each interval


def distribution(case, models):
    """Make the distribution of three independent intervals."""
    return Distribution("Gaussian", np.zeros((1, 1), dtype=int), np.tile(SHARES, (1, 21, 1)), 3)


def sampler(distribution, models, temperature=42.0, mend=False):
    """Make a sampler of intervals by their `speculative_sample`; mend: the same, at another
    inner temperature."""
    (processor_of,) = borrowed.functions(
        "spec_decode/spec_decode_runner.py", "DistributionProcessor", torch=torch, math=math
    )
    edges = torch.tensor(ndtri(SHARES.cumsum()[:-1])).float()

    def sample(prompts, seed):
        torch.manual_seed(seed)
        n = len(prompts) * distribution.length
        full = [torch.full((n, 1), x) for x in (*DRAFT, 0.0, *TARGET, 0.0)]  # mean, deviation, log variance of each
        drafts = full[0] + full[1] * torch.randn(n, 1)
        values = processor_of(*full, dim=1, temperature=temperature).speculative_sample(drafts)
        tokens = torch.bucketize(values, edges).reshape(-1, distribution.length).numpy()
        return Sampled(tokens, n, int((values == drafts).sum()))

    return sample
