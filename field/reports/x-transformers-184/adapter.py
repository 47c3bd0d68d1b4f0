"""x-transformers 1.16.15: `AutoregressiveWrapper.generate`, with the tiny Llama's logits in place of a network."""

import numpy as np
import torch
from case import load_logits
from parity_certify.design import DESIGN, PAIR, make_conditions
from x_transformers import autoregressive_wrapper as filters


class Net(torch.nn.Module):
    """The logits at all places, of which the wrapper reads the last."""

    max_seq_len = 64

    def __init__(self, logits):
        super().__init__()
        self.logits = logits

    def forward(self, tokens):
        return torch.from_numpy(self.logits(tokens.numpy())).float()[:, None]


def design(models, kept=False):
    """Make the conditions of the default design; kept: hand over 1 - p, the share that this version keeps. Its filter
    is one function, before the temperature; top-k is a share of the vocabulary."""
    logits = load_logits(models)
    wrapper = filters.AutoregressiveWrapper(Net(logits))

    def sample(prompts, seed, *, length, temperature=1.0, top_k=4, top_p=1.0):
        """Draw all rows in one call."""
        torch.manual_seed(seed)
        common = {"filter_logits_fn": filters.top_k, "filter_thres": 1 - top_k / 4}
        if top_p < 1:
            common = {"filter_logits_fn": filters.top_p, "filter_thres": 1 - top_p if kept else top_p}
        return wrapper.generate(torch.from_numpy(np.asarray(prompts)), length, temperature=temperature, **common)

    apart = [options for options in DESIGN if not set(options) >= PAIR]
    order = ["top_k", "top_p", "temperature"]
    return make_conditions(sample, logits, vocab=4, engine=order, design=apart)
