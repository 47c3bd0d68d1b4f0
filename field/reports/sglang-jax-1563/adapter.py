"""sglang-jax: the sampler's mask path, which is its default, on the tiny Llama's logits."""

import borrowed
import jax
import numpy as np
from case import load_logits
from jax import lax, random
from jax import numpy as jnp
from parity_certify.design import make_conditions

FOLDER = "python/sgl_jax/srt/layers/"
NAMES = ("_apply_min_p_filter", "multinomial", "multinomial_with_seed")
NAMES = (*NAMES, "top_k_top_p_min_p_sampling_from_probs_jax_with_mask")


def design(models):
    """Make the conditions of the default design."""
    masks = borrowed.load_module(f"{FOLDER}binary_search.py")
    scope = {"jax": jax, "jnp": jnp, "lax": lax, "random": random}
    scope |= {"topk_mask": masks.topk_mask, "topp_mask": masks.topp_mask}
    draw, logits = jax.jit(borrowed.functions(f"{FOLDER}sampler.py", *NAMES, **scope)[-1]), load_logits(models)

    def sample(prompts, seed, *, length, temperature=1.0, top_k=4, top_p=1.0, min_p=0.0, rows=None):
        """Draw all rows in one batch, without seeds of rows."""
        key, n = random.key(seed), len(prompts)
        common = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
        each = [common | own for own in rows or [{}] * n]
        heat, top_ks, top_ps, min_ps = (np.array([one[name] for one in each]) for name in common)
        out = np.array(prompts)
        for _ in range(length):
            key, now = random.split(key)
            places, needed = np.full(n, out.shape[1]), bool(min_ps.any())
            values = logits(out).astype(np.float32)
            args = (values, values, top_ks, top_ps, min_ps, places, heat[:, None], None, needed, now)
            out = np.concatenate([out, np.asarray(draw(args))[:, None]], 1)
        return out[:, prompts.shape[1] :]

    return make_conditions(sample, logits, vocab=4)
