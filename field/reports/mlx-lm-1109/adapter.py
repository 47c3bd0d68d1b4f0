"""mlx-lm 0.31.1: `speculative_generate_step` on a tiny Mamba, whose state it cannot roll back."""

from pathlib import Path

import mlx.core as mx
from case import load_logits
from mlx_lm import utils
from mlx_lm.generate import generate_step, speculative_generate_step
from mlx_lm.sample_utils import make_sampler
from parity_certify.design import make_conditions


def design(models, drafted=True):
    """Make the conditions of the default design."""
    model, draft = (utils.load_model(Path(models) / name)[0] for name in ("mamba", "mamba-assistant"))

    def sample(prompts, seed, *, length, drafts, temperature=1.0, top_k=0, top_p=0.0, min_p=0.0):
        """Draw one prompt a call."""
        mx.random.seed(seed)
        common = {"max_tokens": length, "sampler": make_sampler(temperature, top_p, min_p, top_k=top_k)}

        def step(prompt):
            """Start the generator of a prompt's tokens."""
            if not drafted:
                return generate_step(prompt, model, **common)
            return speculative_generate_step(prompt, model, draft, num_draft_tokens=drafts, **common)

        return [[int(token) for token, *_ in step(mx.array(prompt))] for prompt in prompts]

    return make_conditions(sample, load_logits(models, name="mamba"), vocab=4, engine="mlx-lm")
