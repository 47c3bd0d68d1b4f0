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

from parity_certify.calls import Batch, Drawn, tokens_of
from parity_certify.certificate import Certificate, conclude
from parity_certify.errors import ParityError
from parity_certify.evidence import sample_rows
from parity_certify.joint_tests import log_e
from parity_certify.laws import Law
from parity_certify.result_rows import ALPHA
from parity_certify.sampler import check_settings

Line = dict[str, Any]


def read_lines(file: Path) -> Iterator[tuple[int, Line | None]]:
    """Line numbers and objects of JSON lines, or of CSV by its ending; None for a line that is no JSON."""
    try:
        with file.open(encoding="utf-8", newline="") as stream:
            if file.suffix.lower() == ".csv":
                yield from enumerate(csv.DictReader(stream), 2)
                return
            for number, text in enumerate(stream, 1):
                try:
                    if text.strip():
                        yield number, json.loads(text)
                except json.JSONDecodeError:
                    yield number, None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ParityError(f"samples: {file}: {error}; allowed: a file of JSON lines or CSV") from None


def read_integer(line: Line, key: str, least: int, most: float, default: int | None) -> int:
    value = line.get(key, default)
    try:
        number = int(value) if isinstance(value, str) else value
    except ValueError:
        number = None
    if type(number) is not int or not least <= number <= most:
        limits = f"{least} to {most}" if most < 2**63 else f"{least} or more"
        raise ParityError(f"{key} {value!r}; allowed: an integer, {limits}")
    return number


def read_counts(line: Line, law: Law) -> np.ndarray:
    """How often a line drew each sequence [V^L]."""
    counts, tokens = line.get("counts"), line.get("tokens")
    if isinstance(tokens, str):  # of CSV
        counts, tokens = {tokens: 1}, None
    if counts is None and isinstance(tokens, list):
        rows, weights = [tokens], [1]
    elif isinstance(counts, dict) and all(type(c) is int and c >= 0 for c in counts.values()):
        try:
            rows, weights = [[int(token) for token in text.split()] for text in counts], list(counts.values())
        except ValueError:
            raise ParityError(f"tokens: {' / '.join(counts)[:80]!r}; allowed: integers, as in 2 1 3") from None
    else:
        raise ParityError('neither tokens nor counts; allowed: "tokens": [2, 1, 3] or "counts": {"2 1 3": 412}')
    return np.bincount(tokens_of(rows, len(rows), law) @ law.powers, weights, law.vocab**law.length).astype(np.int64)


def read_samples(file: Path, law: Law) -> dict[int, Drawn]:
    """What each seed drew, seeds in the order of the file."""
    drawn: dict[int, Drawn] = {}
    nothing = np.zeros(0, dtype=np.int64)
    for number, line in read_lines(file):
        try:
            if not isinstance(line, dict):
                raise ParityError("allowed: a JSON object")
            if line.get("format") == "parity-samples":
                if (own := law.extra.get("sha256")) and line.get("law_sha256", own) != own:
                    raise ParityError(f"law_sha256: of another law; allowed: {own}")
                continue
            seed = read_integer(line, "seed", 0, 2**63, None)
            prompt = read_integer(line, "prompt", 0, len(law.prompts) - 1, 0)
            sample = drawn.setdefault(seed, Drawn(np.zeros(len(law.cells), dtype=np.int64)))
            sample.counts.reshape(law.joint.shape)[prompt] += read_counts(line, law)
            drafted, accepted = (read_integer(line, key, -1, 2**63, -1) for key in ("drafted", "accepted"))
            if drafted >= 0:
                sample.batches.append(Batch(nothing, nothing, drafted, accepted))
        except ValueError as error:
            raise ParityError(f"samples: line {number}: {str(error).removeprefix('sampler: ')}") from None
    for seed, sample in drawn.items():
        sizes = sample.counts.reshape(law.joint.shape).sum(1)
        if sizes.min() != sizes.max() or not sizes.min():
            allowed = "equally many behind each prompt, at least one"
            raise ParityError(f"samples: seed {seed}: {sizes.tolist()} sequences by prompt; allowed: {allowed}")
        sample.best = max(0.0, float(log_e(sample.counts, law.cells)))
    return drawn


def certify_samples(
    file: str | Path, law: Law, *, margin: float = 0.05, alpha: float = ALPHA, claim: str = "lossless", name: str = ""
) -> Certificate:
    """The verdict on the samples of a file."""
    check_settings(margin=margin, alpha=alpha)
    file = Path(file)
    drawn = read_samples(file, law)
    if len(drawn) != 2:
        allowed = "two: a rejection must repeat on the second"
        raise ParityError(f"samples: {file}: seeds {sorted(drawn)}; allowed: {allowed}")
    (seed, first), (again, second) = drawn.items()
    name, rows, samples = name or file.stem, sample_rows(first, law, seed, alpha=alpha), [first]
    if any(r["decides"] and r["verdict"] == "rejected" for r in rows):
        rows += [r | {"repeat": 1} for r in sample_rows(second, law, again, alpha=alpha)]
        samples.append(second)
    rows = [r | {"method": name} for r in rows]
    result = conclude(rows, law, samples, margin=margin, alpha=alpha, claim=claim, name=name)
    result.verdict = replace(result.verdict, untested=("independence of rows", "other prompts and longer outputs"))
    return result
