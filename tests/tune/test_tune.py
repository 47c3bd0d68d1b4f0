"""`parity tune`: its choice is never slower than plain decoding, is stored, and is made before anything is sampled."""

import sys
import time
from types import SimpleNamespace

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

import parity.tune.__main__ as command
from parity.base.errors import ParityError
from parity.experiment import checks, tuned, weights
from parity.experiment.options import claim, methods
from parity.experiment.schema import ModelSpec
from parity.tune import bench
from parity.tune.__main__ import list_candidates
from tests.tune.test_duels import Fake
from tests.workflow.conftest import ROOT

SPEC = ModelSpec(family="llamagen")
SMALL = """
models: {{scenes: {{family: llamagen, grid: 8}}}}
image: {{prompts: {{file: {root}/prompts/scenes.txt, limit: 2}}, methods: {{ar: [{{}}], auto: [{{}}]}}, batch: 2}}
compile: off
"""


def make_case(kind, name, spec, **setting):
    """Make a case to tune: a model of a kind at batch 1, with the settings of its sampling."""
    return tuned.Case(kind, name, spec, 1, setting)


def test_candidates_are_lossless_and_fit():
    variants = list(list_candidates(make_case("discrete", "scenes", SPEC)))
    assert (variants[0].method, variants[0].options) == ("ar", {})
    assert all(claim("discrete", v.method, v.options) == "lossless" for v in variants)
    names = {v.method for v in variants}
    assert names >= {"sjd", "sjd_coupled", "sjd_sv", "mtj", "eagle", "spec"}
    assert names <= {*methods("discrete")}
    small = list(list_candidates(make_case("discrete", "scenes", ModelSpec(family="llamagen", grid=8))))
    assert not {v.method for v in small} & {"eagle", "spec", "mtj_draft"}  # the 8x8 grid has no speculators
    assert all(v.options.get("window", 0) <= 64 for v in small)


@pytest.mark.parametrize(
    ("kind", "family", "included", "excluded"),
    [
        ("anysubset", "xlnet", {"sequential", "assd", "assd_ngram"}, {"sigma_gpt", "gpt2", "diffusion"}),
        ("continuous", "mar", {"mar", "spec_head", "coupled"}, set()),
    ],
)
def test_candidates_of_other_kinds_keep_the_targets_distribution(kind, family, included, excluded):
    """sigma_gpt claims to and does not; gpt2 decodes another network."""
    variants = list(list_candidates(make_case(kind, family, ModelSpec(family=family))))
    assert {v.method for v in variants} >= included
    assert not {v.method for v in variants} & excluded
    assert all(claim(kind, v.method, v.options) == "lossless" for v in variants)
    assert len({v.options["window"] for v in variants if v.method == "coupled"}) != 1


seconds = st.lists(st.floats(0.01, 100), min_size=2, max_size=2)


@given(st.lists(seconds, min_size=1, max_size=6))
@settings(max_examples=200)
def test_the_choice_is_not_slower_than_plain_decoding(rounds):
    turns = [bench.Variant(f"m{i}", {}, seconds=times) for i, times in enumerate(rounds)]
    best = command.choose(turns)
    plain = turns[0].seconds
    if max(plain) <= command.JUMP * min(plain):
        assert best is not None
    if max(plain) > 1.5 * command.JUMP * min(plain):
        assert best is None
    if best is not None:
        assert best.times(plain) >= 1 - 1e-9
        assert best.times(plain) == max(v.times(plain) for v in turns)


def tune(monkeypatch, capsys, *flags):
    """Run the command `parity tune` on small.yaml within a second, with flags; return what it printed."""
    monkeypatch.setattr(sys, "argv", ["parity tune", "--configfile", "small.yaml", "--budget", "1", *flags])
    command.main()
    return capsys.readouterr()


@pytest.fixture
def brief(tmp_path, monkeypatch):
    """An empty current folder, where little is measured."""
    monkeypatch.chdir(tmp_path)
    for module, name, value in (
        (command, "BEST", 1), (command, "JUMP", 1e9), (command, "SIZES", (4,)), (bench, "WIDTHS", (1, 4)),
        (bench, "PILOT", 1), (bench, "PAIRS", 2),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, value)
    return tmp_path


def test_a_choice_is_measured_once_and_then_read(brief, monkeypatch, capsys):
    (brief / "small.yaml").write_text(SMALL.format(root=ROOT))
    first = tune(monkeypatch, capsys, "--batch", "2").out
    ((key, entry),) = yaml.safe_load((brief / "tuned.yaml").read_text()).items()
    assert "scenes@" in key
    assert weights.compute_revision(ModelSpec(family="llamagen", grid=8)) in key
    assert "batch 2, " in key
    assert entry["times"] >= 1
    assert {"ar", "sjd_coupled"} <= {row["method"] for row in entry["table"]}
    assert "times plain" in first
    assert entry["method"] in first
    methods = checks.make_config(yaml.safe_load((brief / "small.yaml").read_text())).image.methods
    assert entry["options"] in methods[entry["method"]]  # `auto` finds the choice there
    assert "as tuned.yaml has it" in capsys.readouterr().err

    monkeypatch.setattr(command, "make_bench", {}.__getitem__)  # from here on, measuring raises TypeError
    second = tune(monkeypatch, capsys, "--batch", "2").out
    assert second.count("\n") == 1
    assert entry["method"] in second
    assert "--again" in second
    with pytest.raises(TypeError):  # with --again it is measured anew, which raises
        tune(monkeypatch, capsys, "--batch", "2", "--again")
    monkeypatch.setattr(tuned, "version", lambda: "0.0.0")
    with pytest.raises(TypeError):
        tune(monkeypatch, capsys, "--batch", "2")
    assert "another machine or version is ignored" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("section", "config"),
    [
        ("text", "{text: {methods: {sequential: [{}]}, tasks: {infilling: [{rows: 2, length: 16, masked: 0.5}]}}}"),
        ("continuous", "{continuous: {methods: {mar: [{}]}, images: 2, sampling: {steps: 2}}}"),
    ],
)
def test_texts_and_vectors_are_tuned_too(brief, monkeypatch, capsys, section, config):
    (brief / "small.yaml").write_text(config)
    out = tune(monkeypatch, capsys, section, "--batch", "1").out
    ((_, entry),) = yaml.safe_load((brief / "tuned.yaml").read_text()).items()
    assert entry["times"] >= 1
    assert "times plain" in out
    assert {row["method"] for row in entry["table"]} >= {{"text": "assd", "continuous": "coupled"}[section]}


@pytest.mark.parametrize(
    ("flags", "problem"), [(["audio"], "audio: small.yaml has no such section"), (["--batch", "0"], "--batch 0")]
)
def test_what_cannot_be_tuned_is_refused(brief, monkeypatch, capsys, flags, problem):
    (brief / "small.yaml").write_text(SMALL.format(root=ROOT))
    with pytest.raises(ParityError, match=problem):
        tune(monkeypatch, capsys, *flags)


def test_a_method_beyond_the_memory_is_left_out_in_a_line(capsys):
    piloted = [bench.Variant(method, {}) for method in ("ar", "sjd", "mtj")]
    turns = command.measure(Fake({"ar": 1.0, "sjd": 0.5, "mtj": None}), piloted, 2, 1e12)
    assert [v.method for v in turns] == ["ar", "sjd"]
    assert command.choose(turns).method == "sjd"
    assert "batch 2: mtj: memory is too little; left out" in capsys.readouterr().err
    with pytest.raises(ParityError, match="allowed: a smaller batch"):
        command.measure(Fake({"ar": None}), piloted[:1], 2, 1e12)


@pytest.mark.parametrize("left", [0.0, 1e9])
def test_the_best_prediction_is_timed_however_little_time_is_left(left, monkeypatch):
    fake = Fake({"ar": 1.0, "sjd": 0.5, "mtj": 0.8})
    fake.compiles = True
    monkeypatch.setattr(
        fake, "predict", lambda v, _: fake.seconds[v.method] / (2 if v.fast and v.method == "ar" else 1)
    )
    turns = command.measure(fake, [bench.Variant(m, {}) for m in ("ar", "mtj", "sjd")], 2, time.time() + left)
    assert {v.method for v in turns} == {"ar", "sjd"}
    assert command.choose(turns).method == "sjd"


def test_nothing_is_written_if_timings_jump(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    busy = [bench.Variant("ar", {}, seconds=[1.0, 1.4]), bench.Variant("sjd", {}, seconds=[0.5, 0.5])]
    monkeypatch.setattr(command, "run_pilots", lambda *_: busy)
    monkeypatch.setattr(command, "measure", lambda *_: busy)
    fake = SimpleNamespace(predict=lambda *_: 1.0)
    command.tune(fake, [make_case("discrete", "scenes", SPEC, revision="0")], 0.0, tmp_path / "tuned.yaml")
    assert "too busy to tell; nothing is written" in capsys.readouterr().out
    assert not (tmp_path / "tuned.yaml").exists()
