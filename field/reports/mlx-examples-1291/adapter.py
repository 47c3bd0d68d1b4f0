"""mlx-lm 0.21.4: `speculative_generate_step` on the tiny Llama and its draft model; `generate_step` without drafts."""

from pathlib import Path

import mlx.core as mx
from case import load_logits
from mlx_lm import utils
from mlx_lm.sample_utils import make_logits_processors, make_sampler
from parity_certify.design import DESIGN, PAIR, make_conditions


def design(models, drafted=True):
    """Make the conditions of the default design. This version does not say which tokens were drafted."""
    model, draft = (utils.load_model(Path(models) / name)[0] for name in ("llama", "llama-assistant"))

    def sample(
        prompts, seed, *, length, drafts, temperature=1.0, top_k=0, top_p=0.0, min_p=0.0, repetition_penalty=1.0
    ):
        """Draw one prompt a call."""
        mx.random.seed(seed)
        common = {"max_tokens": length, "sampler": make_sampler(temperature, top_p, min_p, top_k=top_k)}
        common["logits_processors"] = make_logits_processors(repetition_penalty=repetition_penalty)

        def step(prompt):
            """Start the generator of a prompt's tokens."""
            if not drafted:
                return utils.generate_step(prompt, model, **common)
            return utils.speculative_generate_step(prompt, model, draft, num_draft_tokens=drafts, **common)

        return [[int(token) for token, _ in step(mx.array(prompt))] for prompt in prompts]

    apart = [options for options in DESIGN if not set(options) >= PAIR]  # where there is a top-p it has no top-k
    conditions, missing = make_conditions(sample, load_logits(models), vocab=4, engine="mlx-lm", design=apart)
    return conditions, missing | {"top_k with top_p": "the engine applies one of them"}
