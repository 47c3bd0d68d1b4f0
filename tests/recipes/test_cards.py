"""What is installed: weights, a card each, and their digests; all of a kind, or nothing."""

import hashlib

import pytest

from parity.base.errors import ParityError
from parity.base.files import sums, write_json
from recipes.runs import install, list_runs

RECORD = {"log": [{"step": 50, "loss": 0.5}, {"held_out": 0.25}], "threads": 1, "steps": 1200, "batch": 32}


@pytest.fixture
def work(tmp_path):
    """A folder with weights and records of all discrete recipes, as after training; the weights are their names."""
    for run in list_runs("discrete"):
        (tmp_path / f"{run.name}.safetensors").write_bytes(run.name.encode())
        write_json(tmp_path / f"{run.name}.json", RECORD | {"examples": run.examples, "seed": 7})
    return tmp_path


def test_weights_are_installed_with_their_cards_and_digests(work):
    out = work / "package"
    install("discrete", work, out)
    digests = sums(out)
    assert set(digests) == {f"{run.weights_name}.safetensors" for run in list_runs("discrete")}
    for name, digest in digests.items():
        assert hashlib.sha256((out / name).read_bytes()).hexdigest() == digest
    assert (out / "t5.safetensors").read_bytes() == b"text"
    assert "text.safetensors" not in digests
    card = (out / "t5.md").read_text()
    for text in ("# t5\n", "taught to describe captions", "- data: Scenes, 20,000 procedural pictures", "seed 7"):
        assert text in card
    assert "- steps: 1,200 of batch 32" in card
    assert "- held_out: 0.25" in card
    assert "| 0.5 | 50 |" in card


def test_nothing_is_installed_if_a_recipe_has_not_run(work):
    (work / "drafter.json").unlink()
    with pytest.raises(ParityError, match=r"drafter\.json: no such file; run recipe drafter first"):
        install("discrete", work, work / "package")
    assert not (work / "package").exists()
