"""Speculative sampling with a fault, as a law: what the faulty sampler's sequences are distributed like.

    predicted(p, q, block=4, drawn=q, recorded=q, ...) -> joint [V^L]

A block of drafts is verified from left to right (Leviathan et al. 2023, Alg. 1). Laws are tables [N, V] of conditionals
by prefix, so the law of the loop follows by adding up, over all prefixes, the probability that a block starts there,
that its first i drafts stand, and what is drawn in place of the next. A fault is one of the laws exchanged for another.
`parity_certify.simulated` draws the same loop where a fault ties draws together (a seed used again, a cache that keeps
what was rejected), which laws of single prefixes do not express.
"""

import itertools
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from parity_certify.laws import Law, first_of, joint_of
from parity_certify.simulated import TIED, TINY, residual, simulated

TEMPERATURES = (0.5, 0.8, 1.25, 2.0)
SURPLUSES = (0.01, 0.05, 0.1, 0.3)


def difference(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    rest = np.abs(p - q)
    total = rest.sum(-1, keepdims=True)
    return np.where(total > 1e-12, rest / np.maximum(total, TINY), p)


def argmax(q: np.ndarray) -> np.ndarray:
    return np.eye(q.shape[-1])[q.argmax(-1)]


def warmed(q: np.ndarray, temperature: float) -> np.ndarray:
    with np.errstate(divide="ignore"):
        hot = np.log(q) / temperature
    hot = np.exp(hot - hot.max(-1, keepdims=True))
    return hot / hot.sum(-1, keepdims=True)


def keep_top_k(q: np.ndarray, k: int) -> np.ndarray:
    """The k likeliest tokens."""
    least = np.sort(q, -1)[..., -k][..., None]
    cut = np.where(q >= least, q, 0)
    return cut / cut.sum(-1, keepdims=True)


def predicted(
    p: np.ndarray,
    q: np.ndarray,
    *,
    block: int,
    drawn: np.ndarray | None = None,
    recorded: np.ndarray | None = None,
    correct: Callable[[np.ndarray, np.ndarray], np.ndarray] = residual,
    bonus: str = "target",
    surplus: float = 0.0,
    offered: np.ndarray | None = None,
) -> np.ndarray:
    """The joint [V^L] of sequences of verified blocks.

    p, q [N, V]  target and draft; drawn, recorded: the laws that drafts are drawn from and that they are judged by
    correct      what a rejected draft is replaced from
    bonus        behind a block that stands: "target", the "draft"'s law, or the target's law of the "row before"
    surplus      added to the acceptance probability
    offered [N]  prefixes behind which the engine drafts at all; elsewhere a block ends, and the bonus law draws
    """
    V = p.shape[-1]
    length = round(np.log(len(p) * (V - 1) + 1) / np.log(V))
    d, r = q if drawn is None else drawn, q if recorded is None else recorded
    stands = np.clip(p / np.maximum(r, TINY) + surplus, 0, 1)
    stands = np.where((r <= 0) & (p <= 0) & (surplus == 0), 0.0, stands)
    instead = correct(p, r)
    state = [np.zeros((block + 1, V**depth)) for depth in range(length + 1)]  # mass by how much of its block stands
    state[0][0, 0] = 1.0
    for depth in range(length):
        rows = slice(first_of(V, depth), first_of(V, depth) + V**depth)
        mass = state[depth]
        if offered is not None:
            ends = np.where(offered[rows], 0.0, mass[:block].sum(0))
            mass = np.concatenate([mass[:block] * offered[rows], mass[block:] + ends])
        accept = d[rows] * stands[rows]  # [n, V]
        refuse = 1 - accept.sum(-1, keepdims=True)
        for i in range(block):
            state[depth + 1][i + 1] += (mass[i][:, None] * accept).ravel()
            state[depth + 1][0] += (mass[i][:, None] * refuse * instead[rows]).ravel()
        last = {"target": p[rows], "draft": q[rows]}.get(bonus)
        if last is None:  # the row of the place before: known where there is one
            above = first_of(V, max(depth - 1, 0)) + np.arange(V**depth) // (V if depth else 1)
            last = p[above]
        state[depth + 1][0] += (mass[block][:, None] * last).ravel()
    return state[length].sum(0)


class Suspect(NamedTuple):
    """A named fault, how its law is predicted, and how many variants share the name (its likelihood is divided)."""

    name: str
    law: Callable[[], np.ndarray]  # [K, V^L]
    variants: int = 1


def suspects(
    law: Law, draft: Law, block: int, *, bare: Law | None = None, offered: np.ndarray | None = None
) -> list[Suspect]:
    """Named faults of a sampler of `law` with drafts of the law `draft`, `block` at a time.

    bare     the target's law without guidance (and other processors)
    offered  [K, N] prefixes behind which drafts are offered
    """
    V, L = law.vocab, law.length
    asked = np.ones(law.tables.shape[:2], dtype=bool) if offered is None else offered

    def each(make: Callable[..., np.ndarray]) -> Callable[[], np.ndarray]:
        """Of make(p, q, loop), loop the faulty one under its changes."""

        def joint() -> np.ndarray:
            tables = zip(law.tables, draft.tables, asked, strict=True)
            return np.stack([make(p, q, partial(predicted, p, q, block=block, offered=o)) for p, q, o in tables])

        return joint

    def drawn(name: str) -> Callable[[], np.ndarray]:
        tables = list(zip(law.tables, draft.tables, asked, strict=True))
        return lambda: np.stack([simulated(p, q, block=block, fault=name, offered=o) for p, q, o in tables])

    others, cut = orders(V), range(1, V)
    found = [
        Suspect("argmax drafts with soft laws", each(lambda p, q, loop: loop(drawn=argmax(q)))),
        Suspect("residual not subtracted", each(lambda p, q, loop: loop(correct=lambda p, q: p))),
        Suspect("residual |p - q|", each(lambda p, q, loop: loop(correct=difference))),
        Suspect("bonus token from the draft", each(lambda p, q, loop: loop(bonus="draft"))),
        Suspect("bonus token from the wrong row", each(lambda p, q, loop: loop(bonus="row before"))),
        Suspect("greedy decoding", each(lambda p, q, loop: joint_of(argmax(p), L))),
        *(Suspect("draft's temperature not applied", each(lambda p, q, loop, t=t: loop(drawn=warmed(q, t))), 4)
          for t in TEMPERATURES),
        *(Suspect("draft's top-k not applied", each(lambda p, q, loop, m=m: loop(recorded=keep_top_k(q, m))), V - 1)
          for m in cut),
        *(Suspect("draft's law recorded under other tokens",
                  each(lambda p, q, loop, o=o, side=side: loop(**{side: q[:, o]})), 2 * len(others))
          for o in others for side in ("drawn", "recorded")),
        *(Suspect("acceptance too large", each(lambda p, q, loop, s=s: loop(surplus=s)), 4) for s in SURPLUSES),
        *(Suspect(name, drawn(name)) for name in TIED),
    ]  # fmt: skip
    if bare is not None and not np.allclose(bare.tables, law.tables):
        found.append(Suspect("guidance (or another processor) missing in the target", lambda: bare.joint))
    return found


def orders(vocab: int) -> list[np.ndarray]:
    """Ways to mistake tokens for others: every order of up to 4 tokens, of more every transposition and rotation."""
    if vocab <= 4:
        return [np.array(order) for order in itertools.permutations(range(vocab))][1:]
    found = [np.roll(np.arange(vocab), s) for s in range(1, vocab)]
    for i in range(vocab):
        for j in range(i + 1, vocab):
            order = np.arange(vocab)
            order[[i, j]] = order[[j, i]]
            found.append(order)
    return found
