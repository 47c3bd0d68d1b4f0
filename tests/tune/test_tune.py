"""`parity tune`: its choice is never slower than plain decoding, is kept, and is made before anything is sampled."""

import sys

import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

import parity.tune.__main__ as command
from parity.decoders.discrete.jacobi import jacobi
from parity.decoders.discrete.sjd import sjd
from parity.experiment import checks, tuned, weights
from parity.experiment.options import claim, methods
from parity.experiment.schema import ModelSpec
from tests.tables import counts, law, p_value, run, table
from tests.workflow.conftest import ROOT

SPEC = ModelSpec(family="llamagen")
SMALL = """
models: {{scenes: {{family: llamagen, grid: 8}}}}
image: {{prompts: {{file: {root}/prompts/scenes.txt, limit: 2}}, methods: {{ar: [{{}}], auto: [{{}}]}}, batch: 2}}
compile: off
"""


def test_every_candidate_is_lossless_and_fits():
    found = list(command.candidates(SPEC))
    assert (found[0].method, found[0].options) == ("ar", {})
    assert all(claim("discrete", v.method, v.options) == "lossless" for v in found)
    assert (
        {v.method for v in found} >= {"sjd", "sjd_coupled", "sjd_sv", "mtj", "eagle", "spec"} <= {*methods("discrete")}
    )
    small = list(command.candidates(ModelSpec(family="llamagen", grid=8)))
    assert not {v.method for v in small} & {"eagle", "spec", "mtj_draft"}  # there is no drafter for it
    assert all(v.options.get("window", 0) <= 64 for v in small)


seconds = st.lists(st.floats(0.01, 100), min_size=2, max_size=2)


@given(st.lists(seconds, min_size=1, max_size=6))
@settings(max_examples=200, deadline=None)
def test_the_choice_is_never_slower_than_plain_decoding_by_its_own_figures(rounds):
    turns = [command.Variant(f"m{i}", {}, seconds=own) for i, own in enumerate(rounds)]
    best, plain = command.choose(turns), turns[0].seconds
    assert (best is None) == (max(plain) > command.JUMP * min(plain))
    if best is not None:
        assert best.times(plain) >= 1 and best.times(plain) == max(v.times(plain) for v in turns)


def tune(monkeypatch, capsys, *flags):
    monkeypatch.setattr(sys, "argv", ["parity tune", "--configfile", "small.yaml", "--budget", "1", *flags])
    command.main()
    return capsys.readouterr()


def test_a_choice_is_measured_once_and_then_read(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.yaml").write_text(SMALL.format(root=ROOT))
    for name, value in {"SIZES": (4,), "WIDTHS": (1, 4), "BEST": 1, "ROUNDS": 2, "PILOT": 1, "JUMP": 1e9}.items():
        monkeypatch.setattr(command, name, value)
    first = tune(monkeypatch, capsys, "--batch", "2").out
    ((key, entry),) = yaml.safe_load((tmp_path / "tuned.yaml").read_text()).items()
    spec = ModelSpec(family="llamagen", grid=8)
    assert key == tuned.key_of("scenes", spec, 2) and weights.revision(spec) in key
    assert entry["times"] >= 1 and {"ar", "sjd_coupled"} <= {row["method"] for row in entry["table"]}
    assert "times plain" in first and entry["method"] in first
    methods = checks.load(yaml.safe_load((tmp_path / "small.yaml").read_text())).image.methods
    assert entry["options"] in methods[entry["method"]]  # `auto`
    assert "auto" not in capsys.readouterr().err

    monkeypatch.setattr(command, "Model", None)  # nothing is measured
    second = tune(monkeypatch, capsys, "--batch", "2").out
    assert second.count("\n") == 1 and entry["method"] in second and "--again" in second
    with pytest.raises(TypeError):  # it would be
        tune(monkeypatch, capsys, "--batch", "2", "--again")
    monkeypatch.setattr(tuned, "version", lambda: "0.0.0")
    with pytest.raises(TypeError):
        tune(monkeypatch, capsys, "--batch", "2")
    assert "another machine or version is ignored" in capsys.readouterr().err


def test_where_timings_jump_nothing_is_written(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    busy = [command.Variant("ar", {}, seconds=[1.0, 1.4]), command.Variant("sjd", {}, seconds=[0.5, 0.5])]
    monkeypatch.setattr(command, "pilots", lambda *_: busy)
    monkeypatch.setattr(command, "measure", lambda *_: busy)
    command.tune(None, "scenes", [1], 0.0, tmp_path / "tuned.yaml")
    assert "too busy to tell; nothing is written" in capsys.readouterr().out
    assert not (tmp_path / "tuned.yaml").exists()


def chosen(best, V, L, n):
    """Tokens of an image, each decoded by the method that `best` picks of (sjd, jacobi), given both results."""
    both = [run(method, table(V, L), L, n, window=3) for method in (sjd, jacobi)]
    which = best(both)
    return torch.where(which[:, None], both[1].tokens, both[0].tokens)


def test_a_choice_by_the_noise_of_the_image_itself_changes_the_law_and_a_fixed_one_does_not():
    V, L, n = 3, 5, 20_000
    exact = law(table(V, L), V, L)
    fixed = chosen(lambda both: torch.zeros(n, dtype=torch.bool), V, L, n)
    assert p_value(counts(fixed, V), exact) > 1e-4
    faster = chosen(lambda both: both[1].nfe < both[0].nfe, V, L, n)
    assert p_value(counts(faster, V), exact) < 1e-8
