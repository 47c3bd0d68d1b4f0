"""Distributions: the probability of every sequence after every prompt, by enumeration; and distributions in files.

    target_distribution(f, vocab=4, length=4, prompts=...)        f: prefixes [n, P + t] -> probabilities [n, V]
    write_distribution(distribution, "target.json", draft=tables)        a small table model for engines in any language
    read_distribution("target.json")                                     its draft is distribution.extra["draft"]

A distribution is a table of conditionals, a row for each prefix in this order: the empty one, those of one token, of
two, ..., first token most significant. After the end token stands the end token again, with certainty. A file is

    {"format": "parity-distribution", "version": 1, "vocab": 4, "length": 3, "prompts": [[0]], "end": null,
     "target": [[row], [V rows], [V^2 rows]], "draft": the same, or null}

with probabilities as decimal strings that give the same float64 back. Its table serves every prompt.
"""

import hashlib
import json
import math
import numbers
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from parity_certify.errors import ParityError, describe_error
from parity_certify.files import publish
from parity_certify.joint_tests import digits
from parity_certify.seeding import check_seed

CELLS = 20_000  # largest number of sequences, over all prompts, that is enumerated
TOLERANCE = 1e-6  # largest difference of a distribution's sum from one
# the same of a distribution in bfloat16 or float16, each of whose numbers is rounded by up to 2^-9 of it
HALF_TOLERANCE = 2**-8
FORMAT = {"format": "parity-distribution", "version": 1}
OLD_FORMAT = {"format": "parity-law", "version": 1}  # deprecated; read, not written


@dataclass(frozen=True)
class Distribution:
    """Next-token distributions: tables [K, N, V] after each of the prompts [K, P], a row for each prefix; a sequence is
    over after the token `end`. extra: the draft model's table ("draft"), the digest of the distribution's file
    ("sha256")."""

    name: str
    prompts: np.ndarray
    tables: np.ndarray
    length: int
    end: int | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def vocab(self) -> int:
        """V, the number of tokens."""
        return self.tables.shape[-1]

    @property
    def powers(self) -> np.ndarray:
        """Place values [L]: tokens @ powers is the code of a sequence."""
        return self.vocab ** np.arange(self.length - 1, -1, -1)

    @cached_property
    def joint(self) -> np.ndarray:
        """Distribution of whole sequences after each prompt [K, V^L]."""
        return np.stack([compute_joint(table, self.length) for table in self.tables])

    @cached_property
    def cells(self) -> np.ndarray:
        """Distribution of (prompt, sequence), prompts drawn evenly: [K * V^L]."""
        return self.joint.ravel() / len(self.prompts)

    def prepend_prompt(self) -> tuple[np.ndarray, np.ndarray, int]:
        """Return `cells` as the distribution of sequences with the prompt's number in front, the form that
        `joint_tests` takes. Returns the distribution [W^(L + 1)], the code of each cell in it [K * V^L], and W, its
        vocabulary."""
        V, K, L = self.vocab, len(self.prompts), self.length
        if K == 1:
            return self.cells, np.arange(len(self.cells)), V
        W = max(V, K)
        tokens = np.concatenate([np.repeat(np.arange(K), V**L)[:, None], np.tile(digits(V, L), (K, 1))], 1)
        codes = tokens @ W ** np.arange(L, -1, -1)
        distribution = np.zeros(W ** (L + 1))
        distribution[codes] = self.cells
        return distribution, codes, W


def count_prefixes(vocab: int, depth: int) -> int:
    """Count the prefixes that are shorter than `depth` tokens."""
    return sum(vocab**i for i in range(depth))


def select_level(vocab: int, depth: int) -> slice:
    """Return the rows of a table that hold the prefixes of `depth` tokens."""
    return slice(count_prefixes(vocab, depth), count_prefixes(vocab, depth + 1))


def compute_joint(table: np.ndarray, length: int) -> np.ndarray:
    """Multiply conditionals [N, V], rows by prefix, into the distribution [V^L] of sequences of `length` tokens."""
    V, joint = table.shape[-1], np.ones(1)
    for depth in range(length):
        joint = (joint[:, None] * table[select_level(V, depth)]).ravel()
    return joint


def absorb_end(table: np.ndarray, length: int, end: int | None) -> np.ndarray:
    """Return conditionals [N, V] in which only the end token follows an end token; the table itself if `end` is None.
    Raises ParityError if `end` is not in the vocabulary."""
    if end is None:
        return table
    V, table = table.shape[-1], table.copy()
    if not isinstance(end, numbers.Integral) or not 0 <= end < V:
        raise ParityError(f"end {end}: allowed: a token, 0 to {V - 1}")
    for depth in range(1, length):
        table[select_level(V, depth)][(digits(V, depth) == end).any(1)] = np.eye(V)[end]
    return table


def check_size(vocab: int, length: int, prompts: int) -> None:
    """Raise ParityError if the sequences are too many to enumerate; the message names a length that fits."""
    whole = isinstance(vocab, numbers.Integral) and isinstance(length, numbers.Integral)
    if not whole or vocab < 2 or length < 1 or prompts < 1:
        raise ParityError(
            f"vocab {vocab}, length {length}, {prompts} prompts: allowed: whole numbers of at least 2, 1 and 1"
        )
    if prompts * int(vocab) ** int(length) > CELLS:  # a number of numpy would wrap
        longest = max(0, int(math.log(CELLS / prompts, vocab)))
        problem = f"{prompts} x {vocab}^{length} sequences are too many to enumerate (allowed: {CELLS})"
        fits = f"length {longest} or less; or " * (longest > 0)
        raise ParityError(f"target: {problem}; {fits}its texts, `parity-certify texts` (teacher-forced)")


def convert_to_array(values: Any) -> np.ndarray:
    """Convert what a function returned to an array: a list, an array, or a tensor of torch, also one with a gradient,
    on a GPU, or in bfloat16, which becomes float64."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        values = (values.double() if values.is_floating_point() else values).numpy()
    return np.asarray(values)


def check_distribution(p: np.ndarray, name: str, tolerance: float = TOLERANCE) -> np.ndarray:
    """Scale probabilities [n, V] to a sum of one. Raises ParityError, with their `name`, for a row that is no
    distribution: one whose sum differs from one by more than `tolerance`, for example."""
    total = p.sum(-1)
    bad = ~(np.isfinite(p).all(-1) & (np.abs(total - 1) <= tolerance) & (p >= 0).all(-1))
    if bad.any():
        row = int(bad.argmax())
        numbers = f"smallest {p[row].min():.6g}, sum {total[row]:.6g}"
        raise ParityError(
            f"distribution: {name}, row {row}: not a distribution ({numbers}); allowed: 0 to 1, with a sum of one"
        )
    return p / total[:, None]


def check_prompts(prompts: Any, vocab: int | None = None) -> np.ndarray:
    """Return prompts as an array [K, P]. Raises ParityError if they are not different rows of token numbers."""
    try:
        array = convert_to_array(prompts)
    except (TypeError, ValueError):  # rows of several lengths
        array = np.zeros(0)
    if array.ndim != 2 or not len(array) or (array.size and array.dtype.kind not in "iu"):
        allowed = "[K, P] token numbers, at least one prompt, all of one length, as [[0, 1], [2, 1]]"
        raise ParityError(f"prompts: allowed: {allowed}")
    array = array.astype(np.int64)
    if len(np.unique(array, axis=0)) < len(array):
        raise ParityError("prompts: one is given twice; allowed: different prompts")
    if vocab is not None and array.size and not (array.min() >= 0 and array.max() < vocab):
        raise ParityError(f"prompts: tokens {array.min()} to {array.max()}; allowed: 0 to {vocab - 1}")
    return array


def target_distribution(
    source: Any, *, vocab: int, length: int, prompts: Any = ((0,),), end: int | None = None, name: str = ""
) -> Distribution:
    """Enumerate the distribution of a function from prefixes [n, P + t], prompt first, to probabilities [n, V]. Raises
    ParityError if the function returns no distribution, or if the sequences are too many."""
    prompts = check_prompts(prompts)
    check_size(vocab, length, len(prompts))
    tables = []
    for k, prompt in enumerate(prompts):
        levels = []
        for depth in range(length):
            tokens = digits(vocab, depth).reshape(vocab**depth, depth).astype(np.int64)
            prefixes = np.concatenate([np.tile(prompt, (len(tokens), 1)), tokens], 1)
            p, tolerance = compute_probabilities(source, prefixes)
            if p.shape != (len(prefixes), vocab):
                raise ParityError(f"distribution: shape {p.shape} for {prefixes.shape} prefixes; allowed: [n, {vocab}]")
            levels.append(check_distribution(p, f"prompt {k}, {depth} tokens", tolerance))
        tables.append(absorb_end(np.concatenate(levels), length, end))
    return Distribution(name or getattr(source, "__name__", "distribution"), prompts, np.stack(tables), length, end)


def compute_probabilities(source: Any, prefixes: np.ndarray) -> tuple[np.ndarray, float]:
    """Compute the probabilities, float64, that a user's function gives for prefixes [n, P + t], and by how much their
    sum may differ from one. Raises ParityError if the function fails, or returns no numbers."""
    try:
        values = source(prefixes)
        is_half = "float16" in str(getattr(values, "dtype", ""))
        return convert_to_array(values).astype(float), HALF_TOLERANCE if is_half else TOLERANCE
    except (Exception, SystemExit) as error:  # the function may raise anything
        raise ParityError(f"distribution: failed for {prefixes.shape} prefixes: {describe_error(error)}") from error


def random_distribution(vocab: int, length: int, seed: int = 0) -> Distribution:
    """Draw a distribution at random for the prompt [0], and a draft's conditionals [N, V], in `extra`. None is below
    0.1 / V."""
    check_size(vocab, length, 1)
    rng = np.random.default_rng(check_seed(seed))
    target, draft = rng.dirichlet(np.ones(vocab), (2, count_prefixes(vocab, length))) * 0.9 + 0.1 / vocab
    return Distribution(
        f"random {seed}", np.zeros((1, 1), dtype=np.int64), target[None], length, None, {"draft": draft}
    )


def write_distribution(distribution: Distribution, file: str | Path, draft: np.ndarray | None = None) -> None:
    """Write a distribution to a file (format: head of this module), with the draft's conditionals [N, V] (None: those
    in distribution.extra). Raises ParityError if its prompts have different distributions."""
    if any((table != distribution.tables[0]).any() for table in distribution.tables):
        raise ParityError("distribution: its prompts have different distributions; allowed: one table, for all prompts")

    def split_levels(table: Any) -> list[list[list[str]]]:
        """Write conditionals [N, V] as decimal strings, in a list for each length of prefix."""
        texts = [[repr(float(x)) for x in row] for row in table]
        return [texts[select_level(distribution.vocab, t)] for t in range(distribution.length)]

    draft = distribution.extra.get("draft") if draft is None else draft
    content = FORMAT | {
        "vocab": distribution.vocab,
        "length": distribution.length,
        "prompts": distribution.prompts.tolist(),
        "end": distribution.end,
    }
    content |= {"target": split_levels(distribution.tables[0]), "draft": None if draft is None else split_levels(draft)}
    publish(Path(file), (json.dumps(content, indent=1) + "\n").encode())


def read_distribution(file: str | Path) -> Distribution:
    """Read a distribution from a file, with draft and SHA-256 in `extra`. Raises ParityError that names what is
    wrong."""
    file = Path(file)
    try:
        text = file.read_bytes()
        content = json.loads(text)
    except (OSError, ValueError) as error:
        raise ParityError(
            f"{file}: no distribution: {str(error).splitlines()[0]}; allowed: a file of `distribution --out`"
        ) from None
    if not isinstance(content, dict) or {k: content.get(k) for k in FORMAT} not in (FORMAT, OLD_FORMAT):
        raise ParityError(f"{file}: format: allowed: {FORMAT['format']!r}, version {FORMAT['version']}")
    numbers: dict[str, Any] = {key: content.get(key) for key in ("vocab", "length", "end")}
    for key, value in numbers.items():
        if type(value) is not int and (key, value) != ("end", None):
            raise ParityError(f"{file}: {key} {value!r}: allowed: an integer")
    vocab = numbers["vocab"]
    length = numbers["length"]
    check_size(vocab, length, 1)

    def read_table(key: str) -> np.ndarray:
        """Read the conditionals [N, V] of `key`, as written. Raises ParityError if they are no distributions of this
        size."""
        sizes = [vocab**t for t in range(length)]
        try:
            levels = [np.array([[float(x) for x in row] for row in level]) for level in content[key]]
            if [p.shape for p in levels] != [(size, vocab) for size in sizes]:
                raise ValueError
        except (KeyError, TypeError, ValueError):
            allowed = f"levels of {sizes} rows, each of {vocab} decimal strings"
            raise ParityError(f"{file}: {key}: allowed: {allowed}") from None
        table = np.concatenate(levels)
        check_distribution(table, f"{file}: {key}")
        return table

    prompts = check_prompts(content.get("prompts", [[0]]))
    target = read_table("target")
    extra: dict[str, Any] = {"sha256": hashlib.sha256(text).hexdigest()}
    if content.get("draft") is not None:
        extra["draft"] = read_table("draft")
    return Distribution(file.stem, prompts, np.repeat(target[None], len(prompts), 0), length, numbers["end"], extra)
