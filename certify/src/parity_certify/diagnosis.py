"""Diagnose a rejected sampler: name the likeliest of some faults, with its likelihood ratio, or none of them.

    diagnose_counts(counts [K * V^L], distribution, list_suspects(distribution, draft, block)) -> {"says", "name", ...}

A suspect is speculative sampling with a fault, as a distribution: what the faulty sampler's sequences are distributed
like. A block of drafts is verified from left to right (Leviathan et al. 2023, Alg. 1). Distributions are tables [N, V]
of conditionals by prefix, so the distribution of the loop follows by adding up, over all prefixes, the probability that
a block starts there, that its first i drafts stand, and what is drawn in place of the next (`predict_joint`). Faults
that tie draws together are simulated (TIED).

The likelihood of a fault is the multinomial one of its distribution. A fault with variants (a temperature, a
permutation) has the average of theirs. The likeliest is named if the samples do not reject its own distribution (joint
G, simulated, at FITS).
"""

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from parity_certify.distributions import Distribution, compute_joint, count_prefixes, select_level

FITS = 1e-3
EVEN_WEIGHT = 1e-3  # each prediction has this share of the even distribution, so that no sequence is impossible in it
CLOSE = math.log(20)  # names whose log-likelihoods are this close to the best are given, too
TINY = 1e-300
TEMPERATURES = (0.5, 0.8, 1.25, 2.0)
SURPLUSES = (0.01, 0.05, 0.1, 0.3)
TIED = (
    "seed reused",  # every block is drafted and verified with the same random numbers
    "shared uniform",  # one acceptance number decides on a whole block
    "cache not rolled back",  # a rejected draft stays in the target's context
    "unverified kept",  # the draft after the rejected one is kept
    "nothing verified",  # all drafts are accepted
)


def normalise(weights: np.ndarray, otherwise: np.ndarray) -> np.ndarray:
    """Scale weights [..., V] to distributions; take the distribution `otherwise` where all weights are zero."""
    total = weights.sum(-1, keepdims=True)
    return np.where(total > 1e-12, weights / np.maximum(total, TINY), otherwise)


def compute_residual(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Compute the distribution of a corrected token, max(p - q, 0) scaled to sum to one; p where it is zero. Shapes
    [..., V]."""
    return normalise(np.maximum(p - q, 0), p)


def make_greedy(q: np.ndarray) -> np.ndarray:
    """Put all probability on the likeliest token of distributions [..., V]."""
    return np.eye(q.shape[-1])[q.argmax(-1)]


def apply_temperature(q: np.ndarray, temperature: float) -> np.ndarray:
    """Apply a temperature to distributions [..., V]."""
    with np.errstate(divide="ignore"):
        logits = np.log(q) / temperature
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def keep_top_k(q: np.ndarray, k: int) -> np.ndarray:
    """Set all but the k likeliest tokens of distributions [..., V] to zero, and scale; ties with the k-th are kept."""
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
    """Predict the distribution [V^L] of sequences that are drafted in blocks of `block` tokens and verified, with the
    faults that the other keywords describe; their defaults are correct.

    p, q [N, V]  distributions of target and draft by prefix; drawn, recorded: what drafts are drawn from and judged by,
                 if not q
    correct      function of p and the recorded distribution: the distribution that replaces a rejected draft
    bonus        after a block that stands: "target", the "draft"'s distribution, or the target's distribution of the
                 "row before"
    surplus      added to the acceptance probability
    offered [N]  bool, prefixes after which the engine drafts at all; elsewhere a block ends, and the bonus distribution
                 draws
    """
    V = p.shape[-1]
    length = round(np.log(len(p) * (V - 1) + 1) / np.log(V))
    d = q if drawn is None else drawn
    r = q if recorded is None else recorded
    acceptance = np.clip(p / np.maximum(r, TINY) + surplus, 0, 1)
    acceptance = np.where((r <= 0) & (p <= 0) & (surplus == 0), 0.0, acceptance)
    correction = correct(p, r)
    state = [np.zeros((block + 1, V**depth)) for depth in range(length + 1)]  # mass by prefix and accepted drafts
    state[0][0, 0] = 1.0
    for depth in range(length):
        rows, mass = select_level(V, depth), state[depth]
        if offered is not None:
            ends = np.where(offered[rows], 0.0, mass[:block].sum(0))
            mass = np.concatenate([mass[:block] * offered[rows], mass[block:] + ends])
        accept = d[rows] * acceptance[rows]  # [n, V]
        refuse = 1 - accept.sum(-1, keepdims=True)
        for i in range(block):
            state[depth + 1][i + 1] += (mass[i][:, None] * accept).ravel()
            state[depth + 1][0] += (mass[i][:, None] * refuse * correction[rows]).ravel()
        # the row of each prefix without its last token
        shorter = count_prefixes(V, max(depth - 1, 0)) + np.arange(V**depth) // (V if depth else 1)
        bonus_distribution = {"target": p[rows], "draft": q[rows], "row before": p[shorter]}[bonus]
        state[depth + 1][0] += (mass[block][:, None] * bonus_distribution).ravel()
    return state[length].sum(0)


class Loop:
    """n sequences that a loop of speculative sampling with a fault of TIED decodes: their tokens, what the target's
    context holds (`memory`), and their lengths."""

    def __init__(self, p: np.ndarray, q: np.ndarray, block: int, fault: str, offered: np.ndarray | None, n: int):
        """Start n empty sequences. p, q [N, V], block and offered: as in `predict_joint`; fault: of TIED, or "none"."""
        self.p, self.q, self.block, self.fault, self.n = p, q, block, fault, n
        self.V = p.shape[-1]
        self.length = round(np.log(len(p) * (self.V - 1) + 1) / np.log(self.V))
        self.offered = np.ones(len(p), dtype=bool) if offered is None else offered
        self.rows = np.arange(n)
        self.lengths = np.zeros(n, dtype=np.int64)
        self.tokens = np.zeros((n, self.length + block + 2), dtype=np.int64)
        self.memory = self.tokens.copy()
        self.first = np.array([count_prefixes(self.V, t) for t in range(self.length)])
        self.powers = self.V ** np.arange(self.length)

    def look_up(self, table: np.ndarray, context: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Look up the entries of a table [N, ...] for the prefixes context[i, :lengths[i]]; [n, ...]."""
        lengths = np.minimum(lengths, self.length - 1)
        exponent = lengths[:, None] - 1 - np.arange(self.length)
        digit = context[:, : self.length] * self.powers[np.maximum(exponent, 0)]
        return table[self.first[lengths] + np.where(exponent >= 0, digit, 0).sum(1)]

    def write_tokens(self, positions: np.ndarray, rows: np.ndarray, token: np.ndarray, memory: np.ndarray) -> None:
        """Write token [n] at positions [n] of the sequences `rows` [n] bool, and memory [n] in the target's context."""
        self.tokens[self.rows[rows], positions[rows]] = token[rows]
        self.memory[self.rows[rows], positions[rows]] = memory[rows]

    def verify_block(self, numbers: list[np.ndarray]) -> None:
        """Draft and verify a block of each unfinished sequence, and lengthen it. numbers: exponentials [n, V] for the
        draws of the drafts, the corrections and the bonus token, then uniforms [n, block]."""

        def draw_by_exponentials(distribution: np.ndarray, exponentials: np.ndarray) -> np.ndarray:
            """Draw a token from each distribution of [n, V]: the one with the largest ratio of probability to
            exponential."""
            return np.argmax(distribution / np.maximum(exponentials, TINY), 1)

        live, n, block = self.lengths < self.length, self.n, self.block
        drafts: list[np.ndarray] = []
        context = self.tokens.copy()
        for i in range(block):
            drafts.append(draw_by_exponentials(self.look_up(self.q, context, self.lengths + i), numbers[i]))
            context[self.rows, self.lengths + i] = drafts[-1]
        standing, closed = live.copy(), np.zeros(n, dtype=bool)
        count, rejected, stop = np.zeros(n, dtype=np.int64), np.full(n, -1), np.full(n, block)
        for i, draft in enumerate(drafts):
            positions = self.lengths + i
            ends = standing & ~self.look_up(self.offered, self.tokens, positions)  # the engine offers no draft here
            stop[ends] = i
            closed |= ends
            verified = standing & ~ends
            target = self.look_up(self.p, self.memory, positions)
            guess = self.look_up(self.q, self.tokens, positions)
            u = numbers[-1][:, 0 if self.fault == "shared uniform" else i]
            good = u < target[self.rows, draft] / np.maximum(guess[self.rows, draft], TINY)
            good |= self.fault == "nothing verified"
            token = np.where(good, draft, draw_by_exponentials(compute_residual(target, guess), numbers[block + i]))
            self.write_tokens(positions, verified, token, draft if self.fault == "cache not rolled back" else token)
            count += verified
            rejected = np.where(verified & ~good, i, rejected)
            standing = verified & good
        accepted = standing | closed
        ends_at = self.lengths + stop
        bonus = draw_by_exponentials(self.look_up(self.p, self.memory, ends_at), numbers[2 * block])
        self.write_tokens(ends_at, accepted, bonus, bonus)
        count += accepted
        if self.fault == "unverified kept":
            has_next = live & (rejected >= 0) & (rejected < stop - 1)
            following = np.stack(drafts, 1)[self.rows, np.minimum(rejected + 1, block - 1)]
            self.write_tokens(self.lengths + count, has_next, following, following)
            count += has_next
        self.lengths = np.minimum(self.lengths + count, self.length)


def simulate_joint(
    p: np.ndarray, q: np.ndarray, *, block: int, fault: str, offered: np.ndarray | None = None, n: int = 50_000
) -> np.ndarray:
    """Estimate the distribution [V^L] of the loop of `predict_joint`, with a fault of TIED or "none", from n
    sequences."""
    loop = Loop(p, q, block, fault, offered, n)
    rng = np.random.default_rng(0)
    numbers: list[np.ndarray] = []
    while (loop.lengths < loop.length).any():
        if not (numbers and fault == "seed reused"):
            numbers = [rng.exponential(size=(n, loop.V)) for _ in range(2 * block + 1)] + [rng.random((n, block))]
        loop.verify_block(numbers)
    codes = loop.tokens[:, : loop.length] @ loop.powers[::-1]
    return np.bincount(codes, minlength=loop.V**loop.length) / n


class Suspect(NamedTuple):
    """A named fault, how its distribution is predicted, and how many variants share the name (its likelihood is
    divided)."""

    name: str
    distribution: Callable[[], np.ndarray]  # [K, V^L]
    variants: int = 1


def list_suspects(
    distribution: Distribution,
    draft: Distribution,
    block: int,
    *,
    bare: Distribution | None = None,
    offered: np.ndarray | None = None,
) -> list[Suspect]:
    """List the faults that a sampler of `distribution` may have, as suspects, with drafts of the distribution `draft`,
    `block` at a time.

    bare     the target's distribution without guidance (and other processors), suspected if it differs
    offered  [K, N] bool, prefixes after which drafts are offered; None: all
    """
    V, L = distribution.vocab, distribution.length
    drafting = np.ones(distribution.tables.shape[:2], dtype=bool) if offered is None else offered

    def make_suspect(name: str, make: Callable[..., np.ndarray], variants: int = 1) -> Suspect:
        """Make a suspect whose distribution after a prompt is make(p, q, loop), where loop(...) is `predict_joint` with
        the faults in its keywords; variants: how many suspects share the name."""

        def predict() -> np.ndarray:
            """Predict the fault's distribution after each prompt, [K, V^L]."""
            tables = zip(distribution.tables, draft.tables, drafting, strict=True)
            return np.stack([make(p, q, partial(predict_joint, p, q, block=block, offered=o)) for p, q, o in tables])

        return Suspect(name, predict, variants)

    def make_tied_suspect(name: str) -> Suspect:
        """Make a suspect of TIED, whose distribution is simulated."""
        tables = list(zip(distribution.tables, draft.tables, drafting, strict=True))
        simulate = partial(simulate_joint, block=block, fault=name)
        return Suspect(name, lambda: np.stack([simulate(p, q, offered=o) for p, q, o in tables]))

    mistaken = list_orders(V)
    result = [
        make_suspect("argmax drafts with soft distributions", lambda p, q, loop: loop(drawn=make_greedy(q))),
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
        *(make_suspect("draft's distribution recorded under other tokens",
                  lambda p, q, loop, o=o, side=side: loop(**{side: q[:, o]}), 2 * len(mistaken))
          for o in mistaken for side in ("drawn", "recorded")),
        *(make_suspect("acceptance too large", lambda p, q, loop, s=s: loop(surplus=s), 4) for s in SURPLUSES),
        *map(make_tied_suspect, TIED),
    ]  # fmt: skip
    if bare is not None and not np.allclose(bare.tables, distribution.tables):
        result.append(Suspect("guidance (or another processor) missing in the target", lambda: bare.joint))
    return result


def list_orders(vocab: int) -> list[np.ndarray]:
    """List wrong orders in which tokens may be read: all of up to 4 tokens, else rotations and swaps of two."""
    if vocab <= 4:
        return [np.array(order) for order in itertools.permutations(range(vocab))][1:]
    result = [np.roll(np.arange(vocab), s) for s in range(1, vocab)]
    for i, j in itertools.combinations(range(vocab), 2):
        order = np.arange(vocab)
        order[[i, j]] = order[[j, i]]
        result.append(order)
    return result


def mix_uniform(distribution: np.ndarray) -> np.ndarray:
    """Mix distributions [..., C] with the even distribution, of weight EVEN_WEIGHT."""
    return (1 - EVEN_WEIGHT) * distribution + EVEN_WEIGHT / distribution.shape[-1]


def compute_log_likelihood(counts: np.ndarray, distribution: np.ndarray) -> float:
    """Compute the log-likelihood of counts [K, C] under distributions [K, C], mixed with the even distribution."""
    return float((counts * np.log(mix_uniform(distribution))).sum())


def compute_fit_p(counts: np.ndarray, distribution: np.ndarray, draws: int = 1999) -> float:
    """Compute the Monte-Carlo p-value of counts [K, C] under distributions [K, C] (joint G)."""
    p = mix_uniform(distribution)
    p = p / p.sum(-1, keepdims=True)
    total = counts.sum(-1)
    rng = np.random.default_rng(0)

    def g(c: np.ndarray) -> np.ndarray:
        """Compute the likelihood ratio G of counts [..., K, C]."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return 2 * np.where(c > 0, c * np.log(c / np.maximum(p * total[:, None], TINY)), 0).sum((-1, -2))

    null = np.stack([rng.multinomial(n, p_k, size=draws) for n, p_k in zip(total, p, strict=True)], 1)
    return float((1 + (g(null) >= g(counts)).sum()) / (1 + draws))


def diagnose_counts(counts: np.ndarray, distribution: Distribution, suspects: Sequence[Suspect]) -> dict[str, Any]:
    """Find the suspect whose distribution makes counts [K * V^L] likeliest. Returns a dict: `says`, a sentence; its
    `name`, None if its distribution is rejected too, or hardly likelier than a correct sampler's; `fits`, the p-value
    of its distribution; `others`, names whose likelihood is within a factor of 20; `nearest` and
    `log_likelihood_ratio`."""
    counts = counts.reshape(len(distribution.prompts), -1)
    scores: dict[str, list[float]] = {}
    distributions: dict[str, tuple[float, np.ndarray]] = {}  # the likeliest variant of each name
    for s in suspects:
        joint = s.distribution()
        value = compute_log_likelihood(counts, joint)
        scores.setdefault(s.name, []).append(value - math.log(s.variants))
        if s.name not in distributions or value > distributions[s.name][0]:
            distributions[s.name] = value, joint
    if not scores:
        return {
            "says": "no fault could be predicted (the draft's distribution is not known)",
            "name": None,
            "fits": None,
        }
    base = compute_log_likelihood(counts, distribution.joint)
    ratio = {name: float(np.logaddexp.reduce(v)) - base for name, v in scores.items()}
    best = max(ratio, key=lambda name: ratio[name])
    p = compute_fit_p(counts, distributions[best][1])
    rivals = sorted((n for n in ratio if n != best and ratio[best] - ratio[n] < CLOSE), key=lambda n: -ratio[n])
    power = f"likelihood ratio 10^{ratio[best] / math.log(10):.1f} against a correct sampler"
    fitting = p > FITS and ratio[best] > CLOSE
    if fitting:
        says = f"{best} ({power}; the samples fit it, p = {p:.2g})"
        says += f"; as likely within a factor of 20: {', '.join(rivals)}" if rivals else ""
    else:
        says = f"none of these faults (nearest: {best}, {power}, but the samples do not fit it, p = {p:.2g})"
    numbers = {"fits": p, "others": rivals, "log_likelihood_ratio": ratio[best]}
    return {"says": says, "name": best if fitting else None, "nearest": best} | numbers
