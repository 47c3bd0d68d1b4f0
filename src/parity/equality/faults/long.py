"""Faults that short sequences do not show, planted in speculative Jacobi decoding at its own window, and in others.

Each is the decoder itself with one thing changed: its noise, the laws it sees, or how it verifies.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from parity_certify import result_rows as R
from parity_certify.result_rows import Row
from torch import Tensor

from parity.base.noise import Noise
from parity.decoders.discrete.ar import ar
from parity.decoders.discrete.sjd import sjd
from parity.decoders.discrete.spec import spec
from parity.decoders.steps import Step
from parity.decoders.verification import race
from parity.equality.faults import Trial, altered, in_small, with_model, with_noise
from parity.equality.long.discrete import targets
from parity.equality.martingale_tests import TESTS
from parity.equality.targets import Decoder
from parity.models.discrete.protocol import TokenModel
from parity.models.discrete.sampling import Sampled

WINDOW, GAMMA = 16, 4
ENOUGH = 30_000  # tokens in which every fault shows
LATE = 6  # the pass from which noise is used again
FAR = 128  # the place from which a residual is wrong


class Numbered(Noise):
    """Noise whose numbers are taken by another index, those of one use alone or all, or of other rows."""

    def __init__(self, noise: Noise, index: Callable[[Tensor], Tensor], keys: Tensor | None = None, only: str = ""):
        super().__init__(noise.keys if keys is None else keys, noise.dtype)
        self.other, self.noise, self.only = index, noise if keys is None else Noise(keys, noise.dtype), only

    def _uniform(self, use: str, index: Tensor, n: int) -> Tensor:
        return self.noise._uniform(use, self.other(index) if self.only in ("", use) else index, n)


class Perturbed:
    """Wraps a model and perturbs its laws [B, S, V]: `change` takes them and their positions [B, S], after guidance."""

    def __init__(self, model: TokenModel, change: Callable[[Tensor, Tensor], Tensor]):
        self.model, self.change = model, change

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def logits(self, tokens: Tensor, positions: Tensor) -> Tensor:
        return self.change(self.model.logits(tokens, positions), positions + 1)


def reused(index: Tensor) -> Tensor:
    """Numbers of the passes from LATE on are those of pass LATE."""
    return torch.where(index < LATE * WINDOW, index, LATE * WINDOW + index % WINDOW)


def flatter(logits: Tensor, share: float) -> Tensor:
    """Mixes the law with the uniform law over possible tokens, by a share."""
    p, can = logits.softmax(-1), logits > float("-inf")
    return ((1 - share) * p + share * can / can.sum(-1, keepdim=True)).log()


def from_place(logits: Tensor, places: Tensor, first: int, share: float = 0.1) -> Tensor:
    return torch.where((places >= first)[..., None], flatter(logits, share), logits)


def unverified(p: Tensor, q: Tensor, draft: Tensor, point: Tensor, u: Tensor, *more: Any) -> Any:
    """The last draft of a window is accepted as it is, wherever it is possible."""
    last = torch.arange(u.shape[1]) == WINDOW - 1
    return verify_of_sjd(p, torch.where(last[:, None], p, q), draft, point & ~last, u, *more)


verify_of_sjd = altered("parity.decoders.discrete.sjd").verify
BORDER = altered("parity.decoders.discrete.sjd", verify=unverified).sjd


def with_laws(decoder: Decoder, change: Callable[[Tensor, Tensor], Tensor], last: bool = False) -> Decoder:
    """last: `change` is told places from the end, the last token's being 0."""

    def changed(model: TokenModel) -> Perturbed:
        off = model.length - 1 if last else 0
        return Perturbed(model, lambda x, at: change(x, at - off))

    return with_model(decoder, changed)


def at_rows(logits: Tensor, places: Tensor, width: int = 16) -> Tensor:
    return torch.where((places % width == 0)[..., None], flatter(logits, 0.3), logits)


def if_ahead(logits: Tensor, places: Tensor) -> Tensor:
    """Of rows that are ahead of the slowest."""
    first = places[:, :1]
    return torch.where((first > first.min())[..., None], flatter(logits, 0.1), logits)


def anything(logits: Tensor, places: Tensor) -> Tensor:
    """One token in a thousand is any token, possible or not."""
    return (0.999 * logits.softmax(-1) + 0.001 / logits.shape[-1]).log()


class Rolled:
    """Laws told flatter after a pass in which all but `most` of the window's tokens were dropped."""

    def __init__(self, model: TokenModel, most: int):
        self.model, self.most = model, most
        self.before: Tensor | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def logits(self, tokens: Tensor, positions: Tensor) -> Tensor:
        logits, first = self.model.logits(tokens, positions), positions[:, 0]
        deep = torch.zeros_like(first) > 0 if self.before is None else first - self.before <= self.most
        self.before = first
        return torch.where(deep[:, None, None], flatter(logits, 0.3), logits)


def resampled(model: Any, **settings: Any) -> Sampled:
    """A guided model with other sampling settings."""
    return Sampled(model.model, replace(model.sampling, **settings))


def twins_between(noise: Noise) -> Noise:
    """`twins` in batches of 9 to 64 rows, which hold a run's own."""
    return twins(noise) if 9 <= len(noise.keys) <= 64 else noise


class Watched(Perturbed):
    """A model that remembers which places its last pass was asked for."""

    def __init__(self, model: TokenModel):
        super().__init__(model, self.watch)
        self.places = torch.zeros(0)

    def watch(self, logits: Tensor, places: Tensor) -> Tensor:
        self.places = places
        return logits


def late_residual(model: TokenModel, start: Tensor, *, noise: Noise, **options: Any) -> Iterator[Step]:
    """sjd whose residual is the target's law from token FAR on."""
    watched: Any = Watched(model)

    def verify(p: Tensor, q: Tensor, draft: Tensor, point: Tensor, u: Tensor, e: Tensor, *more: Any) -> Any:
        right = verify_of_sjd(p, q, draft, point, u, e, *more)
        column = torch.arange(p.shape[1])
        late = watched.places[:, : p.shape[1]] >= FAR
        corrected = (column == right.kept[:, None] - 1) & (right.tokens != draft) & ~point
        fresh = torch.where(corrected & late, race(p, e), right.tokens)
        return right._replace(tokens=fresh)

    return altered("parity.decoders.discrete.sjd", verify=verify).sjd(watched, start, noise=noise, **options)


def twins(noise: Noise) -> Noise:
    """Every second row has the numbers of the one before."""
    return Numbered(noise, lambda index: index, noise.keys[torch.arange(len(noise.keys)) // 2 * 2])


W, G, EVERY = {"window": WINDOW}, {"gamma": GAMMA}, ("chain", "order 2", "hidden", "counter", "far", "hash", "guided")
EVERYWHERE = partial(from_place, first=0, share=0.3)
FLATTER = "law flatter by a tenth beyond token 5"
# The decoder, its options, its fault, and the models on which it is looked for: of a correct one all.
VARIANTS: dict[str, tuple[Decoder, dict[str, Any], str, tuple[str, ...]]] = {
    "ar": (ar, {}, "none", EVERY),
    "sjd": (sjd, W, "none", EVERY),
    "spec": (spec, G, "none", EVERY),
    "sjd: late reuse": (
        with_noise(sjd, lambda noise: Numbered(noise, reused)), W, f"noise used again from pass {LATE} on", ("chain",)
    ),
    "sjd: beyond 5": (with_laws(sjd, partial(from_place, first=6)), W, FLATTER, ("hidden",)),
    "spec: beyond 5": (with_laws(spec, partial(from_place, first=6)), G, FLATTER, ("counter",)),
    "sjd: last": (
        with_laws(sjd, partial(from_place, first=0, share=0.5), last=True), W, "last token's law flatter by half",
        ("chain",),
    ),
    "sjd: border": (BORDER, W, "last draft of the window unverified", ("chain",)),
    "sjd: tolerance": (partial(sjd, tolerance=0.02), W, "accept +0.02", ("counter",)),
    "sjd: one in 50": (
        with_laws(sjd, partial(from_place, first=0, share=0.02)), W, "every 50th token uniform", ("order 2",)
    ),
    "ar: twins": (with_noise(ar, twins), {}, "rows share their noise", ("hidden",)),
    "ar: twins of 9 to 64": (
        with_noise(ar, twins_between), {}, "rows share their noise in batches of 9 to 64", ("chain",)
    ),
    "sjd: accept reuse": (
        with_noise(sjd, lambda noise: Numbered(noise, reused, only="accept")), W,
        f"acceptance uniforms again from pass {LATE} on",
        ("chain",),
    ),
    "sjd: late residual": (late_residual, W, f"residual p from token {FAR} on", ("far",)),
    "sjd: row border": (with_laws(sjd, at_rows), W, "first law of every row flatter", ("order 2",)),
    "sjd: ahead": (with_laws(sjd, if_ahead), W, "laws flatter where rows differ in place", ("chain",)),
    "sjd: alone": (in_small(sjd, with_laws(sjd, EVERYWHERE), 1), W, "laws flatter when alone in the batch", ("chain",)),
    "spec: small batch": (
        in_small(spec, with_laws(spec, EVERYWHERE), 3), G, "laws flatter in batches of three or fewer",
        ("chain",),
    ),
    "sjd: rollback": (
        with_model(sjd, lambda model: Rolled(model, 2)), W, "laws flatter after a rollback of 14 or more",
        ("chain",),
    ),
    "sjd: one in 1000": (with_laws(sjd, anything), W, "a token in 1,000 is any", ("hash",)),
    "sjd: guidance": (with_model(sjd, partial(resampled, guidance=1.6)), W, "guidance 1.6 for 2", ("guided",)),
    "sjd: top-k": (with_model(sjd, partial(resampled, top_k=6)), W, "top-k 6 for 5", ("guided",)),
}  # fmt: skip


def planted_rows(decoder: Decoder, options: dict[str, Any], every: Sequence[Any], seed: int) -> list[Row]:
    """Rows of a decoder on long targets as one family; nothing it draws is an error."""
    rows: list[Row] = []
    for target in every:
        drawn = target.draw(decoder, 0, seed, options)._replace(ordered=True)
        rows += target.rows_of(drawn, "long", seed, 0)
    R.family(rows)
    return rows


def trials(n: int, seeds: Sequence[int], draws: int = 0, threads: int = 1) -> Iterator[Trial]:
    """Every variant, n tokens a target; its tests are one family."""
    yield from over(VARIANTS, targets, n)


def over(variants: dict[str, tuple[Decoder, dict[str, Any], str, tuple[str, ...]]], of: Any, n: int) -> Iterator[Trial]:
    """Trials of variants on targets `of` their options."""
    for method, (decoder, options, fault, names) in variants.items():
        every = [t for t in of(options, n) if t.name.startswith(names)]
        yield Trial(method, fault, partial(planted_rows, decoder, options, every), n >= ENOUGH, TESTS)
