"""esm 3.2.1: `sample_logits`, on the tiny Llama's logits."""

import borrowed
import torch
from case import load_logits
from parity_certify.design import make_conditions

MEND = {"cumsum_logits <= top_p[:, None]": "cumsum_logits - sorted_logits.softmax(-1) < top_p[:, None]"}


def design(models, mend=False):
    """Make the conditions of the default design; filters come before the temperature."""
    names, scope = ("_tensorize_like", "top_p_logits", "sample_logits"), {"torch": torch, "F": torch.nn.functional}
    draw = borrowed.functions("esm/utils/sampling.py", *names, replace=MEND if mend else {}, **scope)[2]
    logits = load_logits(models)

    def sample(prompts, seed, *, length, temperature=1.0, top_p=1.0):
        """Draw all rows in one batch."""
        torch.manual_seed(seed)

        def step(values, tokens):
            """Draw the next token of each row."""
            return draw(torch.from_numpy(values).float(), temperature, list(range(4)), top_p)

        return borrowed.draw_rows(step, logits, prompts, length)

    return make_conditions(sample, logits, vocab=4, engine=["top_p", "temperature"])
