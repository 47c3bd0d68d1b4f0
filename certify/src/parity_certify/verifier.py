"""Certify the accept-or-resample function of speculative sampling alone: no model, no engine.

    certify_verifier(verify)                   verify(draft_tokens, draft_probs, target_probs) -> tokens, one row
    certify_verifier(verify, shape="batch")    the same with a batch axis in front, -1 behind the last token of a row
    certify_verifier(verify, shape="tree")     verify(tokens, parents, draft_probs, target_probs) -> tokens, one row

Draft laws q and target laws p are tables by prefix. Drafts are drawn from q; what the verifier returns is completed
from p by plain sampling up to K + 1 tokens. For every lossless verifier the joint is then the target's, whatever was
accepted. Four kinds of problem, each tested on its own:

    soft      random laws
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
from parity_certify.errors import ParityError
from parity_certify.import_by_name import name_of
from parity_certify.laws import CELLS, Law, check_law, first_of
from parity_certify.result_rows import ALPHA
from parity_certify.sampler import certify_sampler, check_settings

KINDS = ("soft", "sparse", "point", "equal")
SHAPES = ("row", "batch", "tree")
SPARE = 1.2  # more sequences than the bound needs nine times in ten, for all problems have to reach it
WORST = ("certified", "consistent", "inconclusive", "lossy")  # the verdict on all problems is the last that occurs


@dataclass(frozen=True)
class Problem:
    """draft [N, V] laws behind every prefix shorter than K, target [M, V] behind every prefix shorter than K + 1: the
    empty one, those of one token, of two, ..., first token most significant."""

    name: str
    draft: np.ndarray
    target: np.ndarray


def make_problem(kind: str, vocab: int, drafts: int, seed: int = 0) -> Problem:
    """Random laws of a kind."""
    if kind not in KINDS:
        raise ParityError(f"problems: {kind!r}; allowed: {', '.join(KINDS)}, or a Problem")
    rng = np.random.default_rng([seed, KINDS.index(kind)])
    target = rng.dirichlet(np.ones(vocab), first_of(vocab, drafts + 1)) * 0.9 + 0.1 / vocab
    draft = rng.dirichlet(np.ones(vocab), first_of(vocab, drafts)) * 0.9 + 0.1 / vocab
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
    """The problem with laws that are laws, or ParityError."""
    tables = {"draft": (problem.draft, drafts), "target": (problem.target, drafts + 1)}
    for which, (table, depth) in tables.items():
        wanted = (first_of(vocab, depth), vocab)
        found = np.asarray(table, dtype=float)
        if found.shape != wanted:
            raise ParityError(f"problems: {problem.name}, {which}: shape {found.shape}; allowed: {wanted}")
        tables[which] = (check_law(found, f"{problem.name}, {which}"), depth)
    return Problem(problem.name, tables["draft"][0], tables["target"][0])


def check_enumerable(vocab: int, drafts: int) -> None:
    """ParityError for what is too large to be enumerated: it names what would fit."""
    if vocab < 2 or drafts < 1:
        raise ParityError(f"vocab {vocab}, drafts {drafts}: allowed: vocab 2 or more, drafts 1 or more")
    if drafts > 20 or vocab ** (drafts + 1) > CELLS:
        widest = max((v for v in range(2, 200) if v ** (drafts + 1) <= CELLS), default=0)
        longest = max((k for k in range(1, 20) if vocab ** (k + 1) <= CELLS), default=0)
        fits = [f"drafts {longest} at vocab {vocab}"] if longest else []
        fits += [f"vocab {widest} at drafts {drafts}"] if widest else []
        what = f"vocab {vocab}, drafts {drafts}: {vocab}^{drafts + 1} sequences are too many to enumerate"
        raise ParityError(f"{what} (allowed: {CELLS}: {' or '.join(fits) or 'vocab 4, drafts 3'})")


def cumulated(laws: np.ndarray) -> np.ndarray:
    total = laws.cumsum(-1)
    return total / total[..., -1:]


@dataclass
class Drafted:
    """A sampler made of a verifier and a problem: what `certify_sampler` takes."""

    verify: Callable
    problem: Problem
    shape: str
    branches: int
    drafts: int

    def __post_init__(self) -> None:
        self.vocab = self.problem.target.shape[1]
        self.first = [first_of(self.vocab, t) for t in range(self.drafts + 2)]
        self.p_sums, self.q_sums = cumulated(self.problem.target), cumulated(self.problem.draft)
        try:
            named = inspect.signature(self.verify).parameters
        except (TypeError, ValueError):
            named = {}  # type: ignore[assignment]
        self.takes_rng = "rng" in named

    def __call__(self, prompts: np.ndarray, seed: int) -> Sampled:
        n, rng = len(prompts), np.random.default_rng(seed)
        keywords = self.seeded(seed)
        if self.shape == "tree":
            out, accepted, drafted = self.verify_trees(n, rng, keywords)
        else:
            tokens, q, p = self.make_drafts(n, rng)
            if self.shape == "batch":
                out = self.check_batch(self.verify(tokens, q, p, **keywords), n)
            else:
                out = self.pad([self.verify(*row, **keywords) for row in zip(tokens, q, p, strict=True)])
            length = (out >= 0).sum(1)
            agreed = np.cumprod(out[:, :-1] == tokens, 1).sum(1)
            accepted = int(np.where(agreed == self.drafts, agreed, np.minimum(agreed, length - 1)).sum())
            drafted = n * self.drafts
        return Sampled(self.complete(out, rng), drafted, accepted)

    def seeded(self, seed: int) -> dict[str, Any]:
        """Seed every generator that a verifier may use; its keyword `rng`, if it has one, gets a generator of numpy."""
        random.seed(seed)
        np.random.seed(seed % 2**32)
        if "torch" in sys.modules:
            sys.modules["torch"].manual_seed(seed)
        return {"rng": np.random.default_rng([seed, 1])} if self.takes_rng else {}

    def make_drafts(self, n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Tokens [n, K] drawn from the draft laws, draft laws [n, K, V] and target laws [n, K + 1, V] along them."""
        prefix, tokens, where = np.zeros(n, dtype=np.int64), [], [np.zeros(n, dtype=np.int64)]
        for i in range(self.drafts):
            tokens.append((rng.random(n)[:, None] >= self.q_sums[where[i]]).sum(1))
            prefix = prefix * self.vocab + tokens[i]
            where.append(self.first[i + 1] + prefix)
        rows = np.stack(where, 1)
        return np.stack(tokens, 1), self.problem.draft[rows[:, :-1]], self.problem.target[rows]

    def complete(self, out: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Tokens [n, K + 1], those that are -1 drawn from the target."""
        prefix = np.zeros(len(out), dtype=np.int64)
        for t in range(self.drafts + 1):
            empty = np.flatnonzero(out[:, t] < 0)
            sums = self.p_sums[self.first[t] + prefix[empty]]
            out[empty, t] = (rng.random(len(empty))[:, None] >= sums).sum(1)
            prefix = prefix * self.vocab + out[:, t]
        return out

    def check_batch(self, found: Any, n: int) -> np.ndarray:
        """A batch's tokens [n, K + 1], -1 behind the last of each row."""
        found, K = np.asarray(found), self.drafts
        if found.ndim != 2 or len(found) != n or not 1 <= found.shape[1] <= K + 1:
            raise ParityError(f"verify: shape {found.shape}; allowed: [{n}, {K + 1}], -1 behind a row's last token")
        if not np.issubdtype(found.dtype, np.integer):
            raise ParityError(f"verify: tokens of {found.dtype}; allowed: integers")
        out = np.full((n, K + 1), -1, dtype=np.int64)
        out[:, : found.shape[1]] = found
        gaps = (np.diff((out >= 0).astype(int), axis=1) > 0).any(1) | (out < -1).any(1) | (out >= self.vocab).any(1)
        if (bad := gaps | (out[:, 0] < 0)).any():
            row = int(bad.argmax())
            allowed = f"1 to {K + 1} tokens of 0 to {self.vocab - 1}, then -1"
            raise ParityError(f"verify: row {row}: {found[row].tolist()}; allowed: {allowed}")
        return out

    def pad(self, lines: Sequence[Any]) -> np.ndarray:
        """Rows of one verifier call each as a batch."""
        out = np.full((len(lines), self.drafts + 1), -1, dtype=np.int64)
        allowed = f"1 to {self.drafts + 1} integers of 0 to {self.vocab - 1}"
        for i, line in enumerate(lines):
            row = np.asarray(line)
            integers = row.ndim == 1 and np.issubdtype(row.dtype, np.integer)
            if not integers or not 1 <= len(row) <= self.drafts + 1 or row.min() < 0 or row.max() >= self.vocab:
                shown = " ".join(str(row.tolist()).split())[:80]
                raise ParityError(f"verify: row {i}: {shown}; allowed: {allowed}")
            out[i, : len(row)] = row
        return out

    def verify_trees(self, n: int, rng: np.random.Generator, keywords: dict) -> tuple[np.ndarray, int, int]:
        """Trees whose nodes have `branches` children, drawn without replacement; tokens, accepted and drafted nodes."""
        V, lines, accepted, drafted = self.vocab, [], 0, 0
        for _ in range(n):
            tokens: list[int] = []
            parents: list[int] = []
            laws, prefixes, layer = [], [0], [-1]  # prefixes: of the root, then of every node
            rows = [0]
            for depth in range(self.drafts):
                below = []
                for node in layer:
                    prefix = prefixes[node + 1]
                    law = self.problem.draft[self.first[depth] + prefix]
                    for _ in range(self.branches):
                        if law.sum() <= 0:
                            break
                        law = law / law.sum()
                        token = min(int((rng.random() >= law.cumsum()).sum()), int(np.flatnonzero(law)[-1]))
                        below.append(len(tokens))
                        tokens.append(token)
                        parents.append(node)
                        laws.append(law)
                        prefixes.append(prefix * V + token)
                        rows.append(self.first[depth + 1] + prefixes[-1])
                        law = np.where(np.arange(V) == token, 0, law)
                        if (self.problem.draft[self.first[depth] + prefix] == 1).any():
                            # deterministic: the next sibling is the next token, for certain
                            law = np.eye(V)[(token + 1) % V]
                layer = below
            target = self.problem.target[rows]
            line = self.verify(np.array(tokens), np.array(parents), np.stack(laws), target, **keywords)
            lines.append(line)
            node, drafted = -1, drafted + self.drafts
            for token in np.asarray(line).tolist()[: self.drafts]:
                children = [i for i, up in enumerate(parents) if up == node and tokens[i] == token]
                if not children:
                    break
                node, accepted = children[0], accepted + 1
        return self.pad(lines), accepted, drafted


def check_verify(sampler: Drafted) -> None:
    """ParityError for a verifier that fails, or returns the same tokens for the same drafts whatever its seed."""
    tokens, q, p = sampler.make_drafts(200, np.random.default_rng(0))

    def run(seed: int) -> np.ndarray:
        keywords = sampler.seeded(seed)
        if sampler.shape == "tree":
            return sampler.verify_trees(len(tokens), np.random.default_rng(0), keywords)[0]
        if sampler.shape == "batch":
            return sampler.check_batch(sampler.verify(tokens, q, p, **keywords), len(tokens))
        return sampler.pad([sampler.verify(*row, **keywords) for row in zip(tokens, q, p, strict=True)])

    try:
        same = (run(1) == run(2)).all()
    except ParityError:
        raise
    except Exception as error:
        what = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        raise ParityError(f"verify: failed on shape {sampler.shape!r}: {what}") from error
    if same:
        sources = "its keyword rng, or random's, numpy's or torch's global generator"
        raise ParityError(f"verify: the same tokens under different seeds; allowed: one that draws from {sources}")


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
    """The verdict on a verifier: on each problem at alpha over their number; the first that is lossy ends the run.

    shape     "row", "batch" or "tree": see the head of this module; branches: children of a tree's node
    problems  kinds, or `Problem`s with laws of your own
    n         sequences a problem; None: as many as a bound below `margin` needs
    batch     sequences between two looks; None: a tenth of n
    draws     of the simulated null of each fixed size
    A keyword `rng` of the verifier gets a generator of numpy; the generators of random, numpy and torch are seeded.
    """
    check_settings(margin=margin, alpha=alpha, n=n, repeat=repeat, batch=batch, branches=branches)
    check_enumerable(vocab, drafts)
    if shape not in SHAPES:
        raise ParityError(f"shape {shape!r}: allowed: {', '.join(SHAPES)}")
    if not problems:
        raise ParityError(f"problems: none; allowed: {', '.join(KINDS)}, or a Problem")
    cases = [make_problem(p, vocab, drafts) if isinstance(p, str) else p for p in problems]
    cases = [check_problem(case, vocab, drafts) for case in cases]
    found: list[Certificate] = []
    for case in cases:
        sampler = Drafted(verify, case, shape, branches, drafts)
        if not found:
            check_verify(sampler)
        law = Law(case.name, np.zeros((1, 1), dtype=np.int64), case.target[None], drafts + 1)
        size = n or int(SPARE * evidence.needed(law.cells, margin))
        settings: dict[str, Any] = {"repeat": repeat, "margin": margin, "alpha": alpha / len(cases), "seeds": seeds}
        settings |= {
            "draws": draws,
            "batch": batch or max(100, size // 10),
            "claim": claim,
            "name": name or name_of(verify),
        }
        found.append(certify_sampler(sampler, law, n=size, tell=tell, **settings))
        if found[-1].verdict.kind == "lossy":
            break
    return combine(found, [case.name for case in cases], alpha)


def combine(found: Sequence[Certificate], names: Sequence[str], alpha: float) -> Certificate:
    """One certificate of those of all problems: the worst verdict, the largest bound."""
    worst = max(found, key=lambda c: (WORST.index(c.verdict.kind), c.verdict.bound or 0.0))
    tested, v = tuple(names[: len(found)]), worst.verdict
    bound = max((c.verdict.bound for c in found if c.verdict.bound is not None), default=None)
    v = replace(v, alpha=alpha, bound=bound, tested=tested, untested=tuple(names[len(found) :]))
    v = replace(v, n=min(min(c.beside["n"]) for c in found))
    if v.kind == "certified":
        if set(tested) == {"equal"}:
            v = replace(v, kind="inconclusive", reason="tested with p = q alone, where most faulty verifiers pass")
        else:
            v = replace(v, reason=f"TV <= {bound:.4f} (95 %) on each of: {', '.join(tested)}")
    elif v.kind != "lossy":
        v = replace(v, reason=f"on {worst.rows[0]['model']}: {v.reason}")
    beside = dict(worst.beside)
    for key in ("drafted", "accepted"):
        beside[key] = sum(c.beside[key] for c in found)
    rows = [row for c in found for row in c.rows]
    return replace(worst, verdict=v, rows=rows, beside=beside)
