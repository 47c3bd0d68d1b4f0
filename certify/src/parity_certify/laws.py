"""What a black-box sampler is compared with: the law of every sequence behind every prompt, by enumeration.

    law(f, vocab=4, length=4, prompts=...)     f a callable of prefixes, or a TabularModel
    parity_certify.adapters.transformers.law   of a model of transformers

A law is held as a table of conditionals, a row for each prefix in this order: the empty
one, those of one token, of two, ... An end token is absorbed: behind it stands the end token again, with certainty.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from parity_certify.errors import ParityError
from parity_certify.joint_tests import digits

CELLS = 20_000  # sequences, over all prompts, that are still counted one by one
SUM = 1e-6  # how far a law's sum may be from one
Conditional = Callable[[np.ndarray], Any]  # prefixes [n, P + t] -> probabilities [n, V]


@dataclass(frozen=True)
class Law:
    """tables [K, N, V] conditionals behind each of the prompts [K, P]; end, the token that is absorbed, or None."""

    name: str
    prompts: np.ndarray
    tables: np.ndarray
    length: int
    end: int | None = None
    extra: dict[str, Any] = field(default_factory=dict)  # what a diagnosis may want beside it

    @property
    def vocab(self) -> int:
        return self.tables.shape[-1]

    @cached_property
    def joint(self) -> np.ndarray:
        """[K, V^L], each row a law."""
        return np.stack([joint_of(table, self.length) for table in self.tables])

    @cached_property
    def cells(self) -> np.ndarray:
        """Law of (prompt, sequence), prompts drawn evenly: [K * V^L]."""
        return self.joint.ravel() / len(self.prompts)

    def wide(self) -> tuple[np.ndarray, np.ndarray, int]:
        """`cells` as the law of sequences of one token more, the first the prompt's number: law [W^(L + 1)], where
        each cell stands in it [K * V^L], and W. What the statistics of the exact layer read."""
        V, K, L = self.vocab, len(self.prompts), self.length
        if K == 1:
            return self.cells, np.arange(len(self.cells)), V
        W = max(V, K)
        tokens = np.concatenate([np.repeat(np.arange(K), V**L)[:, None], np.tile(digits(V, L), (K, 1))], 1)
        at = tokens @ W ** np.arange(L, -1, -1)
        law = np.zeros(W ** (L + 1))
        law[at] = self.cells
        return law, at, W


def first_of(vocab: int, depth: int) -> int:
    """Number of prefixes shorter than `depth`."""
    return sum(vocab**i for i in range(depth))


def joint_of(table: np.ndarray, length: int) -> np.ndarray:
    """Law [V^L] of conditionals [N, V]."""
    V = table.shape[-1]
    found = np.ones(1)
    for depth in range(length):
        first = first_of(V, depth)
        found = (found[:, None] * table[first : first + V**depth]).ravel()
    return found


def absorbed(table: np.ndarray, length: int, end: int | None) -> np.ndarray:
    """Conditionals [N, V] with the end token certain behind itself."""
    if end is None:
        return table
    V, found = table.shape[-1], table.copy()
    if not 0 <= end < V:
        raise ParityError(f"end {end}: allowed: a token, 0 to {V - 1}")
    for depth in range(1, length):
        over = (digits(V, depth) == end).any(1)
        found[first_of(V, depth) : first_of(V, depth) + V**depth][over] = np.eye(V)[end]
    return found


def check_size(vocab: int, length: int, prompts: int) -> None:
    """ParityError for what is too large to be enumerated: it names the layer that applies."""
    if vocab < 2 or length < 1 or prompts < 1:
        raise ParityError(f"vocab {vocab}, length {length}, {prompts} prompts: allowed: at least 2, 1 and 1")
    if prompts * math.log(vocab) * length > 700 or prompts * vocab**length > CELLS:
        longest = int(math.log(CELLS / prompts) / math.log(vocab)) if prompts < CELLS else 0
        widest = int((CELLS / prompts) ** (1 / length))
        fits = f"length {longest} or less; or " if longest else ""
        fits += f"vocab {widest} or less at this length; or " if widest > 1 else ""
        what = f"{prompts} x {vocab}^{length} sequences are too many to enumerate (allowed: {CELLS})"
        raise ParityError(f"target: {what}; {fits}its texts, `parity-certify texts` (teacher-forced)")


def check_law(p: np.ndarray, what: str) -> np.ndarray:
    """Probabilities [n, V] as they are, each a law; ParityError that names the first row that is none."""
    total = p.sum(-1)
    bad = ~(np.isfinite(p).all(-1) & (np.abs(total - 1) <= SUM) & (p >= 0).all(-1))
    if bad.any():
        row = int(bad.argmax())
        found = f"smallest {p[row].min():.6g}, sum {total[row]:.6g}"
        raise ParityError(f"law: {what}, row {row}: not a law ({found}); allowed: 0 to 1, with a sum of one")
    return p / total[:, None]


def check_prompts(prompts: Any, vocab: int | None = None) -> np.ndarray:
    try:
        found = np.array(prompts, dtype=np.int64)
    except (TypeError, ValueError):
        raise ParityError("prompts: allowed: [K, P] token numbers, as [[0, 1], [2, 1]]") from None
    if found.ndim != 2 or not len(found):
        raise ParityError(f"prompts: shape {found.shape}; allowed: [K, P] token numbers, at least one prompt")
    if len(np.unique(found, axis=0)) < len(found):
        raise ParityError("prompts: one is given twice; allowed: different prompts")
    if vocab is not None and found.size and not (found.min() >= 0 and found.max() < vocab):
        raise ParityError(f"prompts: tokens {found.min()} to {found.max()}; allowed: 0 to {vocab - 1}")
    return found


def of_table(model: Any, prompts: np.ndarray, end: int | None, name: str) -> Law:
    """The law of a table of logits."""
    if model.pair or bool((model.forced >= 0).any()):
        raise ParityError("law: a table with guidance, or forced tokens; allowed: parity.certify.decoded.law_of")
    check_size(model.vocab, model.length, 1)
    table = model.table.double().softmax(-1).numpy()
    return Law(name, prompts, absorbed(table, model.length, end)[None], model.length, end)


def law(
    source: Any,
    *,
    vocab: int = 0,
    length: int = 0,
    prompts: Any = ((0,),),
    end: int | None = None,
    name: str = "",
) -> Law:
    """The law of a callable of prefixes [n, P + t] -> probabilities [n, V], prompt first, or of a TabularModel (which
    knows no prompt). ParityError for what is no law, or too large."""
    prompts = check_prompts(prompts)
    if hasattr(source, "table"):
        return of_table(source, prompts[:1], end, name or "table")
    check_size(vocab, length, len(prompts))
    tables = []
    for k, prompt in enumerate(prompts):
        parts = []
        for depth in range(length):
            tokens = digits(vocab, depth).reshape(vocab**depth, depth).astype(np.int64)
            prefixes = np.concatenate([np.tile(prompt, (len(tokens), 1)), tokens], 1)
            p = np.asarray(source(prefixes), dtype=float)
            if p.shape != (len(prefixes), vocab):
                raise ParityError(f"law: shape {p.shape} for {prefixes.shape} prefixes; allowed: [n, {vocab}]")
            parts.append(check_law(p, f"prompt {k}, {depth} tokens"))
        tables.append(absorbed(np.concatenate(parts), length, end))
    return Law(name or getattr(source, "__name__", "law"), prompts, np.stack(tables), length, end)
