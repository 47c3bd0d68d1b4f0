"""What recipes declare of their runs: read without torch, whole, and true of their modules."""

import pytest

from parity.base.errors import ConfigError
from parity.experiment import module_metadata as read
from parity.training.runs import declared, runs

WHOLE = {
    "RUN": {"toy": (10, 4)},
    "KIND": "discrete",
    "DATA": "scenes",
    "EXAMPLES": 5,
    "CARDS": {"toy": "A toy."},
}


def test_a_recipe_reads_recipes_that_come_before_it():
    for run in runs().values():
        before, waiting = set(), list(run.reads)
        while waiting:
            name = waiting.pop()
            before.add(name)
            waiting += runs()[name].reads
        assert run.name not in before
        assert min(run.steps, run.batch, run.examples, run.threads) >= 1


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module of a package with nothing else in it, written from its literals."""
    (tmp_path / "training").mkdir()
    monkeypatch.setattr(read, "PACKAGE", tmp_path)
    read.outline.cache_clear()

    def write(said, function="def recipe(job): ..."):
        lines = [f"{key} = {value!r}" for key, value in said.items()]
        (tmp_path / "training/toy.py").write_text("\n".join([*lines, function]))
        read.outline.cache_clear()
        return declared("toy")

    yield write
    read.outline.cache_clear()


@pytest.mark.parametrize(
    "changed, said",
    [
        ({"EXAMPLES": None}, "declares no EXAMPLES"),
        ({"CARDS": {}}, "CARDS: has no toy, which RUN names"),
        ({"KIND": "image"}, "KIND = 'image'; allowed: discrete, anysubset, continuous"),
    ],
)
def test_a_module_that_declares_too_little_is_one_line_that_names_it(module, changed, said):
    given = {k: v for k, v in (WHOLE | changed).items() if v is not None}
    with pytest.raises(ConfigError, match=r"src/parity/training/toy\.py: ") as error:
        module(given)
    assert said in str(error.value) and "\n" not in str(error.value)
