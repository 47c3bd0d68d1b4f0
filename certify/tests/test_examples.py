"""Examples that are copied: unit tests of verifiers pass for correct ones and find faults; CI files are commands."""

import functools
import importlib.util
import re
import shlex
from pathlib import Path

import pytest

from parity_certify import certify_verifier
from parity_certify.__main__ import make_parser

ROOT = Path(__file__).parents[1]
torch = pytest.importorskip("torch")


def load(name):
    """Import an example of a verifier."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", ROOT / f"examples/verifiers/test_{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["rejection_sample", "rejection_sample_by_blocks"])
@pytest.mark.parametrize(("certain", "problem"), [(False, "sparse"), (True, "point")])
def test_the_example_for_vllm_passes(name, certain, problem):
    example = load("vllm")
    example.test_the_rejection_sampler_is_lossless(getattr(example, name), certain, (problem,))


def test_the_example_for_sglang_passes():
    load("sglang").test_the_tree_verifier_is_lossless()


def read_next_row(sample, tokens, counts, most, ends, q, p, bonus, metadata):
    """Verify each draft by the target's probabilities of the next one: a row that is off by one."""
    return sample(tokens, counts, most, ends, q, p.roll(-1, 0), bonus, metadata)


def pass_bonus_of_another_request(sample, tokens, counts, most, ends, q, p, bonus, metadata):
    """Give each request the bonus token of the one before."""
    return sample(tokens, counts, most, ends, q, p, bonus.roll(1, 0), metadata)


@pytest.mark.parametrize("name", ["rejection_sample", "rejection_sample_by_blocks"])
@pytest.mark.parametrize("fault", [read_next_row, pass_bonus_of_another_request])
def test_faults_around_vllms_sampler_are_found(name, fault):
    example = load("vllm")
    verify = example.adapt(functools.partial(fault, getattr(example, name)))
    settings = {"vocab": 3, "drafts": 2, "problems": ("soft",), "margin": 0.1, "alpha": 1e-4}
    assert certify_verifier(verify, shape="batch", **settings).verdict.kind == "lossy"


def test_a_threshold_of_sglangs_sampler_is_found():
    """Which accepts more than is lossless."""
    example = load("sglang")

    def sample(**arguments):
        return example.tree_speculative_sampling_target_only(**arguments | {"threshold_acc": 0.7})

    settings = {"vocab": 3, "drafts": 2, "problems": ("soft",), "margin": 0.1, "alpha": 1e-4}
    assert certify_verifier(example.adapt(sample), shape="tree", **settings).verdict.kind == "lossy"


FILES = sorted((ROOT / "ci").glob("*.yml"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_commands_of_a_ci_file_are_read(file):
    """It says when it was last run, keeps the report whatever happens, and has a limit of time in every command."""
    text = file.read_text(encoding="utf-8")
    assert re.search(r"^# Last run: (never|2\d{3}-\d\d-\d\d)", text, re.M) and "if: always()" in text
    lines = re.sub(r" \\\n|\n +(?=--)", " ", text).splitlines()
    commands = [line.partition("parity-certify ")[2] for line in lines if re.search(r"parity-certify [a-z]", line)]
    parsed = [make_parser().parse_args(shlex.split(one.partition(" -- ")[0])) for one in commands]
    judging = [a for a in parsed if a.way != "models"]
    assert judging and all(a.budget and a.out and a.alpha <= 1e-3 for a in judging)
    assert len({a.out for a in judging}) == len(judging)
