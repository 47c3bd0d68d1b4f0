"""minGPT, its first commit: `sample` with `top_k_logits`, with the tiny Llama's logits in place of a network."""

import borrowed
import numpy as np
import torch
from case import load_logits
from parity_certify.design import make_conditions

MEND = {"= 1e-10": "= -1e10"}


class Model:
    """A network of theirs: logits [n, t, V], of which `sample` reads the last."""

    def __init__(self, logits):
        self.logits = logits

    def get_block_size(self):
        return 64

    def eval(self):
        pass

    def __call__(self, tokens):
        return torch.from_numpy(self.logits(tokens.numpy())).float()[:, None], None


def design(models, mend=False):
    """Make the conditions of the default design."""
    scope = {"torch": torch, "F": torch.nn.functional}
    draw = borrowed.functions("mingpt/utils.py", "top_k_logits", "sample", replace=MEND if mend else {}, **scope)[1]
    logits = load_logits(models)

    def sample(prompts, seed, *, length, temperature=1.0, top_k=None):
        """Draw all rows in one call."""
        torch.manual_seed(seed)
        tokens = torch.from_numpy(np.asarray(prompts))
        return draw(Model(logits), tokens, length, temperature, True, top_k)[:, prompts.shape[1] :]

    return make_conditions(sample, logits, vocab=4)
