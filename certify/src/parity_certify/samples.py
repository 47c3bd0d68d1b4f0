"""Certify samples that were drawn elsewhere, of sizes fixed beforehand, under two seeds.

    certify_samples("samples.jsonl", distribution)       a JSON object a line
    certify_samples("samples.csv", distribution)         columns seed, tokens, and prompt where there are several

    {"seed": 0, "tokens": [2, 1, 3]}                                a sequence; "prompt": its number, 0 if not there
    {"seed": 0, "counts": {"2 1 3": 412, ...}, "prompt": 0}         or how often each was drawn
    {"format": "parity-samples", "distribution_sha256": "...", "engine": "x 1.2", "seeds": [0, 1]}   a head, optional

A line may have "drafted", "accepted" and "rounds"; they add up. In CSV, tokens are separated by spaces. Each prompt has
as many sequences as any other of its seed. The first seed is tested; a rejection must repeat on the second. Copies are
refused: the same samples under both seeds, or all of a seed's twice.
"""

import csv
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy import special

from parity_certify.calls import COUNTS, NO_PADDING, Batch, Drawn, check_paddings, check_tokens
from parity_certify.certificate import Certificate, make_certificate
from parity_certify.distributions import Distribution
from parity_certify.errors import ParityError
from parity_certify.evidence import make_sample_rows
from parity_certify.joint_tests import compute_log_e
from parity_certify.result_rows import ALPHA
from parity_certify.sampler import check_settings, has_copies
from parity_certify.seeding import LARGEST_SEED

CHANCE = 1e-4  # equal counts that are less likely than this are copies
Line = dict[str, Any]


def read_lines(file: Path) -> Iterator[tuple[int, Line | None]]:
    """Yield number and object of each line of a file of JSON lines that is not empty, or of CSV by its ending; None for
    a line that is no JSON. Raises ParityError if the file cannot be read."""
    try:
        with file.open(encoding="utf-8-sig", newline="") as stream:
            if file.suffix.lower() == ".csv":
                table = csv.DictReader(stream, strict=True)
                for row in table:
                    if None in row or None in row.values():
                        allowed = "as many; tokens are separated by spaces"
                        problem = f"line {table.line_num}: more or fewer fields than the header"
                        raise ParityError(f"samples: {file}: {problem}; allowed: {allowed}")
                    yield table.line_num, row
                return
            for number, text in enumerate(stream, 1):
                try:
                    if text.strip():
                        yield number, json.loads(text)
                except json.JSONDecodeError:
                    yield number, None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ParityError(f"samples: {file}: {error}; allowed: a file of JSON lines or CSV") from None


def read_integer(line: Line, key: str, low: int, high: float, default: int | None) -> int:
    """Read the integer `key` of a line, or `default`, from JSON or text. Raises ParityError if not in low to high."""
    value = line.get(key, default)
    try:
        number = int(value) if isinstance(value, str) else value
    except ValueError:
        number = None
    if type(number) is not int or not low <= number <= high:
        limits = f"{low} to {high}" if high < 2**63 else f"{low} or more"
        raise ParityError(f"{key} {value!r}; allowed: an integer, {limits}")
    return number


def read_codes(line: Line, distribution: Distribution) -> tuple[np.ndarray, list[int] | None, int]:
    """Read the codes of a line's sequences, how often each was drawn (None for a line of a single sequence), and the
    token that fills them up after the end. Raises ParityError for a line with neither tokens nor counts, or with tokens
    that the distribution does not allow."""
    counts = line.get("counts")
    tokens = line.get("tokens")
    weights = None
    if isinstance(tokens, str):  # CSV gives a sequence as text
        counts, tokens = {tokens: 1}, None
    elif counts is not None and isinstance(counts, dict):
        weights = list(counts.values())
    if counts is None and isinstance(tokens, list):
        rows = [tokens]
    elif isinstance(counts, dict) and all(type(c) is int and c >= 0 for c in counts.values()):
        try:
            rows = [[int(token) for token in text.split()] for text in counts]
        except ValueError:
            raise ParityError(f"tokens: {' / '.join(counts)[:80]!r}; allowed: integers, as in 2 1 3") from None
    else:
        raise ParityError('neither tokens nor counts; allowed: "tokens": [2, 1, 3] or "counts": {"2 1 3": 412}')
    checked, padding = check_tokens(rows, len(rows), distribution)
    return checked @ distribution.powers, weights, padding


def log_largest_probability(counts: np.ndarray) -> float:
    """Compute the log-probability of counts [..., C], all samples together, under the distributions that make it
    largest."""
    n = counts.sum(-1, keepdims=True)
    terms = special.xlogy(counts, counts / np.maximum(n, 1)) - special.gammaln(counts + 1)
    return float(terms.sum() + special.gammaln(n + 1).sum())


def is_copy(one: np.ndarray, two: np.ndarray) -> bool:
    """Return whether two samples have equal counts [..., C] that independent ones would hardly share (P <= CHANCE)."""
    return bool((one == two).all()) and log_largest_probability(one) <= np.log(CHANCE)


def check_copies(drawn: dict[int, Drawn], order: dict[int, list[tuple[int, int]]], distribution: Distribution) -> None:
    """Raise ParityError if both seeds hold the same samples, in any order, or a seed its samples twice; `order` has the
    prompt and code of each line of a single sequence, by seed."""
    K = len(distribution.prompts)
    problem = f"seeds {' and '.join(map(str, drawn))} hold the same samples; allowed: independent ones"
    if is_copy(*(sample.counts.reshape(K, -1) for sample in drawn.values())):
        raise ParityError(problem)
    rows = {  # codes [K, n] of the seeds whose file has a line for each sequence
        seed: np.array(sorted(lines, key=lambda line: line[0]))[:, 1].reshape(K, -1)
        for seed, lines in order.items()
        if len(lines) == drawn[seed].n
    }

    def is_repeated(first: np.ndarray, second: np.ndarray, back: int) -> bool:
        """Return whether rows `second` [K, n] repeat rows `first`, by comparison with rows shifted by `back`."""
        n = first.size
        codes = np.concatenate([first.ravel(), second.ravel()])
        prompts = np.tile(np.repeat(np.arange(K), first.shape[1]), 2)
        rows = np.arange(n)
        return has_copies(
            prompts * distribution.joint.shape[1] + codes, prompts, distribution, rows, rows + n, np.roll(rows, back)
        )

    if len(rows) == len(drawn):
        size = min(codes.shape[1] for codes in rows.values())
        one, two = (codes[:, :size] for codes in rows.values())
        if is_repeated(one, two, back=1):
            raise ParityError(problem)
    for seed, codes in rows.items():
        half = codes.shape[1] // 2
        if is_repeated(codes[:, :half], codes[:, -half:], 1) or is_repeated(
            codes[:, : 2 * half : 2], codes[:, 1 : 2 * half : 2], -1
        ):
            raise ParityError(f"seed {seed}: holds its samples twice; allowed: independent ones")


def read_samples(file: Path, distribution: Distribution) -> dict[int, Drawn]:
    """Read what each of two seeds drew, in the order of the file. Raises ParityError that names the line."""
    drawn: dict[int, Drawn] = {}
    order: dict[int, list[tuple[int, int]]] = {}
    large: dict[tuple[int, bytes], int] = {}  # first line of each prompt and counts that do not recur by chance
    empty = np.zeros(0, dtype=np.int64)
    paddings: list[int] = []  # of each line, the token that fills sequences up after the end
    for number, line in read_lines(file):
        try:
            if not isinstance(line, dict):
                raise ParityError("allowed: a JSON object")
            if line.get("format") == "parity-samples":
                old = line.get("law_sha256")  # deprecated
                named = line.get("distribution_sha256", old)
                if (digest := distribution.extra.get("sha256")) and named not in (None, digest):
                    raise ParityError(f"distribution_sha256: of another distribution; allowed: {digest}")
                continue
            seed = read_integer(line, "seed", 0, LARGEST_SEED, None)
            prompt = read_integer(line, "prompt", 0, len(distribution.prompts) - 1, 0)
            sample = drawn.setdefault(seed, Drawn(np.zeros(len(distribution.cells), dtype=np.int64)))
            codes, weights, padding = read_codes(line, distribution)
            paddings.append(padding)
            counts = np.bincount(codes, weights, distribution.joint.shape[1]).astype(np.int64)
            sample.counts.reshape(distribution.joint.shape)[prompt] += counts
            if weights is None:
                order.setdefault(seed, []).append((prompt, int(codes[0])))
            elif is_copy(counts, counts):
                earlier = large.setdefault((prompt, counts.tobytes()), number)
                if earlier != number:
                    raise ParityError(f"the counts of line {earlier}; allowed: independent samples")
            drafted, *counted = (read_integer(line, key, -1, 2**63, -1) for key in COUNTS)
            if drafted >= 0:
                sample.batches.append(Batch(empty, empty, drafted, *counted))
        except ValueError as error:
            raise ParityError(f"samples: line {number}: {str(error).removeprefix('sampler: ')}") from None
    try:
        going_on = sum(padding != NO_PADDING for padding in paddings)
        check_paddings(paddings, distribution.end, f"{going_on} of {len(paddings)} lines")
    except ParityError as error:
        raise ParityError(f"samples: {file}: {str(error).removeprefix('sampler: ')}") from None
    if len(drawn) != 2:
        allowed = "two: a rejection must repeat on the second"
        raise ParityError(f"samples: {file}: seeds {sorted(drawn)}; allowed: {allowed}")
    for seed, sample in drawn.items():
        sizes = sample.counts.reshape(distribution.joint.shape).sum(1)
        if sizes.min() != sizes.max() or not sizes.min():
            allowed = "equally many after each prompt, at least one"
            raise ParityError(f"samples: seed {seed}: {sizes.tolist()} sequences by prompt; allowed: {allowed}")
        drawn[seed] = replace(sample, max_log_e=max(0.0, float(compute_log_e(sample.counts, distribution.cells))))
    try:
        check_copies(drawn, order, distribution)
    except ParityError as error:
        raise ParityError(f"samples: {file}: {error}") from None
    return drawn


def certify_samples(
    file: str | Path,
    distribution: Distribution,
    *,
    margin: float = 0.05,
    alpha: float = ALPHA,
    claim: str = "lossless",
    name: str = "",
) -> Certificate:
    """Certify the samples of a file: test the first seed's, and repeat a rejection on the second's."""
    check_settings(margin=margin, alpha=alpha)
    file = Path(file)
    (seed, first), (second_seed, second) = read_samples(file, distribution).items()
    name = name or file.stem
    samples = [first]
    rows = make_sample_rows(first, distribution, seed, alpha=alpha)
    if any(r["decides"] and r["verdict"] == "rejected" for r in rows):
        rows += [r | {"repeat": 1} for r in make_sample_rows(second, distribution, second_seed, alpha=alpha)]
        samples.append(second)
    rows = [r | {"method": name} for r in rows]
    result = make_certificate(rows, distribution, samples, margin=margin, alpha=alpha, claim=claim, name=name)
    untested = ("independence of rows", "other prompts and longer outputs", *result.warnings)
    return replace(result, verdict=replace(result.verdict, untested=untested))
