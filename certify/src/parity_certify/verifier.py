"""Certify the accept-or-resample function of speculative sampling alone: no model, no engine.

    certify_verifier(verify)                   verify(draft_tokens, draft_probs, target_probs) -> tokens, one row
    certify_verifier(verify, shape="batch")    the same with a batch axis in front, -1 after the last token of a row
    certify_verifier(verify, shape="tree")     verify(tokens, parents, draft_probs, target_probs) -> tokens, one row

Draft distributions q and target distributions p are tables by prefix. Drafts are drawn from q; what the verifier
returns is completed from p by plain sampling up to K + 1 tokens. For every lossless verifier the joint is then the
target's, whatever was accepted. Four kinds of problem, each tested on its own:

    soft      random distributions
    sparse    zeros of p and of q at different tokens: impossible tokens show at once
    point     deterministic drafts
    equal     p = q; most faulty verifiers pass, so it never certifies alone
"""

import inspect
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from parity_certify import evidence
from parity_certify.calls import Sampled
from parity_certify.certificate import Certificate
from parity_certify.design import combine_certificates
from parity_certify.distributions import CELLS, Distribution, check_distribution, count_prefixes
from parity_certify.errors import ParityError
from parity_certify.import_by_name import get_function_name
from parity_certify.result_rows import ALPHA
from parity_certify.sampler import certify_sampler, check_settings

KINDS = ("soft", "sparse", "point", "equal")
SHAPES = ("row", "batch", "tree")


@dataclass(frozen=True)
class Problem:
    """The distributions that a verifier is tested on: draft [N, V] after all prefixes shorter than K, target [M, V]
    after all shorter than K + 1: the empty one, those of one token, of two, ..., first token most significant."""

    name: str
    draft: np.ndarray
    target: np.ndarray


def make_problem(kind: str, vocab: int, drafts: int) -> Problem:
    """Make a problem of one of KINDS, its distributions random but always the same. Raises ParityError for another
    kind."""
    if kind not in KINDS:
        raise ParityError(f"problems: {kind!r}; allowed: {', '.join(KINDS)}, or a Problem")
    rng = np.random.default_rng([0, KINDS.index(kind)])
    target = rng.dirichlet(np.ones(vocab), count_prefixes(vocab, drafts + 1)) * 0.9 + 0.1 / vocab
    draft = rng.dirichlet(np.ones(vocab), count_prefixes(vocab, drafts)) * 0.9 + 0.1 / vocab
    if kind == "point":
        draft = np.eye(vocab)[rng.integers(vocab, size=len(draft))]
    if kind == "equal":
        draft = target[: len(draft)].copy()
    if kind == "sparse":
        gap = rng.integers(vocab, size=len(target))
        target[np.arange(len(target)), gap] = 0
        if vocab > 2:
            draft[np.arange(len(draft)), (gap[: len(draft)] + 1) % vocab] = 0
    return Problem(kind, draft / draft.sum(1, keepdims=True), target / target.sum(1, keepdims=True))


def check_problem(problem: Problem, vocab: int, drafts: int) -> Problem:
    """Return the problem with float distributions. Raises ParityError if a table has another shape or is not
    distributions."""

    def check(which: str, table: Any, depth: int) -> np.ndarray:
        """Return the table of the prefixes shorter than `depth`, as floats that sum to one."""
        table = np.asarray(table, dtype=float)
        shape = (count_prefixes(vocab, depth), vocab)
        if table.shape != shape:
            raise ParityError(f"problems: {problem.name}, {which}: shape {table.shape}; allowed: {shape}")
        return check_distribution(table, f"{problem.name}, {which}")

    draft = check("draft", problem.draft, drafts)
    target = check("target", problem.target, drafts + 1)
    return Problem(problem.name, draft, target)


def draw_tokens(sums: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draw tokens [n] from distributions, given as running sums [n, V]."""
    return (rng.random(len(sums))[:, None] >= sums / sums[:, -1:]).sum(1)


@dataclass
class Drafted:
    """A sampler made of a verifier and a problem, for `certify_sampler`: drafts are drawn, verified, and completed."""

    verify: Callable
    problem: Problem
    shape: str
    branches: int
    drafts: int

    def __post_init__(self) -> None:
        """Prepare the tables for drawing, and find out whether the verifier takes a keyword `rng`."""
        self.vocab = self.problem.target.shape[1]
        self.first = [count_prefixes(self.vocab, t) for t in range(self.drafts + 2)]
        self.p_sums, self.q_sums = self.problem.target.cumsum(-1), self.problem.draft.cumsum(-1)
        try:
            self.takes_rng = "rng" in inspect.signature(self.verify).parameters
        except (TypeError, ValueError):  # a function of C has no signature
            self.takes_rng = False

    def __call__(self, prompts: np.ndarray, seed: int) -> Sampled:
        """Draw n sequences [n, K + 1] (prompts [n, P] are not read), with the drafts offered and accepted."""
        rng = np.random.default_rng(seed)
        out, accepted, drafted = self.run(len(prompts), rng, seed)
        return Sampled(self.complete(out, rng), drafted, accepted)

    def run(self, n: int, rng: np.random.Generator, seed: int) -> tuple[np.ndarray, int, int]:
        """Draw drafts for n rows and run the verifier on them, after seeding all generators that it may use. Returns
        tokens [n, K + 1], -1 after the last, and the drafts accepted and offered."""
        keywords = self.seed_generators(seed)
        if self.shape == "tree":
            return self.verify_trees(n, rng, keywords)
        tokens, q, p = self.make_drafts(n, rng)
        if self.shape == "batch":
            out = self.check_batch(self.verify(tokens, q, p, **keywords), n)
        else:
            out = self.pad([self.verify(*row, **keywords) for row in zip(tokens, q, p, strict=True)])
        agreed = np.cumprod(out[:, :-1] == tokens, 1).sum(1)
        accepted = np.where(agreed == self.drafts, agreed, np.minimum(agreed, (out >= 0).sum(1) - 1))
        return out, int(accepted.sum()), n * self.drafts

    def seed_generators(self, seed: int) -> dict[str, Any]:
        """Seed the generators of random, numpy and torch. Returns the keyword `rng`, if the verifier takes it."""
        random.seed(seed)
        np.random.seed(seed % 2**32)
        if "torch" in sys.modules:
            sys.modules["torch"].manual_seed(seed)
        return {"rng": np.random.default_rng([seed, 1])} if self.takes_rng else {}

    def make_drafts(self, n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Draw drafts [n, K]; return them, and along them the draft distributions [n, K, V] and target distributions
        [n, K + 1, V]."""
        prefix = np.zeros(n, dtype=np.int64)
        tokens: list[np.ndarray] = []
        nodes = [np.zeros(n, dtype=np.int64)]
        for i in range(self.drafts):
            tokens.append(draw_tokens(self.q_sums[nodes[i]], rng))
            prefix = prefix * self.vocab + tokens[i]
            nodes.append(self.first[i + 1] + prefix)
        rows = np.stack(nodes, 1)
        return np.stack(tokens, 1), self.problem.draft[rows[:, :-1]], self.problem.target[rows]

    def complete(self, out: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Replace each -1 in tokens [n, K + 1], in place, by a draw from the target, and return them."""
        prefix = np.zeros(len(out), dtype=np.int64)
        for t in range(self.drafts + 1):
            empty = np.flatnonzero(out[:, t] < 0)
            out[empty, t] = draw_tokens(self.p_sums[self.first[t] + prefix[empty]], rng)
            prefix = prefix * self.vocab + out[:, t]
        return out

    def check_batch(self, answer: Any, n: int) -> np.ndarray:
        """Return the answer to a batch as tokens [n, K + 1], -1 after the last of each row, or raise ParityError."""
        tokens = np.asarray(answer)
        K = self.drafts
        if tokens.ndim != 2 or len(tokens) != n or not 1 <= tokens.shape[1] <= K + 1:
            raise ParityError(f"verify: shape {tokens.shape}; allowed: [{n}, {K + 1}], -1 after a row's last token")
        if not np.issubdtype(tokens.dtype, np.integer):
            raise ParityError(f"verify: tokens of {tokens.dtype}; allowed: integers")
        out = np.full((n, K + 1), -1, dtype=np.int64)
        out[:, : tokens.shape[1]] = tokens
        gaps = (np.diff((out >= 0).astype(int), axis=1) > 0).any(1) | (out < -1).any(1) | (out >= self.vocab).any(1)
        if (bad := gaps | (out[:, 0] < 0)).any():
            row = int(bad.argmax())
            allowed = f"1 to {K + 1} tokens of 0 to {self.vocab - 1}, then -1"
            raise ParityError(f"verify: row {row}: {tokens[row].tolist()}; allowed: {allowed}")
        return out

    def pad(self, lines: Sequence[Any]) -> np.ndarray:
        """Pad the answers of single calls to tokens [n, K + 1]. Raises ParityError for one that is no row of tokens."""
        out = np.full((len(lines), self.drafts + 1), -1, dtype=np.int64)
        for i, row in enumerate(map(np.asarray, lines)):
            integers = row.ndim == 1 and np.issubdtype(row.dtype, np.integer)
            if not integers or not 1 <= len(row) <= self.drafts + 1 or row.min() < 0 or row.max() >= self.vocab:
                shown = " ".join(str(row.tolist()).split())[:80]
                allowed = f"1 to {self.drafts + 1} integers of 0 to {self.vocab - 1}"
                raise ParityError(f"verify: row {i}: {shown}; allowed: {allowed}")
            out[i, : len(row)] = row
        return out

    def make_tree(self, rng: np.random.Generator) -> tuple[list[int], list[int], np.ndarray, np.ndarray]:
        """Draw a tree of N nodes: tokens and parents (-1: the root), draft distributions [N, V] and target
        distributions [N + 1, V], the root's first. A node has `branches` children, drawn without replacement; of a sure
        draft, consecutive tokens."""
        V = self.vocab
        distributions: list[np.ndarray] = []
        tokens: list[int] = []
        parents: list[int] = []
        prefixes, rows, layer = [0], [0], [-1]  # prefix and target row: of the root, then of each node
        for depth in range(self.drafts):
            children = []
            for node in layer:
                prefix = prefixes[node + 1]
                draft = distribution = self.problem.draft[self.first[depth] + prefix]
                for _ in range(self.branches):
                    if distribution.sum() <= 0:
                        break
                    distribution = distribution / distribution.sum()
                    token = min(
                        int((rng.random() >= distribution.cumsum()).sum()), int(np.flatnonzero(distribution)[-1])
                    )
                    children.append(len(tokens))
                    tokens.append(token)
                    parents.append(node)
                    distributions.append(distribution)
                    prefixes.append(prefix * V + token)
                    rows.append(self.first[depth + 1] + prefixes[-1])
                    distribution = (
                        np.eye(V)[(token + 1) % V]
                        if (draft == 1).any()
                        else np.where(np.arange(V) == token, 0, distribution)
                    )
            layer = children
        return tokens, parents, np.stack(distributions), self.problem.target[rows]

    def verify_trees(self, n: int, rng: np.random.Generator, keywords: dict) -> tuple[np.ndarray, int, int]:
        """Run the verifier on n trees; return tokens [n, K + 1], accepted nodes, and drafted layers."""
        accepted = 0
        lines: list[Any] = []
        for _ in range(n):
            tokens, parents, q, p = self.make_tree(rng)
            lines.append(self.verify(np.array(tokens), np.array(parents), q, p, **keywords))
            node = -1
            for token in np.asarray(lines[-1]).tolist()[: self.drafts]:
                children = [i for i, up in enumerate(parents) if up == node and tokens[i] == token]
                if not children:
                    break
                node = children[0]
                accepted += 1
        return self.pad(lines), accepted, n * self.drafts


def check_verifier(sampler: Drafted) -> None:
    """Raise ParityError if the verifier fails."""
    try:
        sampler.run(200, np.random.default_rng(0), 1)
    except ParityError:
        raise
    except Exception as error:
        problem = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        raise ParityError(f"verify: failed on shape {sampler.shape!r}: {problem}") from error


def certify_verifier(
    verify: Callable,
    *,
    vocab: int = 4,
    drafts: int = 3,
    shape: Literal["row", "batch", "tree"] = "row",
    branches: int = 2,
    problems: Sequence[str | Problem] = KINDS,
    margin: float = 0.05,
    alpha: float = ALPHA,
    n: int | None = None,
    repeat: int | None = None,
    seeds: Sequence[int] = (0, 1),
    batch: int | None = None,
    claim: str = "lossless",
    draws: int = evidence.DRAWS,
    name: str = "",
    tell: Callable[[str], None] = lambda text: None,
) -> Certificate:
    """Certify a verifier on each problem, at alpha over their number; the first that is lossy ends the run.

    shape     "row", "batch" or "tree": see the head of this module; branches: children of a tree's node
    problems  kinds, or `Problem`s with distributions of your own
    n         sequences a problem; None: as many as a bound below `margin` needs
    batch     as in `certify_sampler`; None: a tenth of n, at least 100
    draws     of the simulated null of each fixed size
    A keyword `rng` of the verifier gets a generator of numpy; the generators of random, numpy and torch are seeded.
    """
    check_settings(branches=branches)
    if shape not in SHAPES:
        raise ParityError(f"shape {shape!r}: allowed: {', '.join(SHAPES)}")
    settings: dict[str, Any] = {
        "vocab": vocab,
        "drafts": drafts,
        "problems": problems,
        "margin": margin,
        "alpha": alpha,
    }
    settings |= {"n": n, "repeat": repeat, "seeds": seeds, "batch": batch, "claim": claim, "draws": draws, "tell": tell}

    def make_sampler(case: Problem) -> Drafted:
        """Make the sampler of a problem."""
        return Drafted(verify, case, shape, branches, drafts)

    result = certify_problems(make_sampler, name=name or get_function_name(verify), **settings)
    outside = "the drafter: what it draws from, what it records, which noise it shares (`certify_speculation`)"
    untested = (*result.verdict.untested, outside, "options that are applied outside of the verifier")
    return replace(result, verdict=replace(result.verdict, untested=untested))


def certify_problems(
    make_sampler: Callable[[Problem], Drafted],
    *,
    vocab: int,
    drafts: int,
    problems: Sequence[str | Problem],
    margin: float,
    alpha: float,
    n: int | None,
    batch: int | None,
    seeds: Sequence[int],
    **settings: Any,
) -> Certificate:
    """Certify the sampler of each problem, at alpha over their number; the first that is lossy ends the run. Arguments:
    see `certify_verifier`."""
    check_settings(seeds, margin=margin, alpha=alpha, n=n, repeat=settings["repeat"], batch=batch)
    check_settings(vocab=vocab, drafts=drafts)
    if vocab < 2 or drafts < 1 or vocab ** (drafts + 1) > CELLS:
        allowed = f"vocab 2 or more, drafts 1 or more, and vocab^(drafts + 1) up to {CELLS}, to be enumerated"
        raise ParityError(f"vocab {vocab}, drafts {drafts}: allowed: {allowed}")
    if not problems:
        raise ParityError(f"problems: none; allowed: {', '.join(KINDS)}, or a Problem")
    cases = [make_problem(p, vocab, drafts) if isinstance(p, str) else p for p in problems]
    cases = [check_problem(case, vocab, drafts) for case in cases]
    settings |= {"margin": margin, "alpha": alpha / len(cases), "seeds": seeds}
    certificates: list[Certificate] = []
    for case in cases:
        sampler = make_sampler(case)
        if not certificates:
            check_verifier(sampler)
        distribution = Distribution(case.name, np.zeros((1, 1), dtype=np.int64), case.target[None], drafts + 1)
        size = n or evidence.needed(distribution.cells, margin)
        certificates.append(
            certify_sampler(sampler, distribution, n=size, batch=batch or max(100, size // 10), **settings)
        )
        if certificates[-1].verdict.kind == "lossy":
            break
    result = combine_certificates(certificates, [case.name for case in cases], alpha)
    v = result.verdict
    if v.kind == "certified" and {case.name for case in cases} == {"equal"}:
        reason = "tested with p = q alone, where most faulty verifiers pass: add other problems"
        v = replace(v, kind="inconclusive", reason=reason)
    # drafts and rounds of a problem are set by design, so nothing is missing
    return replace(result, verdict=v, details=result.details | {"warnings": []})
