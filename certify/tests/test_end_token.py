"""A sampler that goes on after the end token is refused in every way to certify; one that pads by one token is not."""

import json
import sys

import numpy as np
import pytest

from parity_certify import certify_command, certify_sampler, certify_samples, target_distribution
from parity_certify.errors import ParityError

T = np.array([[0.5, 0.3, 0.2], [0.2, 0.2, 0.6], [0.1, 0.8, 0.1]])
LENGTH, END = 4, 2
TARGET = target_distribution(lambda prefixes: T[prefixes[:, -1]], vocab=3, length=LENGTH, prompts=[[0]], end=END)
QUIET = {"tell": lambda text: None}


def draw(n, seed, fill):
    """Draw n correct rows; fill(rng, row, position) gives the tokens after the end, None no more tokens."""
    rng, rows = np.random.default_rng(seed), []
    for i in range(n):
        row = [0]
        while len(row) <= LENGTH:
            token = int(rng.choice(3, p=T[row[-1]])) if END not in row[1:] else fill(rng, i, len(row) - 1)
            if token is None:
                break
            row.append(token)
        rows.append(row[1:])
    return rows


PADDED = {  # what may follow the end token
    "nothing": lambda rng, row, position: None,
    "the end token": lambda rng, row, position: END,
    "a pad token": lambda rng, row, position: 0,
    "-1": lambda rng, row, position: -1,
}
OVERRUN = {  # what may not
    "at random": lambda rng, row, position: int(rng.integers(2)),
    "the end token or another": lambda rng, row, position: int(rng.choice([0, END])),
    "by the row": lambda rng, row, position: row % 2,
    "by the position": lambda rng, row, position: position % 2,
    "in one row of 20": lambda rng, row, position: 1 if row % 20 == 0 else END,
    "a token outside the vocabulary": lambda rng, row, position: 7,
    "below -1": lambda rng, row, position: -2,
}


def certify_sampler_of(fill, **settings):
    """Certify the rows as those of a Python function."""
    return certify_sampler(
        lambda prompts, seed: draw(len(prompts), seed, fill), TARGET, margin=0.1, **QUIET, **settings
    )


def certify_file_of(fill, folder, count=False):
    """Certify the rows as samples of a file: a line each, or the counts of each seed in a line."""
    lines = []
    for seed in (0, 1):
        rows = draw(1500, seed, fill)
        counts = {}
        for row in rows:
            counts[" ".join(map(str, row))] = counts.get(" ".join(map(str, row)), 0) + 1
        lines += [{"seed": seed, "counts": counts}] if count else [{"seed": seed, "tokens": row} for row in rows]
    file = folder / "samples.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    return certify_samples(file, TARGET, margin=0.1)


def certify_command_of(fill, folder):
    """Certify the rows as those of an engine over stdin and stdout, which answers from a list."""
    rows = draw(4000, 0, fill)
    (folder / "engine.py").write_text(f"""
import json, sys
rows, first = {rows!r}, 0
for line in sys.stdin:
    request = json.loads(line)
    n = len(request["prompts"])
    print(json.dumps({{"id": request["id"], "tokens": rows[first : first + n]}}), flush=True)
    first += n
""")
    command = [sys.executable, str(folder / "engine.py")]
    return certify_command(command, TARGET, margin=0.1, n=2000, vary=False, **QUIET)


WAYS = {
    "sampler": lambda fill, folder: certify_sampler_of(fill),
    "one row a call": lambda fill, folder: certify_sampler_of(fill, batch=1, n=300),
    "kept in a folder": lambda fill, folder: certify_sampler_of(fill, folder=folder / "kept"),
    "samples": certify_file_of,
    "counts": lambda fill, folder: certify_file_of(fill, folder, count=True),
    "command": certify_command_of,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("fill", PADDED)
def test_padding_is_no_fault(tmp_path, way, fill):
    assert WAYS[way](PADDED[fill], tmp_path).exit_code == 0 or way == "one row a call"


# one row a call always has the number 0
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("fill", OVERRUN)
def test_going_on_after_the_end_is_refused(tmp_path, way, fill):
    if way == "one row a call" and "row" in fill:
        pytest.skip("each row is the first of its call")
    with pytest.raises(ParityError, match="go on after the end token 2, with token") as error:
        WAYS[way](OVERRUN[fill], tmp_path)
    assert "allowed: nothing after it, or" in str(error.value) and "\n" not in str(error.value)


def test_the_rows_that_go_on_are_counted():
    with pytest.raises(ParityError, match=r"sampler: 2 of 3 sequences go on after the end token 2, with tokens 0, 1;"):
        rows = [[0, 2, 0, 0], [1, 1, 1, 1], [2, 1]]
        certify_sampler(lambda prompts, seed: rows, TARGET, batch=3, vary=False, n=3, **QUIET)
