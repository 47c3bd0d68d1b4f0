"""Layer 5a, continuous tokens: an analytic target, a correct speculative decoder, its mutants, and the tests for any sampler of it.

    continuous_rows(samples, model, rng=..., model_name=..., method=...) -> rows      samples [n, L, D] of any decoder
    continuous(n=20_000, seeds=[0, 1]) -> rows                                        the reference decoder, exact sampling and mutants

The target is a Gaussian mixture over L tokens of D coordinates, diagonal within a component: every conditional is a mixture with known
density and CDF, while the components tie the coordinates together. Its Rosenblatt transform u_j = F(x_j | x_<j) maps the target to the
uniform law on the cube of L D sides. So, besides Kolmogorov-Smirnov on each u_j and an energy test against fresh exact samples, the
cube is cut into `bins` equal parts a side, which makes a sample a sequence of L D tokens whose exact joint is uniform: the discrete
statistics and the TV certificate apply as they stand (the certificate is that of the binned law, a lower resolution).

A decoder here is decoder(model, rows, rng, **options) -> samples [rows, L, D], rng numpy's.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from scipy import spatial, special, stats

from parity.equality import counts as discrete
from parity.equality import rows as R
from parity.equality.rows import Row

Sampler = Callable[..., np.ndarray]


class Mixture(NamedTuple):
    """weights [K], means and scales [K, L, D]."""

    weights: np.ndarray
    means: np.ndarray
    scales: np.ndarray

    def posterior(self, prefix: np.ndarray) -> np.ndarray:
        """Weights [n, K] of the components given the tokens so far, prefix [n, i, D]."""
        i = prefix.shape[1]
        z = (prefix[:, None] - self.means[:, :i]) / self.scales[:, :i]
        log = np.log(self.weights) - (0.5 * z * z + np.log(self.scales[:, :i])).sum((-2, -1))
        return special.softmax(log, axis=1)

    def draw(self, prefix: np.ndarray, rng: np.random.Generator, temperature: float = 1.0) -> np.ndarray:
        """One token [n, D] for each prefix [n, i, D]: a component, then its normal (scale times `temperature`)."""
        w = self.posterior(prefix)
        k = (rng.random((len(w), 1)) > w.cumsum(1)).sum(1).clip(max=w.shape[1] - 1)
        i = prefix.shape[1]
        return self.means[k, i] + temperature * self.scales[k, i] * rng.standard_normal((len(w), self.means.shape[2]))

    def density(self, prefix: np.ndarray, x: np.ndarray) -> np.ndarray:
        """p(x | prefix) [n] of one token x [n, D]."""
        i = prefix.shape[1]
        return (self.posterior(prefix) * stats.norm.pdf(x[:, None], self.means[:, i], self.scales[:, i]).prod(-1)).sum(
            1
        )

    def rosenblatt(self, x: np.ndarray) -> np.ndarray:
        """u [n, L D] of samples x [n, L, D]: each coordinate's CDF given the coordinates before it."""
        n, L, D = x.shape
        flat, means, scales = x.reshape(n, L * D), self.means.reshape(-1, L * D), self.scales.reshape(-1, L * D)
        log, u = np.tile(np.log(self.weights), (n, 1)), np.empty((n, L * D))
        for j in range(L * D):
            u[:, j] = (
                special.softmax(log, axis=1) * stats.norm.cdf(flat[:, j : j + 1], means[:, j], scales[:, j])
            ).sum(1)
            log += stats.norm.logpdf(flat[:, j : j + 1], means[:, j], scales[:, j])
        return u.clip(0, 1)


def random_mixture(rng: np.random.Generator, components: int = 3, length: int = 3, dimensions: int = 1) -> Mixture:
    """Overlapping components: centres of spread 1, scales between 0.5 and 1."""
    shape = (components, length, dimensions)
    return Mixture(rng.dirichlet(np.full(components, 5.0)), rng.standard_normal(shape), rng.uniform(0.5, 1.0, shape))


def exact_sampler(model: Mixture, rows: int, rng: np.random.Generator) -> np.ndarray:
    """Plain autoregressive sampling, [rows, L, D]."""
    x = np.empty((rows, 0, model.means.shape[2]))
    for _ in range(model.means.shape[1]):
        x = np.concatenate([x, model.draw(x, rng)[:, None]], 1)
    return x


Fault = Literal[
    "none", "residual p", "accept +0.05", "shared uniform", "draft temperature", "bonus from q", "square-root ratio", "never rejects"
]  # fmt: skip


def speculative(
    model: Mixture, rows: int, rng: np.random.Generator, *, block: int = 2, draft_seed: int = 1, fault: Fault = "none"
) -> np.ndarray:
    """Speculative sampling with densities: accept a draft with probability min(1, p/q), else draw from the residual max(0, p - q) by
    rejection from p; after `block` accepted drafts one token comes from p. Samples [rows, L, D].

    The faults: the residual replaced by p, as continuous decoders do for want of a sampler; 0.05 added to the acceptance; one uniform
    for the block; drafts at 0.8 of the scale that q records; the bonus token from q; acceptance by sqrt(p/q); all drafts kept.
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
            keep = rng.random(len(waiting)) * model.density(x[waiting], z) < model.density(
                x[waiting], z
            ) - draft.density(x[waiting], z)
            keep |= fault == "residual p"
            token[waiting[keep]] = z[keep]
            waiting = waiting[~keep]
        run = np.where(accepted & ~bonus, run + 1, 0)
        x = np.concatenate([x, token[:, None]], 1)
    return x


def energy_p(x: np.ndarray, y: np.ndarray, rng: np.random.Generator, permutations: int = 199) -> tuple[float, float]:
    """Energy statistic of two unpaired samples [m, d] of one size, and its permutation p-value (here rows are independent: free
    permutation is right). A permutation is a vector of m signs + and m signs -, a quadratic form in one distance matrix."""
    m = len(x)
    distance = spatial.distance.squareform(spatial.distance.pdist(np.concatenate([x, y])))
    s = np.tile(np.repeat([1.0, -1.0], m), (1 + permutations, 1))
    s[1:] = rng.permuted(s[1:], axis=1)
    found = -((s @ distance) * s).sum(1) / m**2
    return float(found[0]), R.monte_carlo_p(found[0], found[1:])


def continuous_rows(
    samples: np.ndarray,
    model: Mixture,
    *,
    rng: np.random.Generator,
    model_name: str = "mixture",
    method: str = "",
    key: str = "",
    seed: int | None = None,
    repeat: int = 0,
    bins: int = 3,
    energy_n: int = 500,
    draws: int = 1999,
    layer: str = "continuous",
) -> list[Row]:
    """KS per coordinate of the Rosenblatt transform (Holm within, one row: the smallest), energy against fresh exact samples, and the
    discrete statistics of the binned transform. Holm over the three that decide. ValueError for a sample that is not finite."""
    n, L, D = samples.shape
    if not np.isfinite(samples).all():
        row, position = np.argwhere(~np.isfinite(samples))[0][:2]
        raise ValueError(f"model {model_name}, position {position}, row {row}: sample is not finite")
    place = {"model": model_name, "method": method, "key": key, "seed": seed, "repeat": repeat}
    if n < 1000:
        return [R.not_run(layer, t, n, "n >= 1000", **place) for t in ("KS of PIT", "energy", "all four")]
    u = model.rosenblatt(samples)
    ks = [
        stats.kstest(u[:, j], "uniform", method="asymp") for j in range(L * D)
    ]  # n >= 1000: the exact law is slow and the same
    first = int(np.argmin([k.pvalue for k in ks]))
    reach = float(
        stats.kstwobign.isf(R.ALPHA / (L * D)) / n**0.5
    )  # the distance that is rejected; one somewhat larger has power .8
    values = {"statistic": ks[first].statistic, "effect": ks[first].statistic, "minimum_detectable_effect": reach}
    found = [R.row(layer, "KS of PIT", n, p_value=R.holm([k.pvalue for k in ks]).min(), **values, **place)]
    m = min(energy_n, n)
    fresh = exact_sampler(model, m, rng)
    statistic, p = energy_p(samples[:m].reshape(m, -1), fresh.reshape(m, -1), rng)
    values = {"statistic": statistic, "effect": max(statistic, 0.0) ** 0.5}
    found.append(R.row(layer, "energy", m, p_value=p, **values, **place))
    cells = np.minimum((u * bins).astype(int), bins - 1) @ bins ** np.arange(L * D - 1, -1, -1)
    counts = np.bincount(cells, minlength=bins ** (L * D))
    uniform = np.full(len(counts), 1 / len(counts))
    found += discrete.joint_rows(layer, counts, uniform, bins, L * D, rng=rng, draws=draws, **place)
    R.family(r for r in found if r["decides"])
    return found


def variants() -> dict[str, tuple[Sampler, str]]:
    """The layer's decoders by name, with their fault ("none" for the two controls)."""
    found: dict[str, tuple[Sampler, str]] = {"exact sampling": (exact_sampler, "none")}
    return found | {f"speculative: {f}": (partial(speculative, fault=f), f) for f in get_args(Fault)}


def continuous(n: int = 20_000, seeds: Sequence[int] = (0, 1), draws: int = 1999, energy_n: int = 500) -> list[Row]:
    """Rows of every variant on two targets: three 1-D tokens and three 2-D tokens. Rejections and controls alike are run on every seed.

    as_required (on the `all four` row): a control is not rejected on every seed, a fault is on each (smallest p_holm of the layer).
    """
    found = []
    for D, L, bins in ((1, 3, 4), (2, 3, 2)):
        model, name = random_mixture(np.random.default_rng(0), 3, L, D), f"mixture {L} x {D}-D"
        for method, (decoder, fault) in variants().items():
            rows, hits = [], []
            for repeat, seed in enumerate(seeds):
                rng = np.random.default_rng([seed, D])
                place: dict[str, Any] = {
                    "model_name": name,
                    "method": method,
                    "key": fault,
                    "seed": seed,
                    "repeat": repeat,
                }
                rows += continuous_rows(
                    decoder(model, n, rng), model, rng=rng, bins=bins, energy_n=energy_n, draws=draws, **place
                )
                hits.append(any(r["verdict"] == "rejected" for r in rows if r["decides"] and r["repeat"] == repeat))
            required = not all(hits) if fault == "none" else all(hits)
            found += [r | {"as_required": required} if r["test"] == "all four" else r for r in rows]
    return found
