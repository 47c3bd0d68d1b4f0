"""A seed is a whole number from 0 to 2**63 - 1 in every function and command; what is none is refused before work."""

import numpy as np
import pytest

from parity_certify import __main__ as command
from parity_certify import certify_sampler, certify_speculation, certify_verifier, write_distribution
from parity_certify.distributions import random_distribution
from parity_certify.errors import ParityError
from parity_certify.plugin import certify
from parity_certify.seeding import check_seed, pair_seeds

ALLOWED = r"allowed: a whole number from 0 to 2\*\*63 - 1"
SEEDS = [0, 1, 2**31, 2**63 - 1, np.int8(3), np.int64(3), np.uint64(2**63 - 1)]
NO_SEEDS = [-1, -(2**63), 2**63, 2**64, np.int64(-1), True, np.bool_(True), 1.0, float("nan"), "1", None, [1]]


def refuse(*arguments, **options):
    """Stand for a function that must not be called."""
    raise AssertionError("called before the seed was checked")


TAKES_SEED = {
    "random_distribution": lambda seed: random_distribution(2, 2, seed),
    "certify_sampler": lambda seed: certify_sampler(refuse, random_distribution(2, 2), seeds=(seed, 1)),
    "certify_sampler, second": lambda seed: certify_sampler(refuse, random_distribution(2, 2), seeds=(1, seed)),
    "certify_verifier": lambda seed: certify_verifier(refuse, seeds=(seed, 1)),
    "certify_speculation": lambda seed: certify_speculation(refuse, seeds=(seed, 1)),
    "plugin": lambda seed: certify(refuse, random_distribution(2, 2), None, seed=seed),
}


@pytest.mark.parametrize("seed", SEEDS)
def test_whole_numbers_from_0_are_seeds(seed):
    first, second = pair_seeds(seed)
    assert type(check_seed(seed)) is int and check_seed(seed) == seed == first
    assert second != first and check_seed(second) == second
    assert (random_distribution(2, 2, seed).tables == random_distribution(2, 2, int(seed)).tables).all()


@pytest.mark.parametrize("name", TAKES_SEED)
@pytest.mark.parametrize("seed", NO_SEEDS, ids=repr)
def test_what_is_no_seed_is_refused_by_every_function(name, seed):
    with pytest.raises(ParityError, match=f"seeds? .*: {ALLOWED}$"):
        TAKES_SEED[name](seed)


@pytest.mark.parametrize("seed", [-1, 2**63, 2**64])
@pytest.mark.parametrize(
    "words",
    [
        ["distribution", "--out", "new.json"],
        ["samples", "none.jsonl", "--distribution", "target.json"],
        ["command", "--distribution", "target.json"],
        ["verifier", "none.py:verify"],
        ["sampler", "none.py:sample", "--distribution", "none.py:probs"],
        ["texts", "--texts", "none.jsonl"],
        ["models", "--out", "m"],
        ["transformers"],
        ["server", "--url", "http://127.0.0.1:9", "--target", "m"],
    ],
    ids=lambda words: words[0],
)
def test_what_is_no_seed_is_refused_by_every_command(tmp_path, monkeypatch, capsys, words, seed):
    monkeypatch.chdir(tmp_path)
    write_distribution(random_distribution(2, 2), "target.json")
    monkeypatch.setattr("sys.argv", ["parity-certify", *words, "--seed", str(seed)])
    with pytest.raises(SystemExit) as end:
        command.main()
    allowed = "allowed: a whole number from 0 to 2**63 - 1"
    assert end.value.code == 3 and capsys.readouterr().err == f"error: --seed {seed}: {allowed}\n"
    assert [file.name for file in tmp_path.iterdir()] == ["target.json"]
