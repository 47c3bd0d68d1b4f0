"""mlx-lm 0.31.1: `speculative_generate_step` on a tiny Mamba, whose state it cannot roll back."""

from pathlib import Path

import mlx.core as mx
from case import load_logits
from mlx_lm import utils
from mlx_lm.generate import generate_step, speculative_generate_step
from mlx_lm.sample_utils import make_sampler
from parity_certify import Sampled
from parity_certify.design import make_conditions


def design(models, drafted=True):
    """Make the conditions of the default design."""
    model, draft = (utils.load_model(Path(models) / name)[0] for name in ("mamba", "mamba-assistant"))

    def sample(prompts, seed, *, length, drafts, temperature=1.0, top_k=0, top_p=0.0, min_p=0.0):
        """Draw one prompt a call; a draft that was not accepted is not counted."""
        mx.random.seed(seed)
        common = {"max_tokens": length, "sampler": make_sampler(temperature, top_p, min_p, top_k=top_k)}
        if not drafted:
            return [[int(token) for token, _ in generate_step(mx.array(prompt), model, **common)] for prompt in prompts]
        step, common["num_draft_tokens"] = speculative_generate_step, drafts
        drawn = [list(step(mx.array(prompt), model, draft, **common)) for prompt in prompts]
        accepted = sum(from_draft for row in drawn for _, _, from_draft in row)
        return Sampled([[int(token) for token, _, _ in row] for row in drawn], drafts * len(drawn), accepted)

    return make_conditions(sample, load_logits(models, name="mamba"), vocab=4)
