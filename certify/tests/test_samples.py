"""Samples drawn elsewhere: JSON lines, counts and CSV give the same verdict; what is no sample names its line."""

import json

import numpy as np
import pytest

from parity_certify import certify_samples
from parity_certify.distributions import Distribution, random_distribution
from parity_certify.errors import ParityError
from parity_certify.joint_tests import digits
from parity_certify.samples import read_samples

DISTRIBUTION, WRONG = random_distribution(3, 2, seed=1), random_distribution(3, 2, seed=2)
CELLS = digits(3, 2)


def draw_codes(distribution, n=3000):
    """Draw n codes of sequences, 0 to 8, from a distribution, for each of the seeds 4 and 5."""
    return {seed: np.random.default_rng(seed).choice(9, p=distribution.joint[0], size=n) for seed in (4, 5)}


def make_lines(distribution):
    """Make a dictionary of seed and tokens for each code that `draw_codes` draws."""
    return [{"seed": s, "tokens": CELLS[c].tolist()} for s, codes in draw_codes(distribution).items() for c in codes]


def write_lines(file, objects):
    """Write objects to a file, a line of JSON each; return it."""
    file.write_text("".join(json.dumps(o) + "\n" for o in objects))
    return file


@pytest.mark.parametrize(("distribution", "kind"), [(DISTRIBUTION, "certified"), (WRONG, "lossy")])
def test_all_formats_give_the_same_verdict(tmp_path, distribution, kind):
    objects = make_lines(distribution)
    counted = [{"format": "parity-samples", "seeds": [4, 5], "engine": "x 1.2"}]
    for seed, codes in draw_codes(distribution).items():
        counts = {" ".join(map(str, CELLS[c])): int((codes == c).sum()) for c in range(9)}
        counted.append({"seed": seed, "prompt": 0, "counts": counts})
    table = "seed,tokens\n" + "".join(f"{o['seed']},{' '.join(map(str, o['tokens']))}\n" for o in objects)
    (tmp_path / "s.csv").write_text(table)
    (tmp_path / "marked.csv").write_text("\ufeff" + table)  # as Excel writes it
    (tmp_path / "marked.jsonl").write_text("\ufeff" + "".join(json.dumps(o) + "\n" for o in objects))
    files = [
        write_lines(tmp_path / "s.jsonl", objects),
        tmp_path / "marked.csv",
        tmp_path / "marked.jsonl",
        write_lines(tmp_path / "counts.jsonl", counted),
        tmp_path / "s.csv",
    ]
    certificates = [certify_samples(file, DISTRIBUTION, margin=0.1, name="s") for file in files]
    assert certificates[0].verdict.kind == kind, str(certificates[0])
    assert all(certificate.verdict == certificates[0].verdict for certificate in certificates)


@pytest.mark.parametrize(
    ("objects", "message"),
    [
        ([{"seed": 0, "tokens": [0, 1]}], r"seeds \[0\]; allowed: two"),
        ([{"seed": 0, "tokens": [0, 3]}], "line 1: row 0, position 1: token 3; allowed: 0 to 2"),
        ([{"seed": "a", "tokens": [0, 1]}], "line 1: seed 'a'; allowed: an integer, 0 to 9223372036854775807"),
        ([{"seed": 0}], "line 1: neither tokens nor counts"),
        ([{"seed": 0, "counts": {"a b": 1}}], "line 1: tokens: 'a b'; allowed: integers"),
        ([{"seed": 0, "prompt": 1, "tokens": [0, 1]}], "line 1: prompt 1; allowed: an integer, 0 to 0"),
    ],
)
def test_what_is_no_sample_is_one_line(tmp_path, objects, message):
    with pytest.raises(ParityError, match=message) as caught:
        certify_samples(write_lines(tmp_path / "s.jsonl", objects), DISTRIBUTION)
    assert "\n" not in str(caught.value)


def test_a_missing_file_and_a_wrong_cell_are_one_line(tmp_path):
    with pytest.raises(ParityError, match="allowed: a file of JSON lines or CSV"):
        certify_samples(tmp_path / "none.jsonl", DISTRIBUTION)
    (tmp_path / "s.csv").write_text("seed,tokens\n0,0 x\n")
    with pytest.raises(ParityError, match="line 2: tokens: '0 x'; allowed: integers"):
        certify_samples(tmp_path / "s.csv", DISTRIBUTION)
    for row in ("0,0 1,2", "0"):
        (tmp_path / "s.csv").write_text(f"seed,tokens\n0,0 1\n{row}\n")
        with pytest.raises(ParityError, match="line 3: more or fewer fields than the header"):
            certify_samples(tmp_path / "s.csv", DISTRIBUTION)


BOTH, TWICE = "seeds 4 and 5 hold the same samples", "seed 4: holds its samples twice"
COPIES = {
    "the second seed is the first": (BOTH, lambda a, copy, b: a + copy),
    "in another order": (
        BOTH,
        lambda a, copy, b: a + [copy[i] for i in np.random.default_rng(0).permutation(3000)],
    ),
    "a third of it": (BOTH, lambda a, copy, b: a + copy[:1000] + b[1000:]),
    "and longer": (BOTH, lambda a, copy, b: a + copy + b[:500]),
    "sorted": (BOTH, lambda a, copy, b: sorted(a + copy, key=lambda o: (o["seed"], o["tokens"]))),
    "a seed is in the file twice": (TWICE, lambda a, copy, b: a + a + b),
    "each line is twice": (TWICE, lambda a, copy, b: [o for one in a for o in (one, one)] + b),
}


@pytest.mark.parametrize("kind", COPIES)
@pytest.mark.parametrize("distribution", [DISTRIBUTION, WRONG])
def test_samples_that_are_copies_are_refused(tmp_path, distribution, kind):
    message, make = COPIES[kind]
    first, second = make_lines(distribution)[:3000], make_lines(distribution)[3000:]
    with pytest.raises(ParityError, match=message):
        certify_samples(
            write_lines(tmp_path / "s.jsonl", make(first, [o | {"seed": 5} for o in first], second)), DISTRIBUTION
        )


@pytest.mark.parametrize("seeds", [(4, 5), (4, 4, 5)])
def test_counts_that_are_copies_are_refused(tmp_path, seeds):
    counts = {" ".join(map(str, CELLS[c])): int((draw_codes(DISTRIBUTION)[4] == c).sum()) for c in range(9)}
    with pytest.raises(ParityError, match="line 2: the counts of line 1; allowed: independent samples"):
        certify_samples(write_lines(tmp_path / "s.jsonl", [{"seed": s, "counts": counts} for s in seeds]), DISTRIBUTION)


@pytest.mark.parametrize("order", ["as drawn", "sorted", "always the likeliest"])
def test_30_files_of_independent_samples_are_read(tmp_path, order):
    two = Distribution("two", np.array([[0], [1]]), np.concatenate([DISTRIBUTION.tables, WRONG.tables]), 2)
    for seed in range(30):
        rng, objects = np.random.default_rng(seed), []
        for s, prompt in ((4, 0), (4, 1), (5, 0), (5, 1)):
            codes = rng.choice(9, p=two.joint[prompt], size=100)
            if order == "always the likeliest":
                codes[:] = two.joint[prompt].argmax()
            objects += [{"seed": s, "prompt": prompt, "tokens": CELLS[c].tolist()} for c in codes]
        if order == "sorted":
            objects.sort(key=lambda o: (o["seed"], o["tokens"]))
        assert [d.n for d in read_samples(write_lines(tmp_path / "s.jsonl", objects), two).values()] == [200, 200]
