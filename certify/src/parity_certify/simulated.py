"""Speculative sampling drawn many sequences at a time, with faults that tie draws together.

simulated(p, q, block=4, fault="seed reused") -> joint [V^L], of n sequences

"none"
"seed reused"            every block is drafted and verified with the same random numbers
"shared uniform"         one acceptance number a block
"cache not rolled back"  what was fed as a draft and rejected stays in the target's context
"unverified kept"        the draft behind the rejected one is kept
"nothing verified"       drafts stand as they are
"""

import numpy as np

from parity_certify.laws import first_of

TIED = ("seed reused", "shared uniform", "cache not rolled back", "unverified kept", "nothing verified")
TINY = 1e-300


def residual(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """max(0, p - q) as a law; p where the two agree."""
    rest = np.maximum(p - q, 0)
    total = rest.sum(-1, keepdims=True)
    return np.where(total > 1e-12, rest / np.maximum(total, TINY), p)


def race(law: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Draws [n] from laws [n, V] by exponentials [n, V]."""
    return np.argmax(law / np.maximum(numbers, TINY), 1)


class Loop:
    """n sequences under way: tokens, what the target's context holds (`seen`), and where each stands (`at`)."""

    def __init__(self, p: np.ndarray, q: np.ndarray, block: int, fault: str, offered: np.ndarray | None, n: int):
        self.p, self.q, self.block, self.fault, self.n = p, q, block, fault, n
        self.V = p.shape[-1]
        self.length = round(np.log(len(p) * (self.V - 1) + 1) / np.log(self.V))
        self.offered = np.ones(len(p), dtype=bool) if offered is None else offered
        self.rows, self.at = np.arange(n), np.zeros(n, dtype=np.int64)
        self.tokens = np.zeros((n, self.length + block + 2), dtype=np.int64)
        self.seen = self.tokens.copy()
        self.first = np.array([first_of(self.V, t) for t in range(self.length)])
        self.powers = self.V ** np.arange(self.length)

    def look(self, table: np.ndarray, context: np.ndarray, where: np.ndarray) -> np.ndarray:
        """Rows of a table at the prefixes context[:, :where]."""
        where = np.minimum(where, self.length - 1)
        exponent = where[:, None] - 1 - np.arange(self.length)
        digit = context[:, : self.length] * self.powers[np.maximum(exponent, 0)]
        return table[self.first[where] + np.where(exponent >= 0, digit, 0).sum(1)]

    def write(self, where: np.ndarray, rows: np.ndarray, token: np.ndarray, memory: np.ndarray) -> None:
        self.tokens[self.rows[rows], where[rows]] = token[rows]
        self.seen[self.rows[rows], where[rows]] = memory[rows]

    def draft(self, numbers: list[np.ndarray]) -> list[np.ndarray]:
        context, drafts = self.tokens.copy(), []
        for i in range(self.block):
            drafts.append(race(self.look(self.q, context, self.at + i), numbers[i]))
            context[self.rows, self.at + i] = drafts[-1]
        return drafts

    def step(self, numbers: list[np.ndarray]) -> None:
        """A block of every sequence that is not done."""
        live, n, block = self.at < self.length, self.n, self.block
        drafts, standing, closed = self.draft(numbers), live.copy(), np.zeros(n, dtype=bool)
        count, rejected, stop = np.zeros(n, dtype=np.int64), np.full(n, -1), np.full(n, block)
        for i in range(block):
            where, own = self.at + i, drafts[i]
            ends = standing & ~self.look(self.offered, self.tokens, where)  # nothing is offered here
            stop[ends], closed, asked = i, closed | ends, standing & ~ends
            truth, guess = self.look(self.p, self.seen, where), self.look(self.q, self.tokens, where)
            u = numbers[-1][:, 0 if self.fault == "shared uniform" else i]
            good = u < truth[self.rows, own] / np.maximum(guess[self.rows, own], TINY)
            good |= self.fault == "nothing verified"
            token = np.where(good, own, race(residual(truth, guess), numbers[block + i]))
            self.write(where, asked, token, own if self.fault == "cache not rolled back" else token)
            count, rejected = count + asked, np.where(asked & ~good, i, rejected)
            standing = asked & good
        whole, last = standing | closed, self.at + stop
        bonus = race(self.look(self.p, self.seen, last), numbers[2 * block])
        self.write(last, whole, bonus, bonus)
        count += whole
        if self.fault == "unverified kept":
            more = live & (rejected >= 0) & (rejected < stop - 1)
            behind = np.stack(drafts, 1)[self.rows, np.minimum(rejected + 1, block - 1)]
            self.write(self.at + count, more, behind, behind)
            count += more
        self.at = np.minimum(self.at + count, self.length)


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
    """The joint [V^L] of n sequences with target p and draft q [N, V]; offered [N] as in `faults.predicted`."""
    loop, rng = Loop(p, q, block, fault, offered, n), np.random.default_rng(seed)
    held: list[np.ndarray] = []
    while (loop.at < loop.length).any():
        if not (held and fault == "seed reused"):
            held = [rng.exponential(size=(n, loop.V)) for _ in range(2 * block + 1)] + [rng.random((n, block))]
        loop.step(held)
    codes = loop.tokens[:, : loop.length] @ loop.V ** np.arange(loop.length - 1, -1, -1)
    return np.bincount(codes, minlength=loop.V**loop.length) / n
