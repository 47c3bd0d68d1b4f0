"""Laws: the probability of every sequence behind every prompt, by enumeration; and laws in files.

    law(f, vocab=4, length=4, prompts=...)     f: prefixes [n, P + t] -> probabilities [n, V]
    write_law(law, "law.json", draft=tables)   a small table model that an engine in any language reads and serves
    read_law("law.json")                       its draft is law.extra["draft"]

A law is a table of conditionals, a row for each prefix in this order: the empty one, those of one token, of two, ...,
first token most significant. Behind the end token stands the end token again, with certainty. A file is

    {"format": "parity-law", "version": 1, "vocab": 4, "length": 3, "prompts": [[0]], "end": null,
     "target": [[row], [V rows], [V^2 rows]], "draft": the same, or null}

with probabilities as decimal strings that give the same float64 back. Its table serves every prompt.
"""

import hashlib
import json
import math
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from parity_certify.errors import ParityError
from parity_certify.joint_tests import digits

CELLS = 20_000  # sequences, over all prompts, that are still counted one by one
TOLERANCE = 1e-6  # of a law's sum
FORMAT = {"format": "parity-law", "version": 1}


@dataclass(frozen=True)
class Law:
    """tables [K, N, V] conditionals behind each of the prompts [K, P]; end: the token behind which a sequence is over;
    extra: what a diagnosis may use (the draft's table)."""

    name: str
    prompts: np.ndarray
    tables: np.ndarray
    length: int
    end: int | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def vocab(self) -> int:
        return self.tables.shape[-1]

    @property
    def powers(self) -> np.ndarray:
        """Place values [L]: tokens @ powers is the code of a sequence."""
        return self.vocab ** np.arange(self.length - 1, -1, -1)

    @cached_property
    def joint(self) -> np.ndarray:
        """[K, V^L], each row a law."""
        return np.stack([compute_joint(table, self.length) for table in self.tables])

    @cached_property
    def cells(self) -> np.ndarray:
        """Law of (prompt, sequence), prompts drawn evenly: [K * V^L]."""
        return self.joint.ravel() / len(self.prompts)

    def prepend_prompt(self) -> tuple[np.ndarray, np.ndarray, int]:
        """`cells` as the law of sequences of one token more, the first the prompt's number, as `joint_tests` reads it:
        law [W^(L + 1)], where each cell stands in it [K * V^L], and W."""
        V, K, L = self.vocab, len(self.prompts), self.length
        if K == 1:
            return self.cells, np.arange(len(self.cells)), V
        W = max(V, K)
        tokens = np.concatenate([np.repeat(np.arange(K), V**L)[:, None], np.tile(digits(V, L), (K, 1))], 1)
        at = tokens @ W ** np.arange(L, -1, -1)
        law = np.zeros(W ** (L + 1))
        law[at] = self.cells
        return law, at, W


def count_prefixes(vocab: int, depth: int) -> int:
    """Number of prefixes shorter than `depth`."""
    return sum(vocab**i for i in range(depth))


def select_level(vocab: int, depth: int) -> slice:
    """Rows of a table that stand for the prefixes of `depth` tokens."""
    return slice(count_prefixes(vocab, depth), count_prefixes(vocab, depth + 1))


def compute_joint(table: np.ndarray, length: int) -> np.ndarray:
    """Law [V^L] of conditionals [N, V]."""
    V, joint = table.shape[-1], np.ones(1)
    for depth in range(length):
        joint = (joint[:, None] * table[select_level(V, depth)]).ravel()
    return joint


def absorb_end(table: np.ndarray, length: int, end: int | None) -> np.ndarray:
    """Conditionals [N, V] with the end token certain behind itself."""
    if end is None:
        return table
    V, table = table.shape[-1], table.copy()
    if not 0 <= end < V:
        raise ParityError(f"end {end}: allowed: a token, 0 to {V - 1}")
    for depth in range(1, length):
        table[select_level(V, depth)][(digits(V, depth) == end).any(1)] = np.eye(V)[end]
    return table


def check_size(vocab: int, length: int, prompts: int) -> None:
    """ParityError for what is too large to enumerate; it names what fits."""
    if vocab < 2 or length < 1 or prompts < 1:
        raise ParityError(f"vocab {vocab}, length {length}, {prompts} prompts: allowed: at least 2, 1 and 1")
    if prompts * vocab**length > CELLS:
        longest = max(0, int(math.log(CELLS / prompts, vocab)))
        what = f"{prompts} x {vocab}^{length} sequences are too many to enumerate (allowed: {CELLS})"
        fits = f"length {longest} or less; or " * (longest > 0)
        raise ParityError(f"target: {what}; {fits}its texts, `parity-certify texts` (teacher-forced)")


def check_law(p: np.ndarray, what: str) -> np.ndarray:
    """Probabilities [n, V], each row a law; ParityError that names the first row that is none."""
    total = p.sum(-1)
    bad = ~(np.isfinite(p).all(-1) & (np.abs(total - 1) <= TOLERANCE) & (p >= 0).all(-1))
    if bad.any():
        row = int(bad.argmax())
        numbers = f"smallest {p[row].min():.6g}, sum {total[row]:.6g}"
        raise ParityError(f"law: {what}, row {row}: not a law ({numbers}); allowed: 0 to 1, with a sum of one")
    return p / total[:, None]


def check_prompts(prompts: Any, vocab: int | None = None) -> np.ndarray:
    try:
        array = np.array(prompts, dtype=np.int64)
    except (TypeError, ValueError):
        array = np.zeros(0, dtype=np.int64)
    if array.ndim != 2 or not len(array):
        raise ParityError("prompts: allowed: [K, P] token numbers, at least one prompt, as [[0, 1], [2, 1]]")
    if len(np.unique(array, axis=0)) < len(array):
        raise ParityError("prompts: one is given twice; allowed: different prompts")
    if vocab is not None and array.size and not (array.min() >= 0 and array.max() < vocab):
        raise ParityError(f"prompts: tokens {array.min()} to {array.max()}; allowed: 0 to {vocab - 1}")
    return array


def law(source: Any, *, vocab: int, length: int, prompts: Any = ((0,),), end: int | None = None, name: str = "") -> Law:
    """The law of a callable of prefixes [n, P + t], prompt first, to probabilities [n, V]. ParityError for what is no
    law, or too large."""
    prompts = check_prompts(prompts)
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
        tables.append(absorb_end(np.concatenate(parts), length, end))
    return Law(name or getattr(source, "__name__", "law"), prompts, np.stack(tables), length, end)


def random_law(vocab: int, length: int, seed: int = 0) -> Law:
    """A table model of random laws, with a draft model beside it."""
    check_size(vocab, length, 1)
    rng = np.random.default_rng(seed)
    target, draft = rng.dirichlet(np.ones(vocab), (2, count_prefixes(vocab, length))) * 0.9 + 0.1 / vocab
    return Law(f"random {seed}", np.zeros((1, 1), dtype=np.int64), target[None], length, None, {"draft": draft})


def write_law(law: Law, file: str | Path, draft: np.ndarray | None = None) -> None:
    """Write a law, and the draft's conditionals [N, V] beside it (None: those of law.extra)."""
    if any((table != law.tables[0]).any() for table in law.tables):
        raise ParityError("law: its prompts have different laws; allowed: one table, for all prompts")

    def split_levels(table: Any) -> list[list[list[str]]]:
        texts = [[repr(float(x)) for x in row] for row in table]
        return [texts[select_level(law.vocab, t)] for t in range(law.length)]

    draft = law.extra.get("draft") if draft is None else draft
    content = FORMAT | {"vocab": law.vocab, "length": law.length, "prompts": law.prompts.tolist(), "end": law.end}
    content |= {"target": split_levels(law.tables[0]), "draft": None if draft is None else split_levels(draft)}
    Path(file).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def read_law(file: str | Path) -> Law:
    """The law of a file; ParityError that names the key for what is none."""
    file = Path(file)
    try:
        text = file.read_bytes()
        content = json.loads(text)
    except (OSError, ValueError) as error:
        raise ParityError(f"{file}: no law: {str(error).splitlines()[0]}; allowed: a file of `law --out`") from None
    if not isinstance(content, dict) or {k: content.get(k) for k in FORMAT} != FORMAT:
        raise ParityError(f"{file}: format: allowed: {FORMAT['format']!r}, version {FORMAT['version']}")
    numbers: dict[str, Any] = {key: content.get(key) for key in ("vocab", "length", "end")}
    for key, value in numbers.items():
        if type(value) is not int and (key, value) != ("end", None):
            raise ParityError(f"{file}: {key} {value!r}: allowed: an integer")
    vocab, length = numbers["vocab"], numbers["length"]
    check_size(vocab, length, 1)

    def read_table(key: str) -> np.ndarray:
        """Conditionals [N, V], exactly as written."""
        sizes = [vocab**t for t in range(length)]
        try:
            parts = [np.array([[float(x) for x in row] for row in level]) for level in content[key]]
            if [p.shape for p in parts] != [(size, vocab) for size in sizes]:
                raise ValueError
        except (KeyError, TypeError, ValueError):
            what = f"levels of {sizes} rows, each of {vocab} decimal strings"
            raise ParityError(f"{file}: {key}: allowed: {what}") from None
        table = np.concatenate(parts)
        check_law(table, f"{file}: {key}")
        return table

    prompts, target = check_prompts(content.get("prompts", [[0]])), read_table("target")
    extra: dict[str, Any] = {"sha256": hashlib.sha256(text).hexdigest()}
    if content.get("draft") is not None:
        extra["draft"] = read_table("draft")
    return Law(file.stem, prompts, np.repeat(target[None], len(prompts), 0), length, numbers["end"], extra)
