"""The nights of a job judged together: a correct engine is hardly ever rejected, and a small fault is found."""

import itertools
import json
import math
import re
import subprocess
import sys

import numpy as np
import pytest
from scipy import stats

from parity_certify import target_distribution
from parity_certify.errors import ParityError
from parity_certify.history import History

ALPHA = 0.2
P = np.array([[0.5, 0.3, 0.2], [0.2, 0.2, 0.6], [0.1, 0.8, 0.1]])
DISTRIBUTIONS = [
    target_distribution(lambda x, k=k: P[(x[:, -1] + k) % 3], vocab=3, length=2, name=f"{k}") for k in range(2)
]


def begin(file, distributions=DISTRIBUTIONS):
    """A history without nights, of these distributions."""
    history = History(file)
    history.check(distributions)
    return history


def draw_night(rng, n=100, share=0.0):
    """Draw the counts of a night; `share` of the second condition's sequences are the first one."""
    counts = {one.name: rng.multinomial(n, one.cells) for one in DISTRIBUTIONS}
    p = DISTRIBUTIONS[1].cells * (1 - share)
    p[0] += share
    return counts | {"1": rng.multinomial(n, p)}


def test_the_levels_of_all_nights_sum_to_half_and_their_seeds_differ(tmp_path):
    history, rng = begin(tmp_path / "h"), np.random.default_rng(0)
    levels, seeds = [], []
    for _ in range(50):
        levels.append(history.level(ALPHA))
        seeds += history.seeds(7)
        history.add(draw_night(rng))
    assert sum(levels) == pytest.approx(ALPHA / 2 * (1 - 1 / 51)) and seeds[0] == 7
    assert len(set(seeds)) == 100


def test_the_evidence_has_mean_one(tmp_path):
    """Over all that two nights can draw, by the distributions themselves; by others it is more."""
    distributions = [
        target_distribution(lambda x, p=p: np.tile([p, 1 - p], (len(x), 1)), vocab=2, length=1, name=f"{p}")
        for p in (0.5, 0.3)
    ]
    mean = {0.0: 0.0, 0.2: 0.0}
    for drawn in itertools.product(range(4), repeat=4):  # of three tokens, how many are the first: night, condition
        history = begin(tmp_path / "h", distributions)
        for night in (drawn[:2], drawn[2:]):
            history.add({one.name: np.array([k, 3 - k]) for one, k in zip(distributions, night, strict=True)})
        for more in mean:
            of_conditions = [
                stats.binom.pmf(drawn[i::2], 3, one.cells[0] + more).prod() for i, one in enumerate(distributions)
            ]
            mean[more] += math.exp(history.measure().log_e) * math.prod(of_conditions)
    assert mean[0.0] == pytest.approx(1, abs=1e-9) and mean[0.2] > 1.0001


def test_correct_engines_are_hardly_ever_rejected(tmp_path):
    """In any of their nights; most faulty ones are."""
    rng, rejected = np.random.default_rng(1), {0.0: 0, 0.1: 0}
    for share in rejected:
        for _ in range(80):
            history, largest = begin(tmp_path / "h"), -math.inf
            for _ in range(12):
                history.add(draw_night(rng, share=share))
                largest = max(largest, history.measure().log_e)
            rejected[share] += largest >= math.log(2 / ALPHA)
    assert rejected[0.0] <= stats.binom.ppf(0.999, 80, ALPHA / 2) and rejected[0.1] > 60, rejected


def test_a_fault_that_begins_late_is_found_and_dated(tmp_path):
    """Though no night rejects alone."""
    history, rng, found = begin(tmp_path / "h"), np.random.default_rng(2), 0
    for night in range(1, 80):
        history.add(draw_night(rng, n=300, share=0.05 * (night > 60)))
        if (evidence := history.measure()).log_e > math.log(2 / 0.01):
            found = night
            break
    assert 62 <= found < 80 and abs(evidence.since - 61) <= 2 and evidence.condition == "1"
    alone = begin(tmp_path / "h")
    alone.add({name: counts[-1] for name, counts in history.counts.items()})
    assert alone.measure().log_e < math.log(2 / 0.01)


def test_a_file_is_read_as_it_was_written(tmp_path):
    history, rng = begin(tmp_path / "h"), np.random.default_rng(3)
    history.write()
    assert not history.file.exists()
    for _ in range(3):
        history.add(draw_night(rng))
    history.write()
    again = History.read(history.file)
    assert again.nights == 3 and again.measure() == history.measure()
    again.check(DISTRIBUTIONS)


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (0, "{}"),
        (0, '{"format": "other", "conditions": {}}'),
        (1, "no JSON"),
        (1, '{"counts": {"0": [1, 2]}}'),
        (2, '{"counts": {"0": [0, 0, 0, 0, 0, 0, 0, 0, -1], "1": [0, 0, 0, 0, 0, 0, 0, 0, 1]}}'),
    ],
)
def test_a_damaged_file_is_refused_by_its_line(tmp_path, line, text):
    history, rng = begin(tmp_path / "h"), np.random.default_rng(4)
    for _ in range(2):
        history.add(draw_night(rng))
    history.write()
    lines = history.file.read_text().splitlines()
    lines[line] = text
    history.file.write_text("\n".join(lines))
    with pytest.raises(ParityError, match=rf"line {line + 1}: damaged; allowed: a file that --history wrote"):
        History.read(history.file)


def test_nights_of_something_else_are_refused(tmp_path):
    """Other conditions, another target, and the samples of a night again; not a target that was rounded otherwise."""
    history, night = begin(tmp_path / "h"), draw_night(np.random.default_rng(5))
    history.add(night)
    with pytest.raises(ParityError, match="1: not as in the nights before; allowed: the same conditions and target"):
        history.check(DISTRIBUTIONS[:1])
    rotated = target_distribution(lambda x: P[(x[:, -1] + 2) % 3], vocab=3, length=2, name="1")
    with pytest.raises(ParityError, match="1: not as in the nights before"):
        history.check([DISTRIBUTIONS[0], rotated])
    rounded = target_distribution(lambda x: P.astype(np.float32)[x[:, -1]], vocab=3, length=2, name="0")
    history.check([rounded, DISTRIBUTIONS[1]])
    with pytest.raises(ParityError, match="0: tonight's samples are those of night 1; allowed: independent ones"):
        history.add(night)


SAMPLER = """
import numpy as np
P, SHARE = np.array([0.5, 0.3, 0.2]), 0.0
def probs(prefixes): return np.tile(P, (len(prefixes), 1))
def sample(prompts, seed):
    p = P * (1 - SHARE) + np.array([SHARE, 0, 0])
    return np.random.default_rng(seed).choice(3, p=p, size=(len(prompts), 2))
"""


def test_the_command_keeps_its_nights(tmp_path):
    """A small fault is lossy after a few nights and a gross one at once, which is not added."""

    def run_night(share):
        """Certify the sampler with this share of a fault; return the exit code, its line, and the nights kept."""
        (tmp_path / "own.py").write_text(SAMPLER.replace(", 0.0", f", {share}"))
        words = [
            "sampler",
            "own.py:sample",
            "--distribution",
            "own.py:probs",
            "--vocab",
            "3",
            "--length",
            "2",
            "--margin",
            "0.1",
        ]
        words += ["--prompts", "[[0]]", "--false-alarm", "0.01", "--history", "nights.jsonl", "--out", f"out{share}"]
        run = subprocess.run(
            [sys.executable, "-B", "-m", "parity_certify", *words], cwd=tmp_path, capture_output=True, text=True
        )  # -B: a compiled own.py of the same second and size would be taken for this one
        file = tmp_path / "nights.jsonl"
        return (
            run.returncode,
            run.stderr.splitlines()[-1],
            len(file.read_text().splitlines()) - 1 if file.exists() else 0,
        )

    assert run_night(0.5)[::2] == (1, 0)  # no night is good, so there is no file
    for night in (1, 2):
        code, line, kept = run_night(0.0)
        assert (code, kept) == (0, night) and line.startswith("passed: certified lossless")
    codes = []
    while 1 not in codes and len(codes) < 8:
        code, line, kept = run_night(0.06)
        codes.append(code)
    assert codes[-1] == 1 and len(codes) > 1 and kept == 2 + len(codes), (codes, line)
    assert re.search("rejected by nights [123] to", line) and "begin another file than nights.jsonl" in line
    saved = json.loads((tmp_path / "out0.06/certificate.json").read_text())
    assert saved["beside"]["history"]["nights"] == kept and saved["verdict"]["kind"] == "lossy"
