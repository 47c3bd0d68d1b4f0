"""jaymody/speculative-sampling before its PR 4: the loop in numpy, on the tiny Llama's logits in place of GPT-2."""

from unittest import mock

import borrowed
import numpy as np
from case import load_logits
from parity_certify.design import make_conditions
from parity_certify.processors import softmax

NAMES = "max_fn", "sample", "speculative_sampling"


def design(models):
    """Make the conditions of the default design; their functions take no option but the drafts of a round."""
    loop = borrowed.functions("main.py", *NAMES, np=np, tqdm=mock.MagicMock())[-1]
    target, draft = load_logits(models), load_logits(models, "draft_logits")

    def make_model(logits, start, length):
        """Make their model: the distribution after each prefix of tokens [n]; theirs reads those of the prompt on."""

        def model(tokens):
            distributions = np.full((len(tokens), 4), 0.25)
            for end in range(start, min(len(tokens), start + length - 1) + 1):
                distributions[end - 1] = softmax(logits(tokens[None, :end]))[0]
            return distributions

        return model

    def sample(prompts, seed, *, length, drafts):
        """Draw one prompt a call; their loop may draw more tokens than it is asked for."""
        np.random.seed(seed)
        start = prompts.shape[1]
        models = {"draft_model": make_model(draft, start, length), "target_model": make_model(target, start, length)}
        rows = [loop(prompt, N=length, K=drafts, **models) for prompt in prompts]
        return np.stack([row[start : start + length] for row in rows])

    return make_conditions(sample, target, vocab=4)
