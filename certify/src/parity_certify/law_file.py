"""A law in a file: a small table model that the unit test of an engine, in any language, reads and serves.

    write_law(law, "law.json", draft=tables)      read_law("law.json") -> Law; its draft is law.extra["draft"]

    {"format": "parity-law", "version": 1, "vocab": 4, "length": 3, "prompts": [[0]], "end": null,
     "target": [[row], [V rows], [V^2 rows]], "draft": the same, or null}

Row number r of a level is the law behind the prefix whose tokens are the digits of r in base V, first token most
significant. Probabilities are decimal strings that give the same float64 back. The table serves every prompt.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from parity_certify.errors import ParityError
from parity_certify.laws import Law, check_law, check_prompts, check_size, first_of

FORMAT, VERSION = "parity-law", 1


def random_law(vocab: int, length: int, seed: int = 0) -> Law:
    """A table model of random laws, with a draft model beside it."""
    check_size(vocab, length, 1)
    rng = np.random.default_rng(seed)
    target, draft = rng.dirichlet(np.ones(vocab), (2, first_of(vocab, length))) * 0.9 + 0.1 / vocab
    return Law(f"random {seed}", np.zeros((1, 1), dtype=np.int64), target[None], length, None, {"draft": draft})


def levels(table: np.ndarray, vocab: int, length: int) -> list[list[list[str]]]:
    """Conditionals [N, V] by the length of the prefix, as decimal strings."""
    texts = [[repr(float(x)) for x in row] for row in table]
    return [texts[first_of(vocab, t) : first_of(vocab, t + 1)] for t in range(length)]


def write_law(law: Law, file: str | Path, draft: np.ndarray | None = None) -> None:
    """Write a law, and the draft's conditionals [N, V] beside it (none: those of law.extra)."""
    if any((table != law.tables[0]).any() for table in law.tables):
        raise ParityError("law: its prompts have different laws; allowed: one table, for all prompts")
    draft = law.extra.get("draft") if draft is None else draft
    found: dict[str, Any] = {"format": FORMAT, "version": VERSION, "vocab": law.vocab, "length": law.length}
    found |= {"prompts": law.prompts.tolist(), "end": law.end}
    found["target"] = levels(law.tables[0], law.vocab, law.length)
    found["draft"] = None if draft is None else levels(np.asarray(draft), law.vocab, law.length)
    Path(file).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def read_table(found: Any, vocab: int, length: int, what: str) -> np.ndarray:
    """Conditionals [N, V] of levels of rows, exactly as written."""
    sizes = [vocab**t for t in range(length)]
    try:
        parts = [np.array([[float(x) for x in row] for row in level]) for level in found]
        if [p.shape for p in parts] != [(size, vocab) for size in sizes]:
            raise ValueError
    except (TypeError, ValueError):
        raise ParityError(f"{what}: allowed: levels of {sizes} rows, each of {vocab} decimal strings") from None
    table = np.concatenate(parts)
    check_law(table, what)
    return table


def read_law(file: str | Path) -> Law:
    """The law of a file; ParityError that names the key for what is none."""
    file = Path(file)
    try:
        text = file.read_bytes()
        found = json.loads(text)
    except (OSError, ValueError) as error:
        raise ParityError(f"{file}: no law: {str(error).splitlines()[0]}; allowed: a file of `law --out`") from None
    if not isinstance(found, dict) or found.get("format") != FORMAT or found.get("version") != VERSION:
        raise ParityError(f"{file}: format: allowed: {FORMAT!r}, version {VERSION}")
    vocab, length, end = found.get("vocab"), found.get("length"), found.get("end")
    for key, value in {"vocab": vocab, "length": length, **({} if end is None else {"end": end})}.items():
        if type(value) is not int:
            raise ParityError(f"{file}: {key} {value!r}: allowed: an integer")
    check_size(vocab, length, 1)  # type: ignore[arg-type]
    prompts = check_prompts(found.get("prompts", [[0]]))
    target = read_table(found.get("target"), vocab, length, f"{file}: target")  # type: ignore[arg-type]
    extra: dict[str, Any] = {"sha256": hashlib.sha256(text).hexdigest()}
    if found.get("draft") is not None:
        extra["draft"] = read_table(found["draft"], vocab, length, f"{file}: draft")  # type: ignore[arg-type]
    tables = np.repeat(target[None], len(prompts), 0)
    return Law(file.stem, prompts, tables, length, end, extra)  # type: ignore[arg-type]
