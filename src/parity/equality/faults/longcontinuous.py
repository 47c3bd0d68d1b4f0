"""Faults of continuous decoding that short sequences do not show, each on a long model."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from parity.base.noise import Noise
from parity.decoders.continuous.cspd import cspd
from parity.decoders.continuous.mar import mar
from parity.decoders.steps import Draw
from parity.equality.faults import Trial, altered, in_small, with_model, with_noise
from parity.equality.faults.long import FAR, Numbered, over, twins, twins_between
from parity.equality.long.continuous import targets
from parity.equality.targets import Decoder
from parity.models.continuous.protocol import Pair, Start
from parity.models.continuous.tabular import MixtureLaw

Change = Callable[[MixtureLaw, Tensor], MixtureLaw]  # of laws and their places [B n], row-major
LATE, SIGHT = 32, 8  # the place from which noise is used again; places that a short-sighted decoder sees


class Perturbed:
    """Wraps a model and perturbs its conditionals."""

    def __init__(self, model: Any, change: Change):
        self.model, self.change = model, change

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def conditions(self, tokens: Tensor, order: Tensor, places: Tensor, known: Tensor) -> MixtureLaw:
        return self.change(self.model.conditions(tokens, order, places, known), places)

    def take(self, rows: Tensor) -> "Perturbed":
        return Perturbed(self.model.take(rows), self.change)


def wider(law: MixtureLaw, which: Tensor, factor: float) -> MixtureLaw:
    """Scales times a factor where `which` [B, n]."""
    return law._replace(scales=torch.where(which.flatten()[:, None, None], factor * law.scales, law.scales))


def last(law: MixtureLaw, places: Tensor) -> MixtureLaw:
    return wider(law, places == 63, 1.5)


def beyond(law: MixtureLaw, places: Tensor) -> MixtureLaw:
    return wider(law, places >= LATE, 1.08)


def far(law: MixtureLaw, places: Tensor) -> MixtureLaw:
    return wider(law, places >= FAR, 1.15)


def ahead(law: MixtureLaw, places: Tensor) -> MixtureLaw:
    """Of rows that are ahead of the slowest."""
    return wider(law, (places[:, :1] > places[:, :1].min()).expand_as(places), 1.08)


def everywhere(law: MixtureLaw, places: Tensor) -> MixtureLaw:
    return wider(law, places >= 0, 1.3)


def with_laws(decoder: Decoder, change: Change) -> Decoder:
    return with_model(decoder, lambda pair: pair._replace(target=Perturbed(pair.target, change)))


def reused(noise: Noise) -> Noise:
    """Every second place from LATE on has the numbers of the one before (two a place: a walk of one step)."""
    return Numbered(noise, lambda i: torch.where((i >= 2 * LATE) & (i // 2 % 2 == 1), i - 2, i))


def short_sighted(law: MixtureLaw, places: Tensor) -> MixtureLaw:
    """Of a chain whose tokens stand further apart than SIGHT places: nothing is known."""
    return law._replace(means=0 * law.means, scales=torch.ones_like(law.scales))


def lost(models: Pair, start: Start, *, noise: Noise, **options: Any) -> Iterator[Draw]:
    """One token in a thousand is written five off."""
    for place, drawn in enumerate(mar(models, start, noise=noise)):
        u = noise.uniform("branch", torch.full_like(start.order[:, :1], place))
        yield drawn._replace(tokens=drawn.tokens + 5.0 * (u < 0.001)[..., None])


def fresh(p: Any, q: Any, log_sigma: Tensor, noise: Noise, places: Tensor, dim: int, *more: Any) -> Any:
    """A rejected draft's place is taken by a draw of the target, not of the residual."""
    x = p.propose(lambda i: noise.normal("retry", 2 * places[:, None] + i, dim).flatten(0, 1))
    return x, torch.ones_like(places), torch.zeros_like(places) > 0


CSPD = "parity.decoders.continuous.cspd"
G, EVERY = {"gamma": 4}, ("regimes", "turning", "copy", "far")
# The decoder, its options, its fault, and the models on which it is looked for: of a correct one all.
VARIANTS: dict[str, tuple[Decoder, dict[str, Any], str, tuple[str, ...]]] = {
    "mar": (mar, {}, "none", EVERY),
    "cspd": (cspd, G, "none", EVERY),
    "mar: late reuse": (with_noise(mar, reused), {}, f"noise used again from place {LATE} on", ("regimes",)),
    "cspd: last": (with_laws(cspd, last), G, "last token's law wider", ("regimes",)),
    "cspd: beyond 32": (with_laws(cspd, beyond), G, f"laws wider from place {LATE} on", ("turning",)),
    "cspd: beyond 128": (with_laws(cspd, far), G, f"laws wider from place {FAR} on", ("far",)),
    "mar: twins of 9 to 64": (
        with_noise(mar, twins_between),
        {},
        "rows share their noise in batches of 9 to 64",
        ("regimes",),
    ),
    "cspd: ahead": (with_laws(cspd, ahead), G, "laws wider where rows differ in place", ("turning",)),
    "cspd: alone": (
        in_small(cspd, with_laws(cspd, everywhere), 1),
        G,
        "laws wider when alone in the batch",
        ("regimes",),
    ),
    "mar: small batch": (
        in_small(mar, with_laws(mar, everywhere), 3),
        {},
        "laws wider in batches of three or fewer",
        ("regimes",),
    ),
    "cspd: short-sighted": (with_laws(cspd, short_sighted), G, f"tokens beyond {SIGHT} places unseen", ("copy",)),
    "cspd: redrawn": (altered(CSPD, residual=fresh).cspd, G, "residual a fresh draw", ("turning",)),
    "mar: lost": (lost, {}, "a token in 1,000 five off", ("regimes",)),
    "mar: twins": (with_noise(mar, twins), {}, "rows share their noise", ("regimes",)),
}


def trials(n: int, seeds: Sequence[int], draws: int = 0, threads: int = 1) -> Iterator[Trial]:
    """Every variant, about n numbers a target; its tests are one family."""
    yield from over(VARIANTS, targets, n)
