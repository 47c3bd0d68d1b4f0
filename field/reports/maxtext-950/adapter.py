"""maxtext: `sampling` of its inference, on the tiny Llama's logits."""

import borrowed
import jax
import jax.numpy as jnp
from case import load_logits
from parity_certify.design import DESIGN, PAIR, make_conditions

NAMES = "sample_nucleus_topp_logits", "sample_topk_logits", "sampling"


def design(models):
    """Make the conditions of the default design; it applies top-p or top-k, before the temperature."""
    draw = borrowed.functions("MaxText/inference_utils.py", *NAMES, jax=jax, jnp=jnp, NEG_INF=-1e7)[2]
    logits = load_logits(models)

    def sample(prompts, seed, *, length, temperature=1.0, top_k=0, top_p=0.0):
        """Draw all rows in one call a token."""
        keys = iter(jax.random.split(jax.random.key(seed), length))
        algorithm = "nucleus" if top_p else "topk" if top_k else "weighted"

        def step(values, tokens):
            """Draw the next token of each row."""
            return draw(jnp.asarray(values), next(keys), algorithm, top_k, top_p, temperature)

        return borrowed.draw_rows(step, logits, prompts, length)

    apart = [options for options in DESIGN if not set(options) >= PAIR]
    return make_conditions(sample, logits, vocab=4, engine=["top_k", "top_p", "temperature"], design=apart)
