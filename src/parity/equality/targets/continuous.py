"""Gaussian mixtures over three tokens of one and of two numbers, a draft beside each: every conditional is known.

The Rosenblatt transform u_j = F(x_j | x_<j) maps a mixture of L tokens of D numbers (parity.models.continuous.tabular)
to the uniform law on the cube of L D sides. So, besides Kolmogorov-Smirnov on each u_j and an energy test against fresh
exact samples, the cube is cut into `bins` equal parts a side, which makes a sample a sequence of L D tokens whose exact
joint is uniform: the statistics of sequences and the TV certificate apply as they stand (the certificate is that of the
binned law, a lower resolution).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from parity_certify import result_rows as R
from parity_certify.joint_tests import joint_rows
from parity_certify.result_rows import Row
from scipy import spatial, stats

from parity.base.errors import ParityError
from parity.base.noise import counted_noise
from parity.decode.continuous import Drawn, record
from parity.equality.targets import Decoder, named
from parity.models.continuous.protocol import Pair, Start
from parity.models.continuous.tabular import Mixture, TabularMixture, exact_sampler, random_mixture

DRAWS = 4999
FAMILY = "all"


@dataclass(frozen=True)
class Target:
    """A mixture and the draft model's."""

    name: str
    law: Mixture
    draft: Mixture
    bins: int  # parts that each side of the unit cube is cut into
    steps: int = 1  # of the walks that draw it

    @property
    def length(self) -> int:
        return self.law.means.shape[1]

    def draw(
        self, decoder: Decoder, n: int, seed: int, options: dict[str, Any], threads: int = 1, strict: bool = False
    ) -> Drawn:
        """n decoded images; nothing has probability zero."""
        start = Start(torch.arange(self.length).expand(n, -1))
        pair = Pair(*(TabularMixture(law, n, steps=self.steps) for law in (self.law, self.draft)))
        with named(f"{self.name},"):
            return record(pair, start, decoder(pair, start, noise=counted_noise(seed, range(n)), **options))

    def rows_of(self, drawn: Drawn, layer: str, seed: int, draws: int) -> list[Row]:
        """The last row also has the number of times that the residual sampler gave up."""
        rng = np.random.default_rng([seed, self.law.means.shape[2]])
        settings: dict[str, Any] = {"layer": layer, "bins": self.bins, "draws": draws, "seed": seed}
        rows = continuous_rows(drawn.tokens.numpy(), self.law, rng=rng, model_name=self.name, **settings)
        rows[-1]["gave_up"] = int(drawn.gave_up.sum())
        return rows


def targets(which: str = "full") -> list[Target]:
    """Either "walks", whose tokens are drawn in four steps, or the same mixtures drawn in one."""
    result, steps = [], 4 if which == "walks" else 1
    for D, bins in ((1, 4), (2, 2)):
        target, draft = (random_mixture(np.random.default_rng(s), 3, 3, D) for s in (0, 1))
        name = f"mixture 3 x {D}-D" + (f", {steps} steps" if steps > 1 else "")
        result.append(Target(name, target, draft, bins, steps))
    return result


def energy_p(x: np.ndarray, y: np.ndarray, rng: np.random.Generator, permutations: int = 199) -> tuple[float, float]:
    """Energy statistic of two unpaired samples [m, d] of one size, and its permutation p-value (rows are independent
    here: free permutation is right). A permutation is m signs + and m signs -, a quadratic form in one distance
    matrix."""
    m = len(x)
    distance = spatial.distance.squareform(spatial.distance.pdist(np.concatenate([x, y])))
    s = np.tile(np.repeat([1.0, -1.0], m), (1 + permutations, 1))
    s[1:] = rng.permuted(s[1:], axis=1)
    energies = -((s @ distance) * s).sum(1) / m**2
    return float(energies[0]), R.monte_carlo_p(energies[0], energies[1:])


def ks_row(layer: str, test: str, u: np.ndarray, **place: Any) -> Row:
    """Kolmogorov-Smirnov of numbers u [n, k] that are uniform column by column: Holm within, one row for the smallest.

    Minimum detectable effect: the distance that is just rejected.
    """
    n, k = u.shape
    ks = [stats.kstest(column, "uniform", method="asymp") for column in u.T]  # the exact law is slow and the same
    largest = ks[int(np.argmin([each.pvalue for each in ks]))].statistic
    values = {"statistic": largest, "effect": largest}
    values["minimum_detectable_effect"] = float(stats.kstwobign.isf(R.ALPHA / k) / n**0.5)
    return R.row(layer, test, n, p_value=float(R.holm([each.pvalue for each in ks]).min()), **values, **place)


def continuous_rows(
    samples: np.ndarray,
    model: Mixture,
    *,
    rng: np.random.Generator,
    model_name: str = "mixture",
    bins: int = 3,
    energy_n: int = 500,
    draws: int = 1999,
    layer: str = "continuous",
    **place: Any,
) -> list[Row]:
    """Tests of samples [n, L, D] of any decoder: KS of the Rosenblatt transform, energy against fresh exact samples,
    and the statistics of the binned transform. Holm over the three that decide. ParityError for a sample that is not
    finite."""
    n, L, D = samples.shape
    if not np.isfinite(samples).all():
        row, position = np.argwhere(~np.isfinite(samples))[0][:2]
        raise ParityError(f"model {model_name}, position {position}, row {row}: sample is not finite")
    place["model"] = model_name
    if n < 1000:
        return [R.not_run(layer, t, n, "n >= 1000", **place) for t in ("KS of PIT", "energy", "all four")]
    u = model.rosenblatt(samples)
    rows = [ks_row(layer, "KS of PIT", u, **place)]
    m = min(energy_n, n)
    fresh = exact_sampler(model, m, rng)
    statistic, p = energy_p(samples[:m].reshape(m, -1), fresh.reshape(m, -1), rng)
    values = {"statistic": statistic, "effect": max(statistic, 0.0) ** 0.5}
    rows.append(R.row(layer, "energy", m, p_value=p, **values, **place))
    cells = np.minimum((u * bins).astype(int), bins - 1) @ bins ** np.arange(L * D - 1, -1, -1)
    counts = np.bincount(cells, minlength=bins ** (L * D))
    uniform = np.full(len(counts), 1 / len(counts))
    rows += joint_rows(layer, counts, uniform, bins, L * D, rng=rng, draws=draws, **place)
    R.family(r for r in rows if r["decides"])
    return rows
