"""Faults of discrete decoders: carried by two compact decoders, and planted in the shipped ones.

`classical` has a draft model and a bonus token (Leviathan et al. 2023), `jacobi` is speculative Jacobi with a coupled
transport of drafts (as in MC-SJD); without a fault they must pass. Faults that short sequences do not show are shipped
decoders with one thing changed: the noise, the laws they see, or how they verify.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any

import numpy as np
import torch
from parity_certify.joint_tests import make_joint_rows
from parity_certify.result_rows import Row
from parity_decoders.discrete.ar import ar
from parity_decoders.discrete.sjd import sjd
from parity_decoders.discrete.spec import spec
from parity_decoders.noise import Noise
from parity_decoders.protocols.discrete import TokenModel
from parity_decoders.sampling import Sampled
from parity_decoders.steps import Step
from parity_decoders.verification import Verified, race, residual, verify
from torch import Tensor

from parity.equality.faults import (
    FAR,
    Correct,
    Faulty,
    Overridden,
    Trial,
    altered,
    in_small,
    renumbered,
    trials_on_long,
    twins,
    twins_between,
    with_model,
    with_noise,
)
from parity.equality.targets import Decoder
from parity.equality.targets.discrete import Target, long_targets
from parity.models.discrete.tabular import TabularModel, random_table

CLASSICAL = (
    "none", "residual p", "residual |p - q|", "shared uniform", "accept +0.01", "accept +0.05", "draft temperature",
    "bonus from q", "bonus wrong index", "unverified kept", "lockstep", "seed reused",
)  # fmt: skip
JACOBI = ("none", "stored q", "residual p", "shared uniform", "seed reused")
BLOCK = 3  # drafts of `classical`
TEAM = 4  # rows of the lockstep fault that advance together
# Sequences in which a fault must show; an acceptance .01 too large is a TV of about .01.
NEEDED = {"accept +0.01": 100_000}
WINDOW = 16
LATE = 6  # the pass from which noise is used again
SJD = "parity_decoders.discrete.sjd"


def correction(p: Tensor, q: Tensor, fault: str) -> Tensor:
    """The unnormalised law [..., V] that replaces a rejected draft."""
    if fault == "residual p":
        return p
    return (p - q).abs() if fault == "residual |p - q|" else residual(p, q)


def laws_of(model: TokenModel, tokens: Tensor, places: Tensor) -> Tensor:
    """Laws at `places` [B, S] after the tokens [B, S] before each place; past the end, those of the last place."""
    return model.logits(tokens, (places - 1).clamp(max=model.length - 1)).softmax(-1)


def drafted(
    drafter: TokenModel, last: Tensor, where: Tensor, index: Tensor, noise: Noise, old: tuple[Tensor, ...], fault: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Drafts [B, BLOCK] at where[:, :BLOCK], their laws, and the law behind the last of them [B, V].

    old  counts [B], drafts and laws: the first so many drafts of a row stand from the pass before
    """
    drafts, laws, token = [], [], last
    for k in range(where.shape[1] - 1):
        q = laws_of(drafter, token[:, None], where[:, k : k + 1])[:, 0]
        law = (q.log() / 0.8).softmax(-1) if fault == "draft temperature" else q
        stands = old[0] > k
        token = torch.where(stands, old[1][:, k], race(law, noise.exponential("draft", index[:, k], drafter.vocab)))
        drafts.append(token)
        laws.append(torch.where(stands[:, None], old[2][:, k], q))
    return torch.stack(drafts, 1), torch.stack(laws, 1), laws_of(drafter, token[:, None], where[:, -1:])[:, 0]


def uniforms(noise: Noise, index: Tensor, fault: str) -> Tensor:
    """Acceptance numbers [B, S] of slots numbered by index [., S]."""
    return noise.uniform("accept", index[:, :1].expand(index.shape) if fault == "shared uniform" else index)


def last_final(last: Tensor, tokens: Tensor, kept: Tensor) -> Tensor:
    """The last final token [B] after kept [B] of tokens [B, S] became final; `last` if none did."""
    return torch.cat([last[:, None], tokens], 1).gather(1, kept[:, None])[:, 0]


@torch.inference_mode()
def classical(model: TokenModel, start: Tensor, *, noise: Noise, fault: str = "none") -> Iterator[Step]:
    """Draft BLOCK tokens from a random draft model, verify them in one pass, draw one more from p if all stand."""
    B, L, V = len(start), model.length, model.vocab
    drafter = TabularModel(random_table(V, L, torch.Generator().manual_seed(1)), L, B)
    slot, at, last = torch.arange(BLOCK + 1)[None], torch.zeros_like(start), start
    old: tuple[Tensor, ...] = (  # the fault "lockstep" alone has any
        torch.zeros_like(start), torch.zeros(B, BLOCK, dtype=torch.int64), torch.zeros(B, BLOCK, V, dtype=noise.dtype)
    )  # fmt: skip
    for step in count():
        if int(at.min()) >= L:
            return
        index = slot if fault == "seed reused" else step * (BLOCK + 1) + slot
        where = at[:, None] + slot
        draft, q, bonus_q = drafted(drafter, last, where, index, noise, old, fault)
        p = laws_of(model, torch.cat([last[:, None], draft], 1), where)
        ratio = p[:, :BLOCK].gather(-1, draft[..., None])[..., 0] / q.gather(-1, draft[..., None])[..., 0]
        surplus = {"accept +0.01": 0.01, "accept +0.05": 0.05}.get(fault, 0.0)
        accepted = uniforms(noise, index, fault)[:, :BLOCK] < ratio + surplus
        n = accepted.long().cumprod(-1).sum(-1)  # [B] 0..BLOCK
        bonus = {"bonus from q": bonus_q, "bonus wrong index": p[:, BLOCK - 1]}.get(fault, p[:, BLOCK])
        last_law = torch.cat([correction(p[:, :BLOCK], q, fault), bonus[:, None]], 1)
        drawn, wide = race(last_law, noise.exponential("sample", index, V)), torch.cat([draft, draft[:, :1]], 1)
        tokens, kept = torch.where(slot < n[:, None], wide, drawn), n + 1
        if fault == "unverified kept":  # the draft behind the rejected one
            tokens = torch.where((slot == n[:, None] + 1) & (slot < BLOCK), wide, tokens)
            kept = torch.where(n < BLOCK - 1, n + 2, n + 1)
        if fault == "lockstep":  # a row ahead of its team waits, and its accepted drafts are put to the test again
            slowest = torch.cat([kept, kept.new_full((-B % TEAM,), BLOCK + 1)]).view(-1, TEAM).amin(1)
            kept = slowest.repeat_interleave(TEAM)[:B]
            source = (kept[:, None] + slot[:, :BLOCK]).clamp(max=BLOCK - 1)
            laws = q.gather(1, source[..., None].expand(-1, -1, V))
            old = (n - kept).clamp(min=0), draft.gather(1, source), laws
        kept = kept.minimum(L - at)
        yield Step(tokens, kept, at)
        last, at = last_final(last, tokens, kept), at + kept


@torch.inference_mode()
def jacobi(model: TokenModel, start: Tensor, *, noise: Noise, window: int = 3, fault: str = "none") -> Iterator[Step]:
    """Maximal coupling: a later draft is kept with probability min(1, p/q), otherwise redrawn from the residual.

    Either way its law is now p, which the correct loop stores; "stored q" keeps the old law of a kept draft.
    """
    B, L, V = len(start), model.length, model.vocab
    slot = torch.arange(window)[None]
    at, last = torch.zeros_like(start), start
    draft = (noise.uniform("draft", slot) * V).long().clamp(max=V - 1)
    q = torch.full((B, window, V), 1 / V, dtype=noise.dtype)
    for step in count(1):
        if int(at.min()) >= L:
            return
        index = slot if fault == "seed reused" else step * window + slot
        p = laws_of(model, torch.cat([last[:, None], draft[:, :-1]], 1), at[:, None] + slot)
        u, own = uniforms(noise, index, fault), draft[..., None]
        stays = u * q.gather(-1, own)[..., 0] < p.gather(-1, own)[..., 0]
        tokens = torch.where(stays, draft, race(correction(p, q, fault), noise.exponential("sample", index, V)))
        stored = torch.where(stays[..., None], q, p) if fault == "stored q" else p
        kept = (stays.long().cumprod(-1).sum(-1) + 1).clamp(max=window).minimum(L - at)
        yield Step(tokens, kept, at)
        last, at = last_final(last, tokens, kept), at + kept
        source = kept[:, None] + slot
        new, source = source >= window, source.clamp(max=window - 1)
        fresh = (noise.uniform("draft", (step + 1) * window + slot) * V).long().clamp(max=V - 1)
        draft = torch.where(new, fresh, tokens.gather(1, source))
        q = torch.where(new[..., None], 1 / V, stored.gather(1, source[..., None].expand(-1, -1, V)))


VARIANTS: dict[str, tuple[Decoder, str]] = {  # the decoder, and its fault
    **{f"classical: {fault}": (partial(classical, fault=fault), fault) for fault in CLASSICAL},
    **{f"jacobi: {fault}": (partial(jacobi, fault=fault), fault) for fault in JACOBI},
}


def trials(n: int, seeds: Sequence[int], draws: int = 1999, threads: int = 1) -> Iterator[Trial]:
    """Every variant at n on a random table of (V, L) = (3, 5), and a fault that needs more at 10 n as well."""
    target = Target("mutants 3x5", random_table(3, 5, torch.Generator().manual_seed(0)), 5, 5)

    def sample(decoder: Decoder, size: int, seed: int) -> list[Row]:
        rng = np.random.default_rng([seed, size])
        counts = np.bincount(target.draw(decoder, size, seed, {}, threads), minlength=len(target.law))
        return make_joint_rows("mutants", counts, target.law, 3, 5, rng=rng, draws=draws, model=target.name)

    for method, (decoder, fault) in VARIANTS.items():
        for size in (n, 10 * n) if fault in NEEDED else (n,):
            yield Trial(method, fault, partial(sample, decoder, size), size >= NEEDED.get(fault, 10_000))


# Faults that short sequences do not show


def reused(index: Tensor) -> Tensor:
    """Numbers of the passes from LATE on are those of pass LATE."""
    return torch.where(index < LATE * WINDOW, index, LATE * WINDOW + index % WINDOW)


def with_logits(decoder: Decoder, logits: Callable[..., Tensor]) -> Decoder:
    """The decoder with logits(model, tokens, positions) in the place of the model's, after guidance."""
    return with_model(decoder, lambda model: Overridden(model, "logits", logits))


def flatter(logits: Tensor, share: float) -> Tensor:
    """Mixes the law with the uniform law over possible tokens, by a share."""
    p, can = logits.softmax(-1), logits > float("-inf")
    return ((1 - share) * p + share * can / can.sum(-1, keepdim=True)).log()


def everywhere(places: Tensor, last: int) -> Tensor:
    return places >= 0


def flatten_laws(decoder: Decoder, share: float, where: Callable[[Tensor, int], Tensor] = everywhere) -> Decoder:
    """Laws are flatter by a share where(places [B, S], last place) holds."""

    def logits(model: TokenModel, tokens: Tensor, positions: Tensor) -> Tensor:
        right = model.logits(tokens, positions)
        return torch.where(where(positions + 1, model.length - 1)[..., None], flatter(right, share), right)

    return with_logits(decoder, logits)


def beyond_5(places: Tensor, last: int) -> Tensor:
    return places > 5


def anything(model: TokenModel, tokens: Tensor, positions: Tensor) -> Tensor:
    """One token in a thousand is any token, possible or not."""
    logits = model.logits(tokens, positions)
    return (0.999 * logits.softmax(-1) + 0.001 / logits.shape[-1]).log()


def after_rollback(model: TokenModel) -> Overridden:
    """Laws are flatter after a pass in which all tokens of the window but two were dropped."""
    before: Tensor | None = None

    def logits(model: TokenModel, tokens: Tensor, positions: Tensor) -> Tensor:
        nonlocal before
        right, first = model.logits(tokens, positions), positions[:, 0]
        deep = torch.zeros_like(first) > 0 if before is None else first - before <= 2
        before = first
        return torch.where(deep[:, None, None], flatter(right, 0.3), right)

    return Overridden(model, "logits", logits)


def resampled(decoder: Decoder, **settings: Any) -> Decoder:
    """The decoder on a guided model with other sampling settings."""
    return with_model(decoder, lambda model: Sampled(model.model, replace(model.sampling, **settings)))


def unverified_last(p: Tensor, q: Tensor, draft: Tensor, point: Tensor, u: Tensor, *more: Any) -> Verified:
    """`verify` that accepts the last draft of a window as it is, wherever it is possible."""
    last = torch.arange(u.shape[1]) == WINDOW - 1
    return verify(p, torch.where(last[:, None], p, q), draft, point & ~last, u, *more)


def late_residual(model: TokenModel, start: Tensor, *, noise: Noise, **options: Any) -> Iterator[Step]:
    """sjd whose residual is the target's law from token FAR on."""
    places = torch.zeros(0)  # that the last pass asked for

    def logits(model: TokenModel, tokens: Tensor, positions: Tensor) -> Tensor:
        nonlocal places
        places = positions + 1
        return model.logits(tokens, positions)

    def faulty(p: Tensor, q: Tensor, draft: Tensor, point: Tensor, u: Tensor, e: Tensor, *more: Any) -> Verified:
        right = verify(p, q, draft, point, u, e, *more)
        corrected = (torch.arange(p.shape[1]) == right.kept[:, None] - 1) & (right.tokens != draft) & ~point
        late = places[:, : p.shape[1]] >= FAR
        return right._replace(tokens=torch.where(corrected & late, race(p, e), right.tokens))

    return with_logits(altered(SJD, verify=faulty).sjd, logits)(model, start, noise=noise, **options)


FLATTER = "law flatter by a tenth beyond token 5"
CORRECT: Correct = {"ar": (ar, {}), "sjd": (sjd, {"window": WINDOW}), "spec": (spec, {"gamma": 4})}
LONG: Faulty = {
    "sjd: late reuse": (renumbered(sjd, reused), f"noise used again from pass {LATE} on", "chain"),
    "sjd: beyond 5": (flatten_laws(sjd, 0.1, beyond_5), FLATTER, "hidden"),
    "spec: beyond 5": (flatten_laws(spec, 0.1, beyond_5), FLATTER, "counter"),
    "sjd: last": (
        flatten_laws(sjd, 0.5, lambda places, last: places >= last), "last token's law flatter by half", "chain"
    ),
    "sjd: border": (altered(SJD, verify=unverified_last).sjd, "last draft of the window unverified", "chain"),
    "sjd: tolerance": (partial(sjd, tolerance=0.02), "accept +0.02", "counter"),
    "sjd: one in 50": (flatten_laws(sjd, 0.02), "every 50th token uniform", "order 2"),
    "ar: twins": (with_noise(ar, twins), "rows share their noise", "hidden"),
    "ar: twins of 9 to 64": (with_noise(ar, twins_between), "rows share their noise in batches of 9 to 64", "chain"),
    "sjd: accept reuse": (
        renumbered(sjd, reused, only="accept"), f"acceptance uniforms again from pass {LATE} on", "chain"
    ),
    "sjd: late residual": (late_residual, f"residual p from token {FAR} on", "far"),
    "sjd: row border": (
        flatten_laws(sjd, 0.3, lambda places, _: places % 16 == 0), "first law of every row flatter", "order 2"
    ),
    "sjd: ahead": (  # of rows that are ahead of the slowest
        flatten_laws(sjd, 0.1, lambda places, _: places[:, :1] > places[:, :1].min()),
        "laws flatter where rows differ in place", "chain",
    ),
    "sjd: alone": (in_small(sjd, flatten_laws(sjd, 0.3), 1), "laws flatter when alone in the batch", "chain"),
    "spec: small batch": (
        in_small(spec, flatten_laws(spec, 0.3), 3), "laws flatter in batches of three or fewer", "chain"
    ),
    "sjd: rollback": (with_model(sjd, after_rollback), "laws flatter after a rollback of 14 or more", "chain"),
    "sjd: one in 1000": (with_logits(sjd, anything), "a token in 1,000 is any", "hash"),
    "sjd: guidance": (resampled(sjd, guidance=1.6), "guidance 1.6 for 2", "guided"),
    "sjd: top-k": (resampled(sjd, top_k=6), "top-k 6 for 5", "guided"),
}  # fmt: skip


def long_trials(n: int) -> Iterator[Trial]:
    yield from trials_on_long("discrete", CORRECT, LONG, long_targets, n)
