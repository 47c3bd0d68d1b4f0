"""Models of known law for continuous decoders, a draft model beside each: mixtures of three tokens, and long ones.

The Rosenblatt transform u_j = F(x_j | x_<j) maps a mixture of L tokens of D numbers (parity.models.continuous.tabular)
to the uniform law on the cube of L D sides. So, besides Kolmogorov-Smirnov on each u_j and an energy test against fresh
exact samples, the cube is cut into `bins` equal parts a side, which makes a sample a sequence of L D tokens whose exact
joint is uniform: the statistics of sequences and the TV certificate apply as they stand (the certificate is that of the
binned law, a lower resolution).

In long sequences each u_j (the PIT of a number) is cut into eight parts, a token of known law that is independent of
all before it (Rosenblatt 1952), so all tests of tokens apply. log p has its mean and variance by quadrature.
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
from parity.equality.targets import Decoder, named
from parity.equality.targets.long import LONGEST, Drawn, Long
from parity.models.continuous.hidden import LongMixture, Regimes, Rule, Turning
from parity.models.continuous.tabular import Mixture, MixtureLaw, TabularMixture, exact_sampler, random_mixture

DRAWS = 4999
FAMILY = "all"


@dataclass(frozen=True)
class Target:
    """A mixture and the draft model's mixture."""

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
    ) -> decode.Drawn:
        """n decoded images; nothing has probability zero."""
        start = Start(torch.arange(self.length).expand(n, -1))
        pair = Pair(*(TabularMixture(law, n, raster=False, steps=self.steps) for law in (self.law, self.draft)))
        with named(f"{self.name},"):
            return decode.record(pair, start, decoder(pair, start, noise=counted_noise(seed, range(n)), **options))

    def rows_of(self, drawn: decode.Drawn, layer: str, seed: int, draws: int) -> list[Row]:
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
    s = np.tile(np.repeat([1.0, -1.0], m), (1 + R.count_null_draws(permutations), 1))
    s[1:] = rng.permuted(s[1:], axis=1)
    energies = -((s @ distance) * s).sum(1) / m**2
    return float(energies[0]), R.compute_monte_carlo_p(energies[0], energies[1:])


def ks_row(layer: str, test: str, u: np.ndarray, **place: Any) -> Row:
    """Kolmogorov-Smirnov of numbers u [n, k] that are uniform column by column: Holm within, one row for the smallest.

    Minimum detectable effect: the distance that is just rejected.
    """
    n, k = u.shape
    ks = [stats.kstest(column, "uniform", method="asymp") for column in u.T]  # the exact law is slow and the same
    largest = ks[int(np.argmin([each.pvalue for each in ks]))].statistic
    values = {"statistic": largest, "effect": largest}
    values["minimum_detectable_effect"] = float(stats.kstwobign.isf(R.get_alpha() / k) / n**0.5)
    return R.make_row(layer, test, n, p_value=float(R.holm([each.pvalue for each in ks]).min()), **values, **place)


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
        return [R.make_not_run_row(layer, t, n, "n >= 1000", **place) for t in ("KS of PIT", "energy", "all four")]
    u = model.rosenblatt(samples)
    rows = [ks_row(layer, "KS of PIT", u, **place)]
    m = min(energy_n, n)
    fresh = exact_sampler(model, m, rng)
    statistic, p = energy_p(samples[:m].reshape(m, -1), fresh.reshape(m, -1), rng)
    values = {"statistic": statistic, "effect": max(statistic, 0.0) ** 0.5}
    rows.append(R.make_row(layer, "energy", m, p_value=p, **values, **place))
    cells = np.minimum((u * bins).astype(int), bins - 1) @ bins ** np.arange(L * D - 1, -1, -1)
    counts = np.bincount(cells, minlength=bins ** (L * D))
    uniform = np.full(len(counts), 1 / len(counts))
    rows += make_joint_rows(layer, counts, uniform, bins, L * D, rng=rng, draws=draws, **place)
    R.adjust_family(r for r in rows if r["decides"])
    return rows


# Long sequences

PARTS = 8  # of a PIT's range
NODES = 40  # of the quadrature: means of log p right to 1e-4 nats
CHUNK = 4096  # tokens whose log p is averaged together


def log_normal(x: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
    return -0.5 * ((x - mean) / scale) ** 2 - scale.log() - 0.5 * LOG_2PI


def number_scores(law: MixtureLaw, x: Tensor) -> Tensor:
    """[3, N, D] for N tokens x [N, D]: of each number given those before it, its PIT, log p less its mean, and the
    variance of log p."""
    nodes, weights = (torch.from_numpy(v) for v in np.polynomial.hermite_e.hermegauss(NODES))
    weights, log, result = weights / weights.sum(), law.log_weights, []
    for mean, scale, own in zip(law.means.unbind(2), law.scales.unbind(2), x[..., None].unbind(1), strict=True):
        points = mean[..., None] + scale[..., None] * nodes  # [N, K, Q] of each component
        each = log_normal(points[..., None], mean[:, None, None], scale[:, None, None])
        density = (log[:, None, None] + each).logsumexp(-1)
        share = log.exp()[..., None] * weights
        first, second = (share * density).sum((1, 2)), (share * density**2).sum((1, 2))
        parts = log + log_normal(own, mean, scale)
        pit = (log.exp() * torch.special.ndtr((own - mean) / scale)).sum(1)
        result.append(torch.stack([pit, parts.logsumexp(1) - first, second - first**2]))
        log = parts.log_softmax(1)
    return torch.stack(result, 2)


@dataclass(frozen=True, kw_only=True)
class LongTarget(Long):
    """The rules of the target and of the draft model."""

    rule: Rule
    draft: Rule
    steps: int = 1  # of the walks that draw it
    columns: ClassVar[bool] = False

    @cached_property
    def law(self) -> np.ndarray | None:
        """Of the parts of any two numbers' PITs [L D, PARTS, L D, PARTS]."""
        if self.far:
            return None
        M = self.length * self.rule.dim
        two = np.full((M, PARTS, M, PARTS), 1 / PARTS**2)
        two[np.arange(M), :, np.arange(M)] = np.eye(PARTS) / PARTS
        return two

    def start(self, seed: int) -> Start:
        return Start(torch.arange(self.length).expand(self.n, -1))

    def record(self, decoder: Decoder, start: Start, options: dict[str, Any]) -> decode.Drawn:
        pair = Pair(LongMixture(self.rule, self.length, self.steps), LongMixture(self.draft, self.length, self.steps))
        return decode.record(pair, start, decoder(pair, start, **options))

    def is_ordered(self, options: dict[str, Any]) -> bool:
        """A run of drafts ends in a correction: whether it reaches a place is known before that is drawn."""
        return "gamma" in options and bool(options.get("truncate", True))

    def to_drawn(self, start: Start, tokens: Tensor, step: Tensor, ordered: bool) -> Drawn:
        x, (n, L, D) = tokens.double(), tokens.shape
        places = torch.arange(L).expand(n, -1)
        law, flat = self.rule.compute_laws(x, places, places), x.flatten(0, 1)
        chunks = [
            number_scores(law.rows(torch.arange(a, min(a + CHUNK, n * L))), flat[a : a + CHUNK])
            for a in range(0, n * L, CHUNK)
        ]
        pit, score, variance = torch.cat(chunks, 1).reshape(3, n, L * D).numpy()
        part, even = np.clip((pit * PARTS).astype(int), 0, PARTS - 1), np.full((*pit.shape, PARTS), 1 / PARTS)
        slot = assign_slots(step.numpy().astype(int)).repeat(D, 1)
        return Drawn(part, even, np.zeros(pit.shape, bool), slot, ordered, pit, (score, variance))

    def scored(self, drawn: Drawn, layer: str, whole: bool, **place: Any) -> list[Row]:
        assert drawn.pit is not None
        return [*super().scored(drawn, layer, whole, **place), ks_row(layer, "PIT", drawn.pit.reshape(-1, 1), **place)]


def regimes() -> tuple[Rule, Rule]:
    step = 0.8 * torch.eye(3, dtype=torch.float64) + 0.2 / 3
    means = torch.tensor([[-1.5], [0.0], [1.2]], dtype=torch.float64)
    scales = torch.tensor([[0.6], [0.9], [0.5]], dtype=torch.float64)
    begin = torch.full((3,), 1 / 3, dtype=torch.float64)
    return Regimes(begin, step, means, scales), Regimes(begin, step, means + 0.15, 1.2 * scales)


def turning(turn: Tensor, stride: int) -> tuple[Rule, Rule]:
    return Turning(0.8, turn, stride), Turning(0.65, turn, stride)


def long_targets(reach: Mapping[str, int], size: int, seed: int = 0, which: str = "") -> list[LongTarget]:
    """About `size` numbers are drawn on each. reach says how far a pass looks (`parity.experiment.options.reach`).
    `which` "walks": a quarter of `size`, for each takes a walk, of more steps than the head drafts at once.

    regimes  three regimes that stay for a while, tokens of one number
    turning  tokens of two numbers, each the one before it turned and with noise
    copy     tokens of one number, each near the one a period before it, which is longer than the window
    far      regimes on 256 tokens, where the others are shorter: faults that begin late
    """
    far = reach["positions"]
    length, result = min(LONGEST, max(64, 16 * -(-2 * far // 16))), []
    steps = min(32, max(6, 4 + reach["steps"])) if which == "walks" else 1

    def add(name: str, rules: tuple[Rule, Rule], length: int = length, **more: Any) -> None:
        rule, draft = rules
        name = f"{name} {length} x {rule.dim}-D" + (f", {steps} steps" if steps > 1 else "")
        rows = max(100, size // (length * rule.dim * (4 if steps > 1 else 1)))
        result.append(LongTarget(name=name, rule=rule, draft=draft, length=length, n=rows, steps=steps, **more))

    cosine, sine = np.cos(0.7), np.sin(0.7)
    add("regimes", regimes(), alone=True)
    add("turning", turning(torch.tensor([[cosine, -sine], [sine, cosine]], dtype=torch.float64), 1))
    add("copy", turning(torch.eye(1, dtype=torch.float64), min(max(9, far + 1), length // 4)))
    if length < LONGEST:
        add("far", regimes(), LONGEST, far=True)
    return result
