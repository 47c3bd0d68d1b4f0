"""A correct speculative sampler of Gaussian mixtures, and its faults."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Literal, get_args

import numpy as np

from parity.equality.faults import Trial
from parity.equality.mixtures import continuous_rows
from parity.equality.rows import Row
from parity.models.continuous.tabular import Mixture, exact_sampler, random_mixture

Fault = Literal[
    "none", "residual p", "accept +0.05", "shared uniform", "draft temperature", "bonus from q", "square-root ratio",
    "never rejects",
]  # fmt: skip


def speculative(
    model: Mixture, rows: int, rng: np.random.Generator, *, block: int = 2, draft_seed: int = 1, fault: Fault = "none"
) -> np.ndarray:
    """Speculative sampling with densities, [rows, L, D]: accept a draft with probability min(1, p/q), else draw from
    the residual max(0, p - q) by rejection from p. A run of `block` accepted drafts is followed by one token from p.

    The faults: the residual replaced by p, as continuous decoders do for want of a sampler; 0.05 added to the
    acceptance; one uniform for the block; drafts at 0.8 of the scale that q records; the bonus token from q;
    acceptance by sqrt(p/q); all drafts kept.
    """
    K, L, D = model.means.shape
    draft = random_mixture(np.random.default_rng(draft_seed), K, L, D)
    x, run, u = np.empty((rows, 0, D)), np.zeros(rows, int), rng.random(rows)
    for _ in range(L):
        y = draft.draw(x, rng, 0.8 if fault == "draft temperature" else 1.0)
        p, q = model.density(x, y), draft.density(x, y)
        fresh = rng.random(rows)
        u = np.where(run > 0, u, fresh) if fault == "shared uniform" else fresh
        ratio = np.sqrt(p / q) if fault == "square-root ratio" else p / q
        accepted = (u < ratio + (0.05 if fault == "accept +0.05" else 0.0)) | (fault == "never rejects")
        bonus = run == block
        token = np.where(accepted[:, None], y, np.nan)
        token[bonus] = (draft if fault == "bonus from q" else model).draw(x[bonus], rng)
        waiting = np.flatnonzero(~accepted & ~bonus)
        while len(waiting):
            z = model.draw(x[waiting], rng)
            p, q = model.density(x[waiting], z), draft.density(x[waiting], z)
            keep = (rng.random(len(waiting)) * p < p - q) | (fault == "residual p")
            token[waiting[keep]] = z[keep]
            waiting = waiting[~keep]
        run = np.where(accepted & ~bonus, run + 1, 0)
        x = np.concatenate([x, token[:, None]], 1)
    return x


VARIANTS: dict[str, tuple[Callable[..., np.ndarray], str]] = {  # the sampler, and its fault
    "exact sampling": (exact_sampler, "none"),
    **{f"speculative: {f}": (partial(speculative, fault=f), f) for f in get_args(Fault)},
}


def trials(n: int, seeds: Sequence[int], draws: int = 1999, threads: int = 1) -> Iterator[Trial]:
    """Every variant on a mixture of three tokens of one number, and of two."""

    def sample(decoder: Callable[..., np.ndarray], D: int, bins: int, seed: int) -> list[Row]:
        model, rng = random_mixture(np.random.default_rng(0), 3, 3, D), np.random.default_rng([seed, D])
        drawn, name = decoder(model, n, rng), f"mixture 3 x {D}-D"
        return continuous_rows(drawn, model, rng=rng, model_name=name, bins=bins, draws=draws)

    for (D, bins), (method, (decoder, fault)) in itertools.product(((1, 4), (2, 2)), VARIANTS.items()):
        yield Trial(method, fault, partial(sample, decoder, D, bins))
