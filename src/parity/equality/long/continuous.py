"""Long targets of continuous decoders, a draft model beside each: every number's law given all before it is a mixture.

regimes  three regimes that stay for a while, tokens of one number
turning  tokens of two numbers, each the one before it turned and with noise
far      regimes on 256 tokens, where the others are shorter: faults that begin late
copy     tokens of one number, each near the one a period before it, which is longer than the window

A number's value of its own distribution function (its PIT) is uniform and independent of all before it (Rosenblatt
1952): cut into eight parts it is a token of known law, and all tests of tokens apply. log p has its mean and variance
by quadrature. Methods that look at the steps of a walk draw the same laws in several.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from parity_certify.result_rows import Row
from parity_certify.teacher_forced import slots
from torch import Tensor

from parity.decode.continuous import Drawn as Decoded
from parity.decode.continuous import record
from parity.equality.long import LONGEST, OWN, Drawn, LongTarget, Recorder
from parity.equality.martingale_tests import score_rows
from parity.equality.targets import Decoder
from parity.equality.targets.continuous import ks_row
from parity.experiment.options import longest_place
from parity.models.continuous.hidden import LongMixture, Regimes, Rule, Turning
from parity.models.continuous.protocol import LOG_2PI, Pair, Start
from parity.models.continuous.tabular import MixtureLaw

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
class Target(LongTarget):
    """A rule, the draft model's, and how many sequences of which length are drawn of it."""

    rule: Rule
    draft: Rule
    steps: int = 1  # of the walks that draw it

    @cached_property
    def law(self) -> np.ndarray:
        """[L D, PARTS, L D, PARTS] of the parts of any two numbers' PITs."""
        M = self.length * self.rule.dim
        two = np.full((M, PARTS, M, PARTS), 1 / PARTS**2)
        two[np.arange(M), :, np.arange(M)] = np.eye(PARTS) / PARTS
        return two

    def start(self, seed: int) -> Start:
        return Start(torch.arange(self.length).expand(self.n, -1))

    def record(self, decoder: Decoder, start: Start, options: dict[str, Any]) -> Decoded:
        pair = Pair(LongMixture(self.rule, self.length, self.steps), LongMixture(self.draft, self.length, self.steps))
        return record(pair, start, decoder(pair, start, **options))

    def recorder(self) -> Recorder:
        return Recorder(OWN, columns=False)

    def is_ordered(self, options: dict[str, Any]) -> bool:
        """A run of drafts ends in a correction: whether it reaches a place is known before that is drawn."""
        return "gamma" in options and bool(options.get("truncate", True))

    def to_drawn(self, start: Start, tokens: Tensor, step: Tensor, ordered: bool) -> Drawn:
        x, (n, L, D) = tokens.double(), tokens.shape
        places = torch.arange(L).expand(n, -1)
        law, flat = self.rule.after(x, places, places), x.flatten(0, 1)
        chunks = [
            number_scores(law.rows(torch.arange(a, min(a + CHUNK, n * L))), flat[a : a + CHUNK])
            for a in range(0, n * L, CHUNK)
        ]
        pit, score, variance = torch.cat(chunks, 1).reshape(3, n, L * D).numpy()
        part, even = np.clip((pit * PARTS).astype(int), 0, PARTS - 1), np.full((*pit.shape, PARTS), 1 / PARTS)
        slot = slots(step.numpy().astype(int)).repeat(D, 1)
        return Drawn(part, even, np.zeros(pit.shape, bool), slot, ordered, pit, (score, variance))

    def scored(self, drawn: Drawn, layer: str, whole: bool, **place: Any) -> list[Row]:
        assert drawn.pit is not None
        two, slot = self.law if whole and not self.far else None, drawn.slot if drawn.ordered else None
        rows = score_rows(layer, drawn.tokens, drawn.laws, two, slot, None, drawn.scores, self.far, **place)
        return [*rows, ks_row(layer, "PIT", drawn.pit.reshape(-1, 1), **place)]


def regimes(far: int) -> tuple[Rule, Rule]:
    step = 0.8 * torch.eye(3, dtype=torch.float64) + 0.2 / 3
    means = torch.tensor([[-1.5], [0.0], [1.2]], dtype=torch.float64)
    scales = torch.tensor([[0.6], [0.9], [0.5]], dtype=torch.float64)
    begin = torch.full((3,), 1 / 3, dtype=torch.float64)
    return Regimes(begin, step, means, scales), Regimes(begin, step, means + 0.15, 1.2 * scales)


def rotation(angle: float) -> Tensor:
    c, s = np.cos(angle), np.sin(angle)
    return torch.tensor([[c, -s], [s, c]], dtype=torch.float64)


def turning(far: int) -> tuple[Rule, Rule]:
    return Turning(0.8, rotation(0.7), 1), Turning(0.65, rotation(0.7), 1)


def copies(far: int) -> tuple[Rule, Rule]:
    one = torch.eye(1, dtype=torch.float64)
    return Turning(0.8, one, far), Turning(0.65, one, far)


MAKES: dict[str, Callable[[int], tuple[Rule, Rule]]] = {"regimes": regimes, "turning": turning, "copy": copies}


def targets(options: dict[str, Any], size: int, seed: int = 0, which: str = "") -> list[Target]:
    """About `size` numbers are drawn on each. `which` "walks": a quarter of that, for each takes a walk, of more steps
    than the head drafts at once."""
    far = max((longest_place("continuous", {k: v})[1] for k, v in options.items() if k != "ahead"), default=0)
    length, result = min(LONGEST, max(64, 16 * -(-2 * far // 16))), []
    steps = min(32, max(6, 4 + options.get("ahead", 0))) if which == "walks" else 1

    def add(name: str, rules: tuple[Rule, Rule], length: int = length, **more: Any) -> None:
        rule, draft = rules
        name = f"{name} {length} x {rule.dim}-D" + (f", {steps} steps" if steps > 1 else "")
        rows = max(100, size // (length * rule.dim * (4 if steps > 1 else 1)))
        result.append(Target(name=name, rule=rule, draft=draft, length=length, n=rows, steps=steps, **more))

    for name, rules_of in MAKES.items():
        add(name, rules_of(min(max(9, far + 1), length // 4)), alone=name == "regimes")
    if length < LONGEST:
        add("far", regimes(9), LONGEST, far=True)
    return result
