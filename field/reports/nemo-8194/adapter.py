"""nemo_toolkit 1.22.0: `repetition_penalty` and `top_k_logits` as its text generation calls them, on the tiny Llama's
logits."""

import borrowed
import numpy as np
import torch
from case import load_logits
from parity_certify.design import make_conditions

FILE = "nemo/collections/nlp/modules/common/text_generation_utils.py"
FAULT = "logits_update / repetition_penalty"
MEND = {FAULT: f"torch.where(logits_update < 0, logits_update * repetition_penalty, {FAULT})"}


def design(models, mend=False):
    """Make the conditions of the default design; the penalty reads prompt and output, after the temperature."""
    scope = {"np": np, "torch": torch, "F": torch.nn.functional}
    names = "repetition_penalty", "top_k_logits"
    penalise, cut = borrowed.functions(FILE, *names, replace=MEND if mend else {}, **scope)
    logits = load_logits(models)

    def sample(prompts, seed, *, length, temperature=1.0, top_k=0, top_p=0.0, repetition_penalty=1.0):
        """Draw all rows in one batch."""
        torch.manual_seed(seed)

        def step(values, tokens):
            """Draw the next token of each row."""
            x = penalise(torch.from_numpy(values).float() / temperature, repetition_penalty, torch.from_numpy(tokens))
            return torch.multinomial(cut(x, top_k=top_k, top_p=top_p).softmax(-1), 1)

        return borrowed.draw_rows(step, logits, prompts, length)

    order = ["temperature", "repetition_penalty", "top_k", "top_p"]
    return make_conditions(sample, logits, vocab=4, engine=order)
