"""mesh-transformer-jax before its top-k was fixed: `nucleaus_sample`, on the tiny Llama's logits."""

import borrowed
import jax
import jax.numpy as jnp
from case import load_logits
from parity_certify.design import make_conditions

NAMES = "softmax_sample", "nucleaus_filter", "nucleaus_sample"


def design(models, top_k=True):
    """Make the conditions of the default design; not top_k: without that option. Where it is fixed, it still never
    leaves out token 0."""
    draw = borrowed.functions("mesh_transformer/sampling.py", *NAMES, jax=jax, jnp=jnp)[2]
    logits = load_logits(models)

    def sample(prompts, seed, *, length, temperature=1.0, top_p=1.0, **more):
        """Draw all rows in one call a token."""
        keys = iter(jax.random.split(jax.random.key(seed), length))

        def step(values, tokens):
            """Draw the next token of each row."""
            return draw(next(keys), jnp.asarray(values), None, top_p, temperature, more.get("top_k"))[0]

        return borrowed.draw_rows(step, logits, prompts, length)

    def sample_whole(prompts, seed, *, length, temperature=1.0, top_p=1.0):
        return sample(prompts, seed, length=length, temperature=temperature, top_p=top_p)

    def sample_filtered(prompts, seed, *, length, temperature=1.0, top_p=1.0, top_k=None):
        return sample(prompts, seed, length=length, temperature=temperature, top_p=top_p, top_k=top_k)

    order = ["top_p", "top_k", "temperature"]
    return make_conditions(sample_filtered if top_k else sample_whole, logits, vocab=4, engine=order)
