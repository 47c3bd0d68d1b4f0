"""Speculative sampling with a fault, as a law: what the faulty sampler's sequences are distributed like.

    predicted(p, q, block=4, drawn=q, recorded=q, ...) -> joint [V^L]

A block of drafts is verified from left to right (Leviathan et al. 2023, Alg. 1). Laws are tables [N, V] of conditionals
by prefix, so the law of the loop follows by adding up, over all prefixes, the probability that a block starts there,
that its first i drafts stand, and what is drawn in place of the next. A fault is one of the laws exchanged for another.
`simulated` draws the same loop where a fault ties draws together (a seed used again, a cache that keeps what was
rejected), which laws of single prefixes do not express.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from parity.certify.laws import Law, first_of, joint_of

TINY = 1e-300
TEMPERATURES = (0.5, 0.8, 1.25, 2.0)
SURPLUSES = (0.01, 0.05, 0.1, 0.3)
TIED = ("seed reused", "shared uniform", "cache not rolled back", "unverified kept", "nothing verified")


def residual(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """max(0, p - q) as a law; p where the two agree."""
    rest = np.maximum(p - q, 0)
    total = rest.sum(-1, keepdims=True)
    return np.where(total > 1e-12, rest / np.maximum(total, TINY), p)


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


def kept(q: np.ndarray, k: int) -> np.ndarray:
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


def simulated(
    p: np.ndarray,
    q: np.ndarray,
    *,
    block: int,
    fault: str,
    offered: np.ndarray | None = None,
    n: int = 50_000,
    seed: int = 0,
) -> np.ndarray:
    """The joint [V^L] of n sequences of the loop with a fault that ties draws together.

    "seed reused"            every block is drafted and verified with the same random numbers
    "shared uniform"         one acceptance number a block
    "cache not rolled back"  what was fed as a draft and rejected stays in the target's context
    "unverified kept"        the draft behind the rejected one is kept
    "nothing verified"       drafts stand as they are
    """
    V = p.shape[-1]
    length = round(np.log(len(p) * (V - 1) + 1) / np.log(V))
    rng, rows = np.random.default_rng(seed), np.arange(n)
    tokens = np.zeros((n, length + block + 2), dtype=np.int64)
    seen = tokens.copy()  # what the target's context holds
    at = np.zeros(n, dtype=np.int64)
    first = np.array([first_of(V, t) for t in range(length)])
    powers = V ** np.arange(length)

    drafted = np.ones(len(p), dtype=bool) if offered is None else offered

    def laws(table: np.ndarray, context: np.ndarray, where: np.ndarray) -> np.ndarray:
        where = np.minimum(where, length - 1)
        exponent = where[:, None] - 1 - np.arange(length)
        codes = np.where(exponent >= 0, context[:, :length] * powers[np.maximum(exponent, 0)], 0).sum(1)
        return table[first[where] + codes]

    def draw(law: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        return np.argmax(law / np.maximum(numbers, TINY), 1)

    held: list[np.ndarray] = []
    while (at < length).any():
        live = at < length
        fresh = [rng.exponential(size=(n, V)) for _ in range(2 * block + 1)] + [rng.random((n, block))]
        numbers = held = held or fresh if fault == "seed reused" else fresh
        open_, count, rejected = live.copy(), np.zeros(n, dtype=np.int64), np.full(n, -1)
        closed = np.zeros(n, dtype=bool)  # blocks that end where nothing was offered
        drafts, context = [], tokens.copy()
        for i in range(block):
            drafts.append(draw(laws(q, context, at + i), numbers[i]))
            context[rows, at + i] = drafts[-1]
        stop = np.full(n, block)  # how many drafts of the block were offered
        for i in range(block):
            where = at + i
            ends = open_ & (stop == block) & ~laws(drafted, tokens, where)
            stop[ends], asked = i, open_ & ~ends
            truth, guess, own = laws(p, seen, where), laws(q, tokens, where), drafts[i]
            u = numbers[-1][:, 0 if fault == "shared uniform" else i]
            good = u < truth[rows, own] / np.maximum(guess[rows, own], TINY)
            if fault == "nothing verified":
                good = np.ones(n, dtype=bool)
            token = np.where(good, own, draw(residual(truth, guess), numbers[block + i]))
            memory = own if fault == "cache not rolled back" else token
            tokens[rows[asked], where[asked]] = token[asked]
            seen[rows[asked], where[asked]] = memory[asked]
            count += asked
            rejected = np.where(asked & ~good, i, rejected)
            open_ = asked & good
            closed = closed | ends
        open_ = open_ | closed
        last = at + stop
        bonus = draw(laws(p, seen, last), numbers[2 * block])
        tokens[rows[open_], last[open_]] = seen[rows[open_], last[open_]] = bonus[open_]
        count += open_
        if fault == "unverified kept":
            more = live & (rejected >= 0) & (rejected < stop - 1)
            behind = np.stack(drafts, 1)[rows, np.minimum(rejected + 1, block - 1)]
            tokens[rows[more], (at + count)[more]] = seen[rows[more], (at + count)[more]] = behind[more]
            count += more
        at = np.minimum(at + count, length)
    codes = tokens[:, :length] @ V ** np.arange(length - 1, -1, -1)
    return np.bincount(codes, minlength=V**length) / n


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
        *(Suspect("draft's top-k not applied", each(lambda p, q, loop, m=m: loop(recorded=kept(q, m))), V - 1)
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
    """Ways to mistake tokens for others: every transposition and rotation."""
    found = [np.roll(np.arange(vocab), s) for s in range(1, vocab)]
    for i in range(vocab):
        for j in range(i + 1, vocab):
            order = np.arange(vocab)
            order[[i, j]] = order[[j, i]]
            found.append(order)
    return found
