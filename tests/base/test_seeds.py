"""A seed is a whole number from 0 to 2**63 - 1: functions and commands refuse others in one line before work."""

from types import SimpleNamespace

import numpy as np
import pytest

from parity.base.errors import ParityError
from parity.certify import certify
from parity.generate import Generator
from parity.generate import __main__ as generate_command
from parity.train import __main__ as train_command
from parity.verify import __main__ as verify_command
from parity.verify import verify

UNLOADED = SimpleNamespace()  # a generator that nothing may be asked of
FUNCTIONS = {
    "generate": lambda seed: Generator.generate(Generator.__new__(Generator), ["a"], seed=seed),
    "verify": lambda seed: verify(UNLOADED, ["a"], "sjd", seed=seed),
    "certify": lambda seed: certify(None, seeds=(0, seed)),
}
COMMANDS = {
    "generate": (generate_command, ["a red circle"]),
    "verify": (verify_command, ["a red circle"]),
    "train": (train_command, ["heads"]),
}
ALLOWED = r"allowed: a whole number from 0 to 2\*\*63 - 1$"


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("seed", [-1, 2**63, 2**64, np.int64(-1), True, 1.5, 1.0, "1", None], ids=repr)
def test_what_is_no_seed_is_refused_by_every_function(name, seed):
    with pytest.raises(ParityError, match=f"seeds? .*: {ALLOWED}"):
        FUNCTIONS[name](seed)


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("seed", [-1, 2**63, 2**64])
def test_what_is_no_seed_is_refused_by_every_command(name, seed, run_main, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # which has no configuration: the seed is looked at first
    command, words = COMMANDS[name]
    with pytest.raises(ParityError, match=f"--seed {seed}: {ALLOWED}"):
        run_main(command.main, *words, "--seed", str(seed))
