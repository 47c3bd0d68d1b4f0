"""Samples drawn elsewhere: JSON lines, counts and CSV give the same verdict; what is no sample names its line."""

import json

import numpy as np
import pytest

from parity_certify import certify_samples
from parity_certify.errors import ParityError
from parity_certify.joint_tests import digits
from parity_certify.laws import random_law

LAW, WRONG = random_law(3, 2, seed=1), random_law(3, 2, seed=2)
CELLS = digits(3, 2)


def drawn(law, n=3000):
    """Codes by seed."""
    return {seed: np.random.default_rng(seed).choice(9, p=law.joint[0], size=n) for seed in (4, 5)}


def lines(law):
    return [{"seed": s, "tokens": CELLS[c].tolist()} for s, codes in drawn(law).items() for c in codes]


def write(file, objects):
    file.write_text("".join(json.dumps(o) + "\n" for o in objects))
    return file


@pytest.mark.parametrize(("law", "kind"), [(LAW, "certified"), (WRONG, "lossy")])
def test_all_formats_give_the_same_verdict(tmp_path, law, kind):
    own = lines(law)
    counted = [{"format": "parity-samples", "seeds": [4, 5], "engine": "x 1.2"}]
    for seed, codes in drawn(law).items():
        counts = {" ".join(map(str, CELLS[c])): int((codes == c).sum()) for c in range(9)}
        counted.append({"seed": seed, "prompt": 0, "counts": counts})
    table = "seed,tokens\n" + "".join(f"{o['seed']},{' '.join(map(str, o['tokens']))}\n" for o in own)
    (tmp_path / "s.csv").write_text(table)
    files = [write(tmp_path / "s.jsonl", own), write(tmp_path / "counts.jsonl", counted), tmp_path / "s.csv"]
    found = [certify_samples(file, LAW, margin=0.1, name="s") for file in files]
    assert found[0].verdict.kind == kind, str(found[0])
    assert found[0].verdict == found[1].verdict == found[2].verdict


@pytest.mark.parametrize(
    ("objects", "message"),
    [
        ([{"seed": 0, "tokens": [0, 1]}], r"seeds \[0\]; allowed: two"),
        ([{"seed": 0, "tokens": [0, 3]}], "line 1: row 0, position 1: token 3; allowed: 0 to 2"),
        ([{"seed": "a", "tokens": [0, 1]}], "line 1: seed 'a'; allowed: an integer, 0 or more"),
        ([{"seed": 0}], "line 1: neither tokens nor counts"),
        ([{"seed": 0, "counts": {"a b": 1}}], "line 1: tokens: 'a b'; allowed: integers"),
        ([{"seed": 0, "prompt": 1, "tokens": [0, 1]}], "line 1: prompt 1; allowed: an integer, 0 to 0"),
    ],
)
def test_what_is_no_sample_is_one_line(tmp_path, objects, message):
    with pytest.raises(ParityError, match=message) as caught:
        certify_samples(write(tmp_path / "s.jsonl", objects), LAW)
    assert "\n" not in str(caught.value)


def test_a_missing_file_and_a_wrong_cell_are_one_line(tmp_path):
    with pytest.raises(ParityError, match="allowed: a file of JSON lines or CSV"):
        certify_samples(tmp_path / "none.jsonl", LAW)
    (tmp_path / "s.csv").write_text("seed,tokens\n0,0 x\n")
    with pytest.raises(ParityError, match="line 2: tokens: '0 x'; allowed: integers"):
        certify_samples(tmp_path / "s.csv", LAW)
