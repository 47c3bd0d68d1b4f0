"""Which fault fits a rejected sampler: the likeliest named one, with its likelihood ratio, or none of these.

    diagnose_counts(counts [K * V^L], law, list_suspects(law, draft, block)) -> {"says", "name", ...}

A suspect is speculative sampling with a fault, as a law: what the faulty sampler's sequences are distributed like. A
block of drafts is verified from left to right (Leviathan et al. 2023, Alg. 1). Laws are tables [N, V] of conditionals
by prefix, so the law of the loop follows by adding up, over all prefixes, the probability that a block starts there,
that its first i drafts stand, and what is drawn in place of the next (`predict_joint`). Faults that tie draws together
are simulated (TIED).

The likelihood of a fault is the multinomial one of its law. A fault with variants (a temperature, a permutation) has
the average of theirs. The likeliest is named if the samples do not reject its own law (joint G, simulated, at FITS).
"""

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from parity_certify.laws import Law, compute_joint, count_prefixes, select_level

FITS = 1e-3
NEARLY = 1e-3  # weight of the even law in every prediction: nothing is impossible
CLOSE = math.log(20)  # names whose likelihoods are within this of the best are given too
TINY = 1e-300
TEMPERATURES = (0.5, 0.8, 1.25, 2.0)
SURPLUSES = (0.01, 0.05, 0.1, 0.3)
TIED = (
    "seed reused",  # every block is drafted and verified with the same random numbers
    "shared uniform",  # one acceptance number a block
    "cache not rolled back",  # what was fed as a draft and rejected stays in the target's context
    "unverified kept",  # the draft behind the rejected one is kept
    "nothing verified",  # drafts stand as they are
)


def normalise(weights: np.ndarray, otherwise: np.ndarray) -> np.ndarray:
    """Weights [..., V] as laws; `otherwise` where all are zero."""
    total = weights.sum(-1, keepdims=True)
    return np.where(total > 1e-12, weights / np.maximum(total, TINY), otherwise)


def compute_residual(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    return normalise(np.maximum(p - q, 0), p)


def make_greedy(q: np.ndarray) -> np.ndarray:
    return np.eye(q.shape[-1])[q.argmax(-1)]


def apply_temperature(q: np.ndarray, temperature: float) -> np.ndarray:
    with np.errstate(divide="ignore"):
        hot = np.log(q) / temperature
    hot = np.exp(hot - hot.max(-1, keepdims=True))
    return hot / hot.sum(-1, keepdims=True)


def keep_top_k(q: np.ndarray, k: int) -> np.ndarray:
    cut = np.where(q >= np.sort(q, -1)[..., -k, None], q, 0)
    return cut / cut.sum(-1, keepdims=True)


def predict_joint(
    p: np.ndarray,
    q: np.ndarray,
    *,
    block: int,
    drawn: np.ndarray | None = None,
    recorded: np.ndarray | None = None,
    correct: Callable[[np.ndarray, np.ndarray], np.ndarray] = compute_residual,
    bonus: str = "target",
    surplus: float = 0.0,
    offered: np.ndarray | None = None,
) -> np.ndarray:
    """The joint [V^L] of sequences of verified blocks.

    p, q [N, V]  target and draft; drawn, recorded: the laws that drafts are drawn from and that they are judged by
    correct      the law that replaces a rejected draft
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
        rows, mass = select_level(V, depth), state[depth]
        if offered is not None:
            ends = np.where(offered[rows], 0.0, mass[:block].sum(0))
            mass = np.concatenate([mass[:block] * offered[rows], mass[block:] + ends])
        accept = d[rows] * stands[rows]  # [n, V]
        refuse = 1 - accept.sum(-1, keepdims=True)
        for i in range(block):
            state[depth + 1][i + 1] += (mass[i][:, None] * accept).ravel()
            state[depth + 1][0] += (mass[i][:, None] * refuse * instead[rows]).ravel()
        above = count_prefixes(V, max(depth - 1, 0)) + np.arange(V**depth) // (V if depth else 1)
        last = {"target": p[rows], "draft": q[rows], "row before": p[above]}[bonus]
        state[depth + 1][0] += (mass[block][:, None] * last).ravel()
    return state[length].sum(0)


class Loop:
    """n sequences under way: tokens, what the target's context holds (`memory`), and where each stands (`at`)."""

    def __init__(self, p: np.ndarray, q: np.ndarray, block: int, fault: str, offered: np.ndarray | None, n: int):
        self.p, self.q, self.block, self.fault, self.n = p, q, block, fault, n
        self.V = p.shape[-1]
        self.length = round(np.log(len(p) * (self.V - 1) + 1) / np.log(self.V))
        self.offered = np.ones(len(p), dtype=bool) if offered is None else offered
        self.rows, self.at = np.arange(n), np.zeros(n, dtype=np.int64)
        self.tokens = np.zeros((n, self.length + block + 2), dtype=np.int64)
        self.memory = self.tokens.copy()
        self.first = np.array([count_prefixes(self.V, t) for t in range(self.length)])
        self.powers = self.V ** np.arange(self.length)

    def look_up(self, table: np.ndarray, context: np.ndarray, where: np.ndarray) -> np.ndarray:
        """Rows of a table at the prefixes context[:, :where]."""
        where = np.minimum(where, self.length - 1)
        exponent = where[:, None] - 1 - np.arange(self.length)
        digit = context[:, : self.length] * self.powers[np.maximum(exponent, 0)]
        return table[self.first[where] + np.where(exponent >= 0, digit, 0).sum(1)]

    def write_tokens(self, where: np.ndarray, rows: np.ndarray, token: np.ndarray, memory: np.ndarray) -> None:
        self.tokens[self.rows[rows], where[rows]] = token[rows]
        self.memory[self.rows[rows], where[rows]] = memory[rows]

    def verify_block(self, numbers: list[np.ndarray]) -> None:
        """A block of every sequence that is not done. Tokens are drawn by exponential races."""

        def race(law: np.ndarray, exponentials: np.ndarray) -> np.ndarray:
            return np.argmax(law / np.maximum(exponentials, TINY), 1)

        live, n, block = self.at < self.length, self.n, self.block
        context, drafts = self.tokens.copy(), []
        for i in range(block):
            drafts.append(race(self.look_up(self.q, context, self.at + i), numbers[i]))
            context[self.rows, self.at + i] = drafts[-1]
        standing, closed = live.copy(), np.zeros(n, dtype=bool)
        count, rejected, stop = np.zeros(n, dtype=np.int64), np.full(n, -1), np.full(n, block)
        for i, own in enumerate(drafts):
            where = self.at + i
            ends = standing & ~self.look_up(self.offered, self.tokens, where)  # nothing is offered here
            stop[ends], closed, asked = i, closed | ends, standing & ~ends
            target, guess = self.look_up(self.p, self.memory, where), self.look_up(self.q, self.tokens, where)
            u = numbers[-1][:, 0 if self.fault == "shared uniform" else i]
            good = u < target[self.rows, own] / np.maximum(guess[self.rows, own], TINY)
            good |= self.fault == "nothing verified"
            token = np.where(good, own, race(compute_residual(target, guess), numbers[block + i]))
            self.write_tokens(where, asked, token, own if self.fault == "cache not rolled back" else token)
            count, rejected = count + asked, np.where(asked & ~good, i, rejected)
            standing = asked & good
        whole, last = standing | closed, self.at + stop
        bonus = race(self.look_up(self.p, self.memory, last), numbers[2 * block])
        self.write_tokens(last, whole, bonus, bonus)
        count += whole
        if self.fault == "unverified kept":
            more = live & (rejected >= 0) & (rejected < stop - 1)
            behind = np.stack(drafts, 1)[self.rows, np.minimum(rejected + 1, block - 1)]
            self.write_tokens(self.at + count, more, behind, behind)
            count += more
        self.at = np.minimum(self.at + count, self.length)


def simulate_joint(
    p: np.ndarray, q: np.ndarray, *, block: int, fault: str, offered: np.ndarray | None = None, n: int = 50_000
) -> np.ndarray:
    """The joint [V^L] of n sequences of the loop of `predict_joint`, with a fault of TIED or "none"."""
    loop, rng = Loop(p, q, block, fault, offered, n), np.random.default_rng(0)
    numbers: list[np.ndarray] = []
    while (loop.at < loop.length).any():
        if not (numbers and fault == "seed reused"):
            numbers = [rng.exponential(size=(n, loop.V)) for _ in range(2 * block + 1)] + [rng.random((n, block))]
        loop.verify_block(numbers)
    codes = loop.tokens[:, : loop.length] @ loop.powers[::-1]
    return np.bincount(codes, minlength=loop.V**loop.length) / n


class Suspect(NamedTuple):
    """A named fault, how its law is predicted, and how many variants share the name (its likelihood is divided)."""

    name: str
    law: Callable[[], np.ndarray]  # [K, V^L]
    variants: int = 1


def list_suspects(
    law: Law, draft: Law, block: int, *, bare: Law | None = None, offered: np.ndarray | None = None
) -> list[Suspect]:
    """Named faults of a sampler of `law` with drafts of the law `draft`, `block` at a time.

    bare     the target's law without guidance (and other processors)
    offered  [K, N] prefixes behind which drafts are offered
    """
    V, L = law.vocab, law.length
    asked = np.ones(law.tables.shape[:2], dtype=bool) if offered is None else offered

    def make_suspect(name: str, make: Callable[..., np.ndarray], variants: int = 1) -> Suspect:
        """Of make(p, q, loop) behind each prompt; loop(...) is `predict_joint` with changes."""

        def joint() -> np.ndarray:
            tables = zip(law.tables, draft.tables, asked, strict=True)
            return np.stack([make(p, q, partial(predict_joint, p, q, block=block, offered=o)) for p, q, o in tables])

        return Suspect(name, joint, variants)

    def make_tied_suspect(name: str) -> Suspect:
        tables = list(zip(law.tables, draft.tables, asked, strict=True))
        simulate = partial(simulate_joint, block=block, fault=name)
        return Suspect(name, lambda: np.stack([simulate(p, q, offered=o) for p, q, o in tables]))

    others = list_orders(V)
    result = [
        make_suspect("argmax drafts with soft laws", lambda p, q, loop: loop(drawn=make_greedy(q))),
        make_suspect("residual not subtracted", lambda p, q, loop: loop(correct=lambda p, q: p)),
        make_suspect("residual |p - q|", lambda p, q, loop: loop(correct=lambda p, q: normalise(np.abs(p - q), p))),
        make_suspect("bonus token from the draft", lambda p, q, loop: loop(bonus="draft")),
        make_suspect("bonus token from the wrong row", lambda p, q, loop: loop(bonus="row before")),
        make_suspect("greedy decoding", lambda p, q, loop: compute_joint(make_greedy(p), L)),
        *(make_suspect("draft's temperature not applied",
                       lambda p, q, loop, t=t: loop(drawn=apply_temperature(q, t)), 4)
          for t in TEMPERATURES),
        *(make_suspect("draft's top-k not applied", lambda p, q, loop, k=k: loop(recorded=keep_top_k(q, k)), V - 1)
          for k in range(1, V)),
        *(make_suspect("draft's law recorded under other tokens",
                  lambda p, q, loop, o=o, side=side: loop(**{side: q[:, o]}), 2 * len(others))
          for o in others for side in ("drawn", "recorded")),
        *(make_suspect("acceptance too large", lambda p, q, loop, s=s: loop(surplus=s), 4) for s in SURPLUSES),
        *map(make_tied_suspect, TIED),
    ]  # fmt: skip
    if bare is not None and not np.allclose(bare.tables, law.tables):
        result.append(Suspect("guidance (or another processor) missing in the target", lambda: bare.joint))
    return result


def list_orders(vocab: int) -> list[np.ndarray]:
    """Ways to mistake tokens for others: every order of up to 4 tokens, of more every transposition and rotation."""
    if vocab <= 4:
        return [np.array(order) for order in itertools.permutations(range(vocab))][1:]
    result = [np.roll(np.arange(vocab), s) for s in range(1, vocab)]
    for i, j in itertools.combinations(range(vocab), 2):
        order = np.arange(vocab)
        order[[i, j]] = order[[j, i]]
        result.append(order)
    return result


def mix_uniform(law: np.ndarray) -> np.ndarray:
    return (1 - NEARLY) * law + NEARLY / law.shape[-1]


def compute_log_likelihood(counts: np.ndarray, law: np.ndarray) -> float:
    """Of counts [K, C] under laws [K, C]."""
    return float((counts * np.log(mix_uniform(law))).sum())


def compute_fit_p(counts: np.ndarray, law: np.ndarray, draws: int = 1999) -> float:
    """Monte-Carlo p-value of counts [K, C] under laws [K, C] (joint G)."""
    p = mix_uniform(law)
    p, total, rng = p / p.sum(-1, keepdims=True), counts.sum(-1), np.random.default_rng(0)

    def g(c: np.ndarray) -> np.ndarray:
        with np.errstate(divide="ignore", invalid="ignore"):
            return 2 * np.where(c > 0, c * np.log(c / np.maximum(p * total[:, None], TINY)), 0).sum((-1, -2))

    null = np.stack([rng.multinomial(n, own, size=draws) for n, own in zip(total, p, strict=True)], 1)
    return float((1 + (g(null) >= g(counts)).sum()) / (1 + draws))


def diagnose_counts(counts: np.ndarray, law: Law, suspects: Sequence[Suspect]) -> dict[str, Any]:
    """What fits; see above. `others` are names whose likelihood is within 1 to 20 of the best."""
    own = counts.reshape(len(law.prompts), -1)
    scores: dict[str, list[float]] = {}
    laws: dict[str, tuple[float, np.ndarray]] = {}  # of each name the likeliest variant
    for s in suspects:
        joint = s.law()
        value = compute_log_likelihood(own, joint)
        scores.setdefault(s.name, []).append(value - math.log(s.variants))
        if s.name not in laws or value > laws[s.name][0]:
            laws[s.name] = value, joint
    if not scores:
        return {"says": "no fault could be predicted (the draft's law is not known)", "name": None, "fits": None}
    base = compute_log_likelihood(own, law.joint)
    ratio = {name: float(np.logaddexp.reduce(v)) - base for name, v in scores.items()}
    best = max(ratio, key=lambda name: ratio[name])
    p = compute_fit_p(own, laws[best][1])
    others = sorted((n for n in ratio if n != best and ratio[best] - ratio[n] < CLOSE), key=lambda n: -ratio[n])
    power = f"likelihood ratio 10^{ratio[best] / math.log(10):.1f} against a correct sampler"
    fitting = p > FITS and ratio[best] > CLOSE
    if fitting:
        says = f"{best} ({power}; the samples fit it, p = {p:.2g})"
        says += f"; as likely within a factor of 20: {', '.join(others)}" if others else ""
    else:
        says = f"none of these faults (nearest: {best}, {power}, but the samples do not fit it, p = {p:.2g})"
    numbers = {"fits": p, "others": others, "log_likelihood_ratio": ratio[best]}
    return {"says": says, "name": best if fitting else None, "nearest": best} | numbers
