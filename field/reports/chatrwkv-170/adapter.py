"""rwkv 0.8.12: `PIPELINE.sample_logits`, on the tiny Llama's logits."""

import borrowed
import numpy as np
import torch
from case import load_logits
from parity_certify.design import make_conditions


def design(models, whole=1.0):
    """Make the conditions of the default design; whole: the top-p that is handed over where none is set."""
    scope = {"np": np, "torch": torch, "F": torch.nn.functional}
    (draw,) = borrowed.functions("rwkv/utils.py", "sample_logits", **scope)
    logits = load_logits(models)

    def sample(prompts, seed, *, length, temperature=1.0, top_k=0, top_p=None):
        """Draw one row a call."""
        np.random.seed(seed)
        p = whole if top_p is None else top_p

        def step(values, tokens):
            """Draw the next token of each row."""
            return [draw(None, row, temperature, p, top_k) for row in torch.from_numpy(values).float()]

        return borrowed.draw_rows(step, logits, prompts, length)

    return make_conditions(sample, logits, vocab=4, engine=["top_p", "top_k", "temperature"])
