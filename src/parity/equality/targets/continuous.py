"""Models of known distribution for continuous decoders, a draft model beside each: mixtures of three tokens, and long
ones.

The Rosenblatt transform u_j = F(x_j | x_<j) maps a mixture of L tokens of D numbers (parity.models.continuous.tabular)
to the uniform distribution on the cube of L D sides. So, besides Kolmogorov-Smirnov on each u_j and an energy test
against fresh exact samples, the cube is cut into `bins` equal parts a side, which makes a sample a sequence of L D
tokens whose exact joint is uniform: the statistics of sequences and the TV certificate apply as they stand (the
certificate is that of the binned distribution, a lower resolution).

In long sequences each u_j (the PIT of a number) is cut into eight parts, a token of known distribution that is
independent of all before it (Rosenblatt 1952), so all tests of tokens apply. log p has its mean and variance by
quadrature.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from parity_certify import result_rows as R
from parity_certify.joint_tests import make_joint_rows
from parity_certify.result_rows import Row
from parity_certify.teacher_forced import assign_slots
from parity_decoders.noise import counted_noise
from parity_decoders.protocols.continuous import LOG_2PI, Pair, Start
from scipy import spatial, stats
from torch import Tensor

from parity.base.errors import ParityError
from parity.decode import continuous as decode
from parity.equality.targets import Decoder, prefix_errors
from parity.equality.targets.long import Long, Sequences
from parity.experiment.options import LONGEST
from parity.models.continuous.hidden import LongMixture, Regimes, Rule, Turning
from parity.models.continuous.tabular import Mixture, MixtureDistribution, TabularMixture, exact_sampler, random_mixture

DRAWS = 4999
FAMILY = "all"


@dataclass(frozen=True)
class Target:
    """A mixture and the draft model's mixture."""

    name: str
    distribution: Mixture
    draft: Mixture
    bins: int  # number of parts that each side of the unit cube is cut into
    steps: int = 1  # number of steps of the walk by which a token is drawn

    @property
    def length(self) -> int:
        return self.distribution.means.shape[1]

    def draw(
        self, decoder: Decoder, n: int, seed: int, options: dict[str, Any], threads: int = 1, strict: bool = False
    ) -> decode.DrawnImages:
        """Decode n images. threads and strict belong to the signature of all kinds: nothing has probability zero."""
        start = Start(torch.arange(self.length).expand(n, -1))
        pair = Pair(
            *(
                TabularMixture(distribution, n, raster=False, steps=self.steps)
                for distribution in (self.distribution, self.draft)
            )
        )
        with prefix_errors(f"{self.name},"):
            return decode.record(pair, start, decoder(pair, start, noise=counted_noise(seed, range(n)), **options))

    def make_rows(self, drawn: decode.DrawnImages, layer: str, seed: int, draws: int) -> list[Row]:
        """Make the rows of `make_continuous_rows`; the last one also has how often the residual sampler gave up."""
        rng = np.random.default_rng([seed, self.distribution.means.shape[2]])
        settings: dict[str, Any] = {"layer": layer, "bins": self.bins, "draws": draws, "seed": seed}
        rows = make_continuous_rows(drawn.tokens.numpy(), self.distribution, rng=rng, model_name=self.name, **settings)
        rows[-1]["gave_up"] = int(drawn.gave_up.sum())
        return rows


def targets(which: str = "full") -> list[Target]:
    """Make targets of three tokens of one number and of two, drawn in four steps if `which` is "walks", else in one."""
    steps = 4 if which == "walks" else 1
    result = []
    for D, bins in ((1, 4), (2, 2)):
        target, draft = (random_mixture(np.random.default_rng(s), 3, 3, D) for s in (0, 1))
        name = f"mixture 3 x {D}-D" + (f", {steps} steps" if steps > 1 else "")
        result.append(Target(name, target, draft, bins, steps))
    return result


def compute_energy_p(
    x: np.ndarray, y: np.ndarray, rng: np.random.Generator, permutations: int = 199
) -> tuple[float, float]:
    """Compute the energy statistic of two unpaired samples x, y [m, d], whose rows are independent, and its p-value by
    free permutations. A permutation is m signs + and m signs -, a quadratic form in one distance matrix."""
    m = len(x)
    distance = spatial.distance.squareform(spatial.distance.pdist(np.concatenate([x, y])))
    for draws in R.list_null_draws(permutations):
        s = np.tile(np.repeat([1.0, -1.0], m), (1 + draws, 1))
        s[1:] = rng.permuted(s[1:], axis=1)
        energies = -((s @ distance) * s).sum(1) / m**2
        p = R.compute_monte_carlo_p(energies[0], energies[1:])
        if p > 1 / (1 + draws):
            break
    return float(energies[0]), p


def make_ks_row(layer: str, test: str, u: np.ndarray, **columns: Any) -> Row:
    """Test by Kolmogorov-Smirnov whether the columns of u [n, k] are uniform: Holm within, one row for the smallest.

    Minimum detectable effect: the distance that is just rejected.
    """
    n, k = u.shape
    # the exact distribution is slower, no better
    ks = [stats.kstest(column, "uniform", method="asymp") for column in u.T]
    statistic = ks[int(np.argmin([k.pvalue for k in ks]))].statistic
    values = {"statistic": statistic, "effect": statistic}
    values["minimum_detectable_effect"] = float(stats.kstwobign.isf(R.get_alpha() / k) / n**0.5)
    return R.make_row(layer, test, n, p_value=float(R.holm([k.pvalue for k in ks]).min()), **values, **columns)


def make_continuous_rows(
    samples: np.ndarray,
    model: Mixture,
    *,
    rng: np.random.Generator,
    model_name: str = "mixture",
    bins: int = 3,
    energy_n: int = 500,
    draws: int = 1999,
    layer: str = "continuous",
    **columns: Any,
) -> list[Row]:
    """Make the rows that test samples [n, L, D] of any decoder: KS of the Rosenblatt transform, energy of `energy_n`
    of them against fresh exact samples, and the joint tests of the binned transform. Holm over the three that decide;
    "not run" if n < 1000. Raises ParityError if a sample is not finite."""
    n, L, D = samples.shape
    if not np.isfinite(samples).all():
        row, position = np.argwhere(~np.isfinite(samples))[0][:2]
        raise ParityError(f"model {model_name}, position {position}, row {row}: sample is not finite")
    columns["model"] = model_name
    if n < 1000:
        return [R.make_not_run_row(layer, t, n, "n >= 1000", **columns) for t in ("KS of PIT", "energy", "all four")]
    u = model.rosenblatt(samples)
    rows = [make_ks_row(layer, "KS of PIT", u, **columns)]
    m = min(energy_n, n)
    exact = exact_sampler(model, m, rng)
    statistic, p = compute_energy_p(samples[:m].reshape(m, -1), exact.reshape(m, -1), rng)
    values = {"statistic": statistic, "effect": max(statistic, 0.0) ** 0.5}
    rows.append(R.make_row(layer, "energy", m, p_value=p, **values, **columns))
    cells = np.minimum((u * bins).astype(int), bins - 1) @ bins ** np.arange(L * D - 1, -1, -1)
    counts = np.bincount(cells, minlength=bins ** (L * D))
    uniform = np.full(len(counts), 1 / len(counts))
    rows += make_joint_rows(layer, counts, uniform, bins, L * D, rng=rng, draws=draws, **columns)
    return R.adjust_deciding(rows)


# --- Models of long sequences

PARTS = 8  # number of parts that the range of a number's PIT is cut into
NODES = 40  # nodes of the quadrature by which log p is averaged; this many keep the error below 1e-4 nats
CHUNK = 4096  # number of tokens whose log p is averaged together


def compute_log_normal(x: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
    return -0.5 * ((x - mean) / scale) ** 2 - scale.log() - 0.5 * LOG_2PI


def score_numbers(distribution: MixtureDistribution, x: Tensor) -> Tensor:
    """Score the numbers of N tokens x [N, D], each given those before it. Returns [3, N, D]: PIT, log p less its mean,
    and the variance of log p."""
    nodes, weights = (torch.from_numpy(v) for v in np.polynomial.hermite_e.hermegauss(NODES))
    weights = weights / weights.sum()
    log_weights = distribution.log_weights  # log-weights of the components, given the token's numbers before
    result = []
    for mean, scale, number in zip(
        distribution.means.unbind(2), distribution.scales.unbind(2), x[..., None].unbind(1), strict=True
    ):
        points = mean[..., None] + scale[..., None] * nodes  # [N, K, Q] quadrature nodes of each component
        log_p = compute_log_normal(points[..., None], mean[:, None, None], scale[:, None, None])
        log_p = (log_weights[:, None, None] + log_p).logsumexp(-1)
        share = log_weights.exp()[..., None] * weights
        first_moment, second_moment = (share * log_p).sum((1, 2)), (share * log_p**2).sum((1, 2))
        posterior = log_weights + compute_log_normal(number, mean, scale)  # log posterior of components, not normalised
        pit = (log_weights.exp() * torch.special.ndtr((number - mean) / scale)).sum(1)
        score = posterior.logsumexp(1) - first_moment
        result.append(torch.stack([pit, score, second_moment - first_moment**2]))
        log_weights = posterior.log_softmax(1)
    return torch.stack(result, 2)


@dataclass(frozen=True, kw_only=True)
class LongTarget(Long):
    """The rules of the target and of the draft model."""

    rule: Rule
    draft: Rule
    steps: int = 1  # number of steps of the walk by which a token is drawn
    by_column: ClassVar[bool] = False

    @cached_property
    def probs(self) -> np.ndarray | None:
        """Make the distribution of the parts of any two numbers' PITs [L D, PARTS, L D, PARTS]; None if pairs are not
        tested."""
        if self.skips_pairs:
            return None
        M = self.length * self.rule.dim
        pair_probs = np.full((M, PARTS, M, PARTS), 1 / PARTS**2)
        pair_probs[np.arange(M), :, np.arange(M)] = np.eye(PARTS) / PARTS
        return pair_probs

    def make_start(self, seed: int) -> Start:
        return Start(torch.arange(self.length).expand(self.n, -1))

    def record(self, decoder: Decoder, start: Start, options: dict[str, Any]) -> decode.DrawnImages:
        pair = Pair(LongMixture(self.rule, self.length, self.steps), LongMixture(self.draft, self.length, self.steps))
        return decode.record(pair, start, decoder(pair, start, **options))

    def has_predictable_slots(self, options: dict[str, Any]) -> bool:
        """Tell whether runs of drafts end in a correction: only then a token's slot is known before it is drawn."""
        return "gamma" in options and bool(options.get("truncate", True))

    def to_drawn(self, start: Start, tokens: Tensor, step: Tensor, predictable: bool) -> Sequences:
        """Compute each number's PIT, the part of its range (a uniform token), and scores, of tokens [n, L, D]."""
        n, L, D = tokens.shape
        x = tokens.double()
        flat = x.flatten(0, 1)
        ranks = torch.arange(L).expand(n, -1)
        distribution = self.rule.compute_distributions(x, ranks, ranks)
        chunks = [
            score_numbers(distribution.rows(torch.arange(a, min(a + CHUNK, n * L))), flat[a : a + CHUNK])
            for a in range(0, n * L, CHUNK)
        ]
        pit, score, variance = torch.cat(chunks, 1).reshape(3, n, L * D).numpy()
        pit_parts = np.clip((pit * PARTS).astype(int), 0, PARTS - 1)
        uniform = np.full((*pit.shape, PARTS), 1 / PARTS)
        slot = assign_slots(step.numpy().astype(int)).repeat(D, 1)
        return Sequences(pit_parts, uniform, np.zeros(pit.shape, bool), slot, predictable, pit, (score, variance))

    def make_token_rows(self, drawn: Sequences, layer: str, is_whole: bool, **columns: Any) -> list[Row]:
        assert drawn.pit is not None
        rows = super().make_token_rows(drawn, layer, is_whole, **columns)
        return [*rows, make_ks_row(layer, "PIT", drawn.pit.reshape(-1, 1), **columns)]


def make_regimes() -> tuple[Rule, Rule]:
    """Make the rules "regimes" of the target and of its draft model, whose Gaussians are shifted and wider."""
    step = 0.8 * torch.eye(3, dtype=torch.float64) + 0.2 / 3
    means = torch.tensor([[-1.5], [0.0], [1.2]], dtype=torch.float64)
    scales = torch.tensor([[0.6], [0.9], [0.5]], dtype=torch.float64)
    initial = torch.full((3,), 1 / 3, dtype=torch.float64)
    return Regimes(initial, step, means, scales), Regimes(initial, step, means + 0.15, 1.2 * scales)


def make_turning(turn: Tensor, stride: int) -> tuple[Rule, Rule]:
    return Turning(0.8, turn, stride), Turning(0.65, turn, stride)


def long_targets(reach: Mapping[str, int], size: int, seed: int = 0, which: str = "") -> list[LongTarget]:
    """Make the long targets; about `size` numbers are drawn on each. reach says how far a pass looks
    (`parity.experiment.options.measure_reach`). `which` "walks": a quarter of `size`, because each takes a walk, of
    more steps than the head drafts at once.

    regimes  three regimes that stay for a while, tokens of one number
    turning  tokens of two numbers, each the one before it turned and with noise
    copy     tokens of one number, each near the one a period before it, which is longer than the window
    far      regimes on 256 tokens, where the others are shorter: faults that begin late
    """
    k = reach["positions"]
    length = min(LONGEST, max(64, 16 * -(-2 * k // 16)))
    result: list[LongTarget] = []
    steps = min(32, max(6, 4 + reach["steps"])) if which == "walks" else 1

    def add(name: str, rules: tuple[Rule, Rule], length: int = length, **settings: Any) -> None:
        rule, draft = rules
        name = f"{name} {length} x {rule.dim}-D" + (f", {steps} steps" if steps > 1 else "")
        rows = max(100, size // (length * rule.dim * (4 if steps > 1 else 1)))
        result.append(LongTarget(name=name, rule=rule, draft=draft, length=length, n=rows, steps=steps, **settings))

    cosine, sine = np.cos(0.7), np.sin(0.7)
    add("regimes", make_regimes(), tests_batches=True)
    add("turning", make_turning(torch.tensor([[cosine, -sine], [sine, cosine]], dtype=torch.float64), 1))
    add("copy", make_turning(torch.eye(1, dtype=torch.float64), min(max(9, k + 1), length // 4)))
    if length < LONGEST:
        add("far", make_regimes(), LONGEST, skips_pairs=True)
    return result
