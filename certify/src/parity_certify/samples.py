"""Certify samples that were drawn elsewhere, of sizes fixed beforehand, under two seeds.

    certify_samples("samples.jsonl", law)       a JSON object a line
    certify_samples("samples.csv", law)         columns seed, tokens, and prompt where there are several

    {"seed": 0, "tokens": [2, 1, 3]}                                a sequence; "prompt": its number, 0 if not there
    {"seed": 0, "counts": {"2 1 3": 412, ...}, "prompt": 0}         or how often each was drawn
    {"format": "parity-samples", "law_sha256": "...", "engine": "x 1.2", "seeds": [0, 1]}       a head, optional

A line may have "drafted" and "accepted"; they add up. In CSV, tokens are separated by spaces. Each prompt has as many
sequences as any other of its seed. The first seed is tested; a rejection must repeat on the second.
"""

import csv
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from parity_certify import evidence
from parity_certify.calls import tokens_of
from parity_certify.certificate import Certificate, concluded
from parity_certify.errors import ParityError
from parity_certify.joint_tests import log_e
from parity_certify.laws import Law
from parity_certify.result_rows import ALPHA, Row
from parity_certify.sampler import Drawn, check_settings
from parity_certify.store import Batch

FORMAT = "parity-samples"
SHOWN = 80  # characters of a line in a message


def read_lines(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line numbers and objects of JSON lines, or of CSV by its ending."""
    try:
        with file.open(encoding="utf-8", newline="") as stream:
            if file.suffix.lower() == ".csv":
                for number, row in enumerate(csv.DictReader(stream), 2):
                    yield number, {key: parse_cell(key, value, number) for key, value in row.items()}
                return
            for number, text in enumerate(stream, 1):
                if text.strip():
                    yield number, parse_line(text, number)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ParityError(f"samples: {file}: {error}; allowed: a file of JSON lines or CSV") from None


def parse_line(text: str, number: int) -> dict[str, Any]:
    try:
        line = json.loads(text)
    except ValueError:
        line = None
    if not isinstance(line, dict):
        raise ParityError(f"samples: line {number}: {text.strip()[:SHOWN]!r}; allowed: a JSON object")
    return line


def parse_cell(key: str | None, value: Any, number: int) -> Any:
    """Integers of a cell of CSV; a list of them where the column is `tokens`."""
    try:
        numbers = [int(part) for part in value.split()]
        return numbers if key == "tokens" else numbers[0]
    except (AttributeError, ValueError, IndexError):
        raise ParityError(f"samples: line {number}: {key}: {value!r}; allowed: integers") from None


def read_integer(line: dict[str, Any], key: str, number: int, least: int, most: float, default: int | None) -> int:
    value = line.get(key, default)
    if type(value) is not int or not least <= value <= most:
        limits = f"{least} to {most}" if most < 2**63 else f"{least} or more"
        raise ParityError(f"samples: line {number}: {key} {value!r}; allowed: an integer, {limits}")
    return value


def read_counts(line: dict[str, Any], number: int, law: Law) -> np.ndarray:
    """How often a line drew each sequence [V^L]."""
    if "counts" in line:
        counts = line["counts"]
        if not isinstance(counts, dict) or not all(type(c) is int and c >= 0 for c in counts.values()):
            raise ParityError(f'samples: line {number}: counts; allowed: an object as {{"2 1 3": 412}}')
        try:
            rows = [[int(token) for token in text.split()] for text in counts]
        except ValueError:
            raise ParityError(f'samples: line {number}: counts; allowed: keys as "2 1 3"') from None
        weights = list(counts.values())
    elif isinstance(line.get("tokens"), list):
        rows, weights = [line["tokens"]], [1]
    else:
        raise ParityError(f"samples: line {number}: neither tokens nor counts; allowed: one of the two")
    try:
        tokens = tokens_of(rows, len(rows), law)
    except (ParityError, ValueError) as error:
        raise ParityError(f"samples: line {number}: {str(error).removeprefix('sampler: ')}") from None
    codes = tokens @ law.vocab ** np.arange(law.length - 1, -1, -1)
    return np.bincount(codes, weights, law.vocab**law.length).astype(np.int64)


def read_samples(file: Path, law: Law) -> dict[int, Drawn]:
    """What each seed drew, seeds in the order of the file."""
    counts: dict[int, np.ndarray] = {}
    drafts: dict[int, list[tuple[int, int]]] = {}
    for number, line in read_lines(file):
        if line.get("format") == FORMAT:
            own = law.extra.get("sha256")
            if own and line.get("law_sha256", own) != own:
                raise ParityError(f"samples: line {number}: law_sha256: of another law; allowed: {own}")
            continue
        seed = read_integer(line, "seed", number, 0, 2**63, None)
        prompt = read_integer(line, "prompt", number, 0, len(law.prompts) - 1, 0)
        counts.setdefault(seed, np.zeros(law.joint.shape, dtype=np.int64))[prompt] += read_counts(line, number, law)
        pair = [read_integer(line, key, number, -1, 2**63, -1) for key in ("drafted", "accepted")]
        drafts.setdefault(seed, []).append((pair[0], pair[1]))
    nothing = np.zeros(0, dtype=np.int64)
    found = {}
    for seed, own in counts.items():
        sizes = own.sum(1)
        if sizes.min() != sizes.max() or not sizes.min():
            allowed = "equally many behind each prompt, at least one"
            raise ParityError(f"samples: seed {seed}: {sizes.tolist()} sequences by prompt; allowed: {allowed}")
        batches = [Batch(nothing, nothing, drafted, accepted) for drafted, accepted in drafts[seed] if drafted >= 0]
        found[seed] = Drawn(own.ravel(), max(0.0, float(log_e(own.ravel(), law.cells))), batches)
    return found


def certify_samples(
    file: str | Path, law: Law, *, margin: float = 0.05, alpha: float = ALPHA, claim: str = "lossless", name: str = ""
) -> Certificate:
    """The verdict on the samples of a file."""
    check_settings(margin=margin, alpha=alpha)
    file = Path(file)
    found = read_samples(file, law)
    if len(found) != 2:
        allowed = "two: a rejection must repeat on the second"
        raise ParityError(f"samples: {file}: seeds {sorted(found)}; allowed: {allowed}")
    name, rows, used = name or file.stem, list[Row](), list[Drawn]()
    for repeat, (seed, drawn) in enumerate(found.items()):
        settings: dict[str, Any] = {
            "best": drawn.best,
            "look": None,
            "fixed": True,
            "alpha": alpha,
            "draws": evidence.DRAWS,
        }
        own = evidence.sample_rows(drawn.counts, law, seed=seed, **settings)
        if len(law.prompts) > 1:
            own += evidence.prompt_rows(drawn.counts, law, seed)
        rows += [r | {"repeat": repeat, "method": name} for r in own]
        used.append(drawn)
        if not any(r["decides"] and r["verdict"] == "rejected" for r in own):
            break
    result = concluded(rows, law, used[-1].counts, used, margin=margin, alpha=alpha, claim=claim, name=name)
    result.verdict = replace(result.verdict, untested=("independence of rows", "other prompts and longer outputs"))
    return result
