"""Two compact discrete decoders that carry the faults: `classical`, with a draft model and a bonus token (Leviathan
et al. 2023), and `jacobi`, speculative Jacobi with a coupled transport of drafts (as in MC-SJD). Without a fault they
must pass.
"""

from collections.abc import Iterator, Sequence
from functools import cache, partial
from itertools import count
from typing import Literal, get_args

import numpy as np
import torch
from parity_certify.joint_tests import TESTS, joint_rows, total_variation, tv_interval
from parity_certify.result_rows import Row
from torch import Tensor

from parity.base.noise import Noise
from parity.decoders.steps import Step
from parity.decoders.verification import race, residual
from parity.equality.faults import Trial, hit
from parity.equality.targets import Decoder
from parity.equality.targets.discrete import Target
from parity.models.discrete.protocol import TokenModel
from parity.models.discrete.tabular import TabularModel, random_table

ClassicalFault = Literal[
    "none", "residual p", "residual |p - q|", "shared uniform", "accept +0.01", "accept +0.05", "draft temperature",
    "bonus from q", "bonus wrong index", "unverified kept", "lockstep", "seed reused",
]  # fmt: skip
JacobiFault = Literal["none", "stored q", "residual p", "shared uniform", "seed reused"]
TEAM = 4  # rows of the lockstep fault that advance together


def correction(p: Tensor, q: Tensor, fault: str) -> Tensor:
    """What a rejected draft is replaced from, unnormalised [..., V]."""
    if fault == "residual p":
        return p
    return (p - q).abs() if fault == "residual |p - q|" else residual(p, q)


def laws_of(model: TokenModel, tokens: Tensor, places: Tensor) -> Tensor:
    """Laws of `places` [B, S] after tokens [B, S], each the token before its place; past the end those of the last."""
    return model.logits(tokens, (places - 1).clamp(max=model.length - 1)).softmax(-1)


def drafted(
    drafter: TokenModel, last: Tensor, where: Tensor, index: Tensor, noise: Noise, held: tuple[Tensor, ...], fault: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Drafts [B, block] at where[:, :block], their laws, and the law behind the last of them [B, V].

    held  counts [B], drafts and laws: the first so many drafts of a row stand from the pass before
    """
    drafts, laws, token = [], [], last
    for k in range(where.shape[1] - 1):
        q = laws_of(drafter, token[:, None], where[:, k : k + 1])[:, 0]
        law = (q.log() / 0.8).softmax(-1) if fault == "draft temperature" else q
        stands = held[0] > k
        token = torch.where(stands, held[1][:, k], race(law, noise.exponential("draft", index[:, k], drafter.vocab)))
        drafts.append(token)
        laws.append(torch.where(stands[:, None], held[2][:, k], q))
    return torch.stack(drafts, 1), torch.stack(laws, 1), laws_of(drafter, token[:, None], where[:, -1:])[:, 0]


def uniforms(noise: Noise, index: Tensor, fault: str) -> Tensor:
    """Acceptance numbers [B, S] of slots numbered by index [., S]."""
    return noise.uniform("accept", index[:, :1].expand(index.shape) if fault == "shared uniform" else index)


def last_final(last: Tensor, tokens: Tensor, kept: Tensor) -> Tensor:
    """The last final token [B] after kept [B] of tokens [B, S] became final; `last` if none did."""
    return torch.cat([last[:, None], tokens], 1).gather(1, kept[:, None])[:, 0]


@torch.inference_mode()
def classical(
    model: TokenModel,
    start: Tensor,
    *,
    noise: Noise,
    draft_seed: int = 1,
    block: int = 3,
    fault: ClassicalFault = "none",
) -> Iterator[Step]:
    """Draft `block` tokens from a random draft model, verify them in one pass, draw one more from p if all stand."""
    B, L, V = len(start), model.length, model.vocab
    drafter = TabularModel(random_table(V, L, torch.Generator().manual_seed(draft_seed)), L, B)
    slot = torch.arange(block + 1)[None]
    at, last = torch.zeros_like(start), start
    held: tuple[Tensor, ...] = (
        torch.zeros_like(start), torch.zeros(B, block, dtype=torch.int64), torch.zeros(B, block, V, dtype=noise.dtype)
    )  # fmt: skip  # lockstep alone holds any
    for step in count():
        if int(at.min()) >= L:
            return
        index = slot if fault == "seed reused" else step * (block + 1) + slot
        where = at[:, None] + slot
        draft, q, bonus_q = drafted(drafter, last, where, index, noise, held, fault)
        p = laws_of(model, torch.cat([last[:, None], draft], 1), where)
        ratio = p[:, :block].gather(-1, draft[..., None])[..., 0] / q.gather(-1, draft[..., None])[..., 0]
        surplus = {"accept +0.01": 0.01, "accept +0.05": 0.05}.get(fault, 0.0)
        accepted = uniforms(noise, index, fault)[:, :block] < ratio + surplus
        n = accepted.long().cumprod(-1).sum(-1)  # [B] 0..block
        bonus = {"bonus from q": bonus_q, "bonus wrong index": p[:, block - 1]}.get(fault, p[:, block])
        last_law = torch.cat([correction(p[:, :block], q, fault), bonus[:, None]], 1)
        drawn, wide = race(last_law, noise.exponential("sample", index, V)), torch.cat([draft, draft[:, :1]], 1)
        tokens, kept = torch.where(slot < n[:, None], wide, drawn), n + 1
        if fault == "unverified kept":  # the draft behind the rejected one
            tokens = torch.where((slot == n[:, None] + 1) & (slot < block), wide, tokens)
            kept = torch.where(n < block - 1, n + 2, n + 1)
        if fault == "lockstep":  # a row ahead of its team waits, and its accepted drafts are put to the test again
            slowest = torch.cat([kept, kept.new_full((-B % TEAM,), block + 1)]).view(-1, TEAM).amin(1)
            kept = slowest.repeat_interleave(TEAM)[:B]
            source = (kept[:, None] + slot[:, :block]).clamp(max=block - 1)
            laws = q.gather(1, source[..., None].expand(-1, -1, V))
            held = (n - kept).clamp(min=0), draft.gather(1, source), laws
        kept = kept.minimum(L - at)
        yield Step(tokens, kept, at)
        last, at = last_final(last, tokens, kept), at + kept


@torch.inference_mode()
def jacobi(
    model: TokenModel, start: Tensor, *, noise: Noise, window: int = 3, fault: JacobiFault = "none"
) -> Iterator[Step]:
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
    **{f"classical: {f}": (partial(classical, fault=f), f) for f in get_args(ClassicalFault)},
    **{f"jacobi: {f}": (partial(jacobi, fault=f), f) for f in get_args(JacobiFault)},
}
OUTCOME = (*TESTS, "all four")
NEEDED = {
    "accept +0.01": 100_000
}  # sequences in which a fault must show; an acceptance .01 too large is a TV of about .01


def target() -> Target:
    """The model that is decoded: (V, L) = (3, 5), a random table."""
    return Target("mutants 3x5", random_table(3, 5, torch.Generator().manual_seed(0)), 5, 5)


def trials(n: int, seeds: Sequence[int], draws: int = 1999, threads: int = 1) -> Iterator[Trial]:
    """Every variant at n, and a fault that needs more at 10 n as well: a row a test.

    effect    TVhat from 3 n more draws, whose expectation for a perfect sampler is `floor`
    detected  whether the combined test rejects on the row's seed
    """
    T, many = target(), 3 * n
    floor = float(0.5 * np.sqrt(2 / np.pi * T.law * (1 - T.law) / many).sum())  # E|N(0, s^2)| = s sqrt(2 / pi)

    def counted(decoder: Decoder, size: int, seed: int) -> np.ndarray:
        return np.bincount(T.draw(decoder, size, seed, {}, threads), minlength=len(T.law))

    @cache
    def moved(decoder: Decoder) -> dict[str, float]:
        counts = counted(decoder, many, seeds[0] + 10_000)
        low, high = tv_interval(counts, T.law)
        return {"effect": float(total_variation(counts, T.law)), "tv_low": low, "tv_high": high, "floor": floor}

    def sample(decoder: Decoder, size: int, seed: int) -> list[Row]:
        rng, counts = np.random.default_rng([seed, size]), counted(decoder, size, seed)
        rows = joint_rows("mutants", counts, T.law, T.vocab, T.length, rng=rng, draws=draws, model=T.name)
        altered_rows = moved(decoder) | {"detected": hit(rows)}
        return [r | altered_rows for r in rows if r["test"] in OUTCOME]

    for method, (decoder, fault) in VARIANTS.items():
        for size in (n, 10 * n) if fault in NEEDED else (n,):
            yield Trial(method, fault, partial(sample, decoder, size), size >= NEEDED.get(fault, 10_000), OUTCOME)
