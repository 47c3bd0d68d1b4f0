"""Layer 2, mutants: decoders with one planted fault each, which the statistics of layer 1 must reject, and their correct originals.

    mutants(n=10_000, seeds=[0, 1], n_tv=100_000) -> rows: five for every (decoder, n, seed), with the joint TV measured from n_tv sequences

Two compact loops carry the faults: `classical` (Leviathan et al. 2023, with a draft model and a bonus token) and `jacobi` (speculative
Jacobi with a coupled transport of drafts, as in MC-SJD). Both satisfy the decoder signature. Without a fault they must pass.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import count
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from parity.base.noise import Noise
from parity.decoders.steps import Step
from parity.decoders.verification import race, residual
from parity.equality import counts as discrete
from parity.equality import rows as R
from parity.equality.exact import Decoder, Target, draw, exact_law
from parity.equality.rows import Row
from parity.models.discrete.protocol import TokenModel
from parity.models.discrete.tabular import TabularModel, random_table

ClassicalFault = Literal[
    "none", "residual p", "residual |p - q|", "shared uniform", "accept +0.01", "accept +0.05", "draft temperature",
    "bonus from q", "bonus wrong index", "unverified kept", "lockstep", "seed reused",
]  # fmt: skip
JacobiFault = Literal["none", "stored q", "residual p", "shared uniform", "seed reused"]
TEAM = 4  # rows of the lockstep mutant that advance together


def correction(p: Tensor, q: Tensor, fault: str) -> Tensor:
    """What a rejected draft is replaced from, unnormalised [..., V]."""
    if fault == "residual p":
        return p
    return (p - q).abs() if fault == "residual |p - q|" else residual(p, q)


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
    """Draft `block` tokens from a random draft model, verify them in one pass, draw one more from p when all are accepted."""
    B, L, V = len(start), model.length, model.vocab
    table = random_table(V, L, torch.Generator().manual_seed(draft_seed))
    drafter = TabularModel(table, L, B)
    slot = torch.arange(block + 1)[None]
    at, last = torch.zeros_like(start), start
    held = torch.zeros_like(start)  # drafts at the front of the block that stand from the last pass (lockstep only)
    old, old_q = torch.zeros(B, block, dtype=torch.int64), torch.zeros(B, block, V, dtype=noise.dtype)
    for step in count():
        if int(at.min()) >= L:
            return
        index = slot if fault == "seed reused" else step * (block + 1) + slot
        where = at[:, None] + slot
        drafts, laws, token = [], [], last
        for k in range(block):
            q = drafter.logits(token[:, None], (where[:, k : k + 1] - 1).clamp(max=L - 1))[:, 0].softmax(-1)
            law = (q.log() / 0.8).softmax(-1) if fault == "draft temperature" else q
            token = race(law, noise.exponential("draft", index[:, k], V))
            token = torch.where(held > k, old[:, k], token)
            drafts.append(token)
            laws.append(torch.where((held > k)[:, None], old_q[:, k], q))
        draft, q = torch.stack(drafts, 1), torch.stack(laws, 1)
        bonus_q = drafter.logits(token[:, None], (where[:, block:] - 1).clamp(max=L - 1))[:, 0].softmax(-1)

        p = model.logits(torch.cat([last[:, None], draft], 1), (where - 1).clamp(max=L - 1)).softmax(-1)
        u = noise.uniform("accept", index[:, :1].expand(-1, block + 1) if fault == "shared uniform" else index)[
            :, :block
        ]
        ratio = p[:, :block].gather(-1, draft[..., None])[..., 0] / q.gather(-1, draft[..., None])[..., 0]
        accepted = u < ratio + {"accept +0.01": 0.01, "accept +0.05": 0.05}.get(fault, 0.0)
        n = accepted.long().cumprod(-1).sum(-1)  # [B] 0..block
        bonus = {"bonus from q": bonus_q, "bonus wrong index": p[:, block - 1]}.get(fault, p[:, block])
        last_law = torch.cat([correction(p[:, :block], q, fault), bonus[:, None]], 1)
        drawn = race(last_law, noise.exponential("sample", index, V))
        tokens = torch.where(slot < n[:, None], torch.cat([draft, draft[:, :1]], 1), drawn)
        kept = n + 1
        if fault == "unverified kept":  # the draft behind the rejected one
            tokens = torch.where((slot == n[:, None] + 1) & (slot < block), torch.cat([draft, draft[:, :1]], 1), tokens)
            kept = torch.where(n < block - 1, n + 2, n + 1)
        if fault == "lockstep":  # a row ahead of its team waits, and its accepted drafts are put to the test again
            slowest = torch.cat([kept, kept.new_full((-B % TEAM,), block + 1)]).view(-1, TEAM).amin(1)
            kept = slowest.repeat_interleave(TEAM)[:B]
            held = (n - kept).clamp(min=0)
            source = (kept[:, None] + slot[:, :block]).clamp(max=block - 1)
            old, old_q = draft.gather(1, source), q.gather(1, source[..., None].expand(-1, -1, V))
        kept = kept.minimum(L - at)
        yield Step(tokens, kept, at)
        last = torch.cat([last[:, None], tokens], 1).gather(1, kept[:, None])[:, 0]
        at = at + kept


@torch.inference_mode()
def jacobi(
    model: TokenModel, start: Tensor, *, noise: Noise, window: int = 3, fault: JacobiFault = "none"
) -> Iterator[Step]:
    """Speculative Jacobi with maximal coupling: a later draft is kept with probability min(1, p/q), else redrawn from the residual.

    Either way its law is now p, which is what the correct loop stores; the fault "stored q" keeps the old law of a kept draft.
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
        where = at[:, None] + slot
        p = model.logits(torch.cat([last[:, None], draft[:, :-1]], 1), (where - 1).clamp(max=L - 1)).softmax(-1)
        u = noise.uniform("accept", index[:, :1].expand(-1, window) if fault == "shared uniform" else index)
        stays = u * q.gather(-1, draft[..., None])[..., 0] < p.gather(-1, draft[..., None])[..., 0]
        tokens = torch.where(stays, draft, race(correction(p, q, fault), noise.exponential("sample", index, V)))
        stored = torch.where(stays[..., None], q, p) if fault == "stored q" else p
        n = stays.long().cumprod(-1).sum(-1)
        kept = (n + 1).clamp(max=window).minimum(L - at)
        yield Step(tokens, kept, at)
        last = torch.cat([last[:, None], tokens], 1).gather(1, kept[:, None])[:, 0]
        at = at + kept
        source = kept[:, None] + slot
        new, source = source >= window, source.clamp(max=window - 1)
        fresh = (noise.uniform("draft", (step + 1) * window + slot) * V).long().clamp(max=V - 1)
        draft = torch.where(new, fresh, tokens.gather(1, source))
        q = torch.where(new[..., None], 1 / V, stored.gather(1, source[..., None].expand(-1, -1, V)))


def variants() -> dict[str, tuple[Decoder, str]]:
    """Every decoder of the layer by name: (decoder, its fault; "none" for the controls)."""
    found: dict[str, tuple[Decoder, str]] = {}
    for f in get_args(ClassicalFault):
        found[f"classical: {f}"] = (partial(classical, fault=f), f)
    for f in get_args(JacobiFault):
        found[f"jacobi: {f}"] = (partial(jacobi, fault=f), f)
    return found


def needed(fault: str) -> int:
    """The n at which a fault must be found; an acceptance probability 0.01 too large is a TV of about 0.01."""
    return 100_000 if fault == "accept +0.01" else 10_000


def target() -> Target:
    """The model that the mutants decode: (V, L) = (3, 5), a random table."""
    return Target("mutants 3x5", random_table(3, 5, torch.Generator().manual_seed(0)), 5, 5)


def mutants(
    n: int = 10_000,
    seeds: Sequence[int] = (0, 1),
    n_tv: int | None = None,
    draws: int = 1999,
    threads: int = 1,
    names: Sequence[str] = (),
) -> list[Row]:
    """Rows of every variant at n, and of the +0.01 mutant at 10 n as well; every test's row, and the joint TV from n_tv sequences (3 n).

    effect      TVhat from n_tv sequences, whose expectation for a perfect sampler is `floor`
    detected    whether the combined test rejects at .05 on the row's seed
    as_required whether the variant does what it must: a fault is found on every seed at the n that `needed` names (None at a smaller
                n); a control is not rejected on every seed (a rejection by chance, one in twenty, does not repeat)
    """
    T = target()
    law, n_tv = exact_law(T), n_tv or 3 * n
    floor = float(0.5 * np.sqrt(2 / np.pi * law * (1 - law) / n_tv).sum())  # E|N(0, s^2)| = s sqrt(2 / pi)
    found = []
    for name, (decoder, fault) in variants().items():
        if names and name not in names:
            continue
        many = np.bincount(draw(decoder, T, n_tv, seeds[0] + 10_000, {}, threads=threads), minlength=len(law))
        tv, (low, high) = float(discrete.total_variation(many, law)), discrete.tv_interval(many, law)
        for size in (n, 10 * n) if fault == "accept +0.01" else (n,):
            rows = []
            for repeat, seed in enumerate(seeds):
                counts = np.bincount(draw(decoder, T, size, seed, {}, threads=threads), minlength=len(law))
                rng = np.random.default_rng([seed, size])
                place = {"model": T.name, "method": name, "key": fault, "seed": seed, "repeat": repeat}
                rows += discrete.joint_rows("mutants", counts, law, T.vocab, T.length, rng=rng, draws=draws, **place)
            rows = [r for r in rows if r["test"] in (*discrete.TESTS, "all four")]
            detected = [r["p_value"] is not None and r["p_value"] <= R.ALPHA for r in rows if r["test"] == "all four"]
            required = not all(detected) if fault == "none" else all(detected) if size >= needed(fault) else None
            extra = {"effect": tv, "tv_low": low, "tv_high": high, "floor": floor, "as_required": required}
            found += [r | extra | {"detected": detected[r["repeat"]]} for r in rows]
    return found
