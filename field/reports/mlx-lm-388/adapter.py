"""mlx-lm 0.26.3: `generate_step` with `make_sampler`, on the tiny Llama."""

from pathlib import Path

import mlx.core as mx
from case import load_logits
from mlx_lm import utils
from mlx_lm.generate import generate_step
from mlx_lm.sample_utils import (
    apply_top_k,
    apply_top_p,
    categorical_sampling,
    make_logits_processors,
    make_sampler,
)
from parity_certify.design import make_conditions


def design(models, mend=False):
    """Make the conditions of the default design, under the distribution that mlx-lm defines from 0.26.4 on: top-p of
    all tokens, then top-k, then the temperature; mend: top-k comes last here, too."""
    model = utils.load_model(Path(models) / "llama")[0]

    def sample(prompts, seed, *, length, temperature=1.0, top_k=0, top_p=0.0, min_p=0.0, repetition_penalty=1.0):
        """Draw one prompt a call."""
        mx.random.seed(seed)
        draw = make_sampler(temperature, top_p, min_p, top_k=top_k)
        if mend and top_k and top_p:
            draw = lambda x: categorical_sampling(apply_top_k(apply_top_p(x, top_p), top_k), temperature)  # noqa: E731
        common = {"max_tokens": length, "sampler": draw}
        common["logits_processors"] = make_logits_processors(repetition_penalty=repetition_penalty)
        return [[int(token) for token, _ in generate_step(mx.array(prompt), model, **common)] for prompt in prompts]

    return make_conditions(sample, load_logits(models), vocab=4, engine="mlx-lm")
