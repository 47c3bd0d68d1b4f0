"""Commits and digests come from pins.yaml, the variant of `auto` from tuned.yaml."""

import copy

import pytest
import yaml

from parity.base.errors import ConfigError
from parity.experiment import checks, pins, stand_in, tuned
from parity.experiment.cells import cells
from parity.experiment.options import KINDS, find_plain_method
from parity.experiment.schema import ModelSpec

COMMIT, SUM = "a" * 40, "b" * 64
RAW = {
    "models": {
        "open": {"source": "hub", "repo": "o/n", "files": {"model": ".", "vq": "hub:x/y:t/vq.ckpt"}},
        "fixed": {"source": "hub", "repo": "o/n", "revision": COMMIT, "files": {"model": "."}},
        "ours": {"source": "embedded"},
        "mar": {"source": "hub", "repo": "o/c", "files": {"target": "t.pth"}},
        "text": {"source": "hub", "files": {"xlnet": "hub:o/x@nlp", "judge": "folder", "tokenizer": "hub:o/w"}},
    },
    "networks": {"clip": {"repo": "o/clip", "file": "c.safetensors"}, "hps": {"file": "here.pt", "sha256": SUM}},
}


def test_each_open_repository_alone_is_asked_for_once():
    names = []

    def pin(name):
        names.append(name)
        return {"commit": COMMIT, "sha256": SUM}

    raw = pins.fill_pins(copy.deepcopy(RAW), pin)
    assert names == ["o/n:.", "x/y:t/vq.ckpt", "o/c:t.pth", "o/x@nlp:.", "o/w:.", "o/clip:c.safetensors"]
    model = raw["models"]["open"]
    assert model["revision"] == COMMIT
    assert model["sha256"] == {"model": SUM, "vq": SUM}
    assert model["files"] == {"model": ".", "vq": f"hub:x/y@{COMMIT}:t/vq.ckpt"}
    assert raw["models"]["fixed"] == RAW["models"]["fixed"]
    assert raw["models"]["mar"]["sha256"] == {"target": SUM}
    assert raw["models"]["text"] == {
        "source": "hub", "sha256": {"xlnet": SUM},
        "files": {"xlnet": f"hub:o/x@{COMMIT}:.", "judge": "folder", "tokenizer": f"hub:o/w@{COMMIT}:."},
    }  # fmt: skip
    assert raw["networks"]["clip"]["revision"] == COMMIT
    assert raw["networks"]["hps"] == RAW["networks"]["hps"]
    assert pins.fill_pins(copy.deepcopy(raw), pin) == raw
    assert len(names) == 6


def test_a_plan_needs_no_pin_and_a_run_does(tmp_path):
    file = tmp_path / "pins.yaml"
    unpinned = []
    assert pins.make_pin_reader(file, unpinned)("o/n:.") == pins.NONE
    assert "o/n has no commit yet" in unpinned[0]
    with pytest.raises(ConfigError, match=r"o/n has no commit yet; `parity models pin"):
        pins.make_pin_reader(file)("o/n:.")
    file.write_text(yaml.safe_dump({"o/n:.": {"commit": COMMIT, "sha256": SUM}}))
    for read in (pins.make_pin_reader(file), pins.make_pin_reader(file, unpinned)):
        assert read("o/n:.")["commit"] == COMMIT
        assert len(unpinned) == 1


CONTINUOUS = {"methods": {"mar": [{}], "auto": [{}]}, "batch": [2, 4]}
TEXT = {"methods": {"sequential": [{}], "auto": [{}]}, "batch": 4}
ENTRY = {"method": "sjd", "options": {"window": 8}, "compiled": False, "seconds": 0.2, "times": 1.5}


@pytest.fixture
def write(tmp_path, monkeypatch):
    """A function that writes a tuned.yaml to the current folder: an entry for a batch of 32 on this machine."""
    monkeypatch.chdir(tmp_path)

    def write_entry(**changes):
        (case,) = tuned.list_cases(checks.make_config({"image": {"methods": {"ar": [{}]}}}), "discrete")
        entries = {case._replace(batch=32).key: {**ENTRY, **changes}}
        (tmp_path / "tuned.yaml").write_text(yaml.safe_dump(entries))

    return write_entry


def load(methods, **section):
    return checks.make_config({"image": {"methods": methods, **section}})


def keys(methods, **section):
    return {cell.key for cell in cells(load(methods, **section), ["a red circle"])}


def test_auto_is_an_ordinary_cell_with_an_ordinary_key(write, capsys):
    write()
    assert keys({"ar": [{}], "auto": [{}]}) == keys({"ar": [{}], "sjd": [{"window": 8}]})
    assert "image.methods.auto: sjd" in capsys.readouterr().err
    assert keys({"ar": [{}], "auto": [{}], "sjd": [{"window": 8}]}) == keys({"ar": [{}], "sjd": [{"window": 8}]})


def test_without_an_entry_auto_is_coupled_jacobi(write, monkeypatch, capsys):
    write()
    for batch, problem in ((4, "no entry for this machine"), (32, "another machine or version is ignored")):
        monkeypatch.setattr(tuned, "version", lambda: "0.0.0")
        assert keys({"ar": [{}], "auto": [{}]}, batch=batch) == keys({"ar": [{}], "sjd_coupled": [{}]})
        line = capsys.readouterr().err
        assert line.count("\n") == 1
        assert "`parity tune`" in line
        assert problem in line


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"method": "gone"}, "unknown method"),
        ({"options": {"window": 0}}, "greater than or equal to 1"),
        ({"options": {"window": 257}}, "at most 256"),
        ({"options": {"widow": 8}}, "unknown key"),
        ({"options": {"tolerance": 0.1}}, "not lossless"),
        ({"method": "gsd", "options": {}}, "not lossless"),
        ({"options": 3}, "sjd"),
        ({"method": ["sjd"]}, "unknown method"),
        ({"method": "assd", "options": {}}, "unknown method"),
    ],
)
def test_an_entry_that_cannot_be_used_is_ignored_in_one_line(write, capsys, changes, problem):
    write(**changes)
    assert load({"ar": [{}], "auto": [{}]}).image.methods == load({"ar": [{}], "sjd_coupled": [{}]}).image.methods
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert "its entry is ignored" in line
    assert problem in line


@pytest.mark.parametrize("text", ["[1]", "a: 1", "o/n:.: {commit: x}", "a: {method: sjd}", "\tx", "a: b: c"])
def test_files_of_something_else_are_refused(tmp_path, monkeypatch, text):
    monkeypatch.chdir(tmp_path)
    for name in ("pins.yaml", "tuned.yaml"):
        (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match="allowed: to delete it and pin again"):
        pins.read(tmp_path / "pins.yaml")
    with pytest.raises(ConfigError, match=r"tuned.yaml: .*allowed: to delete it and tune again"):
        load({"ar": [{}], "auto": [{}]})


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        ({"image": {"methods": {"ar": [{}], "auto": [{"window": 3}]}}}, "has no options; allowed: [{}]"),
        ({"image": {"methods": {"ar": [{}], "auto": []}}}, "has no options"),
        ({"image": {"methods": {"auto": [{}]}}}, "needs ar"),
        ({"text": {**TEXT, "tasks": {"infilling": [], "choice": [{}]}}}, "text.methods.auto: no task is decoded"),
        (
            {"models": {n: {"family": "llamagen"} for n in "ab"}, "image": {"methods": {"ar": [{}], "auto": [{}]}}},
            "2 models (a, b); allowed: with one",
        ),
    ],
)
def test_auto_is_for_one_model_and_has_no_options(raw, problem):
    with pytest.raises(ConfigError) as error:
        checks.make_config(raw)
    assert problem in str(error.value)


@pytest.mark.parametrize(
    ("section", "content", "method", "tuned_to", "untuned"),
    [("continuous", CONTINUOUS, "coupled", {"window": 4}, "spec_head"), ("text", TEXT, "assd_ngram", {"k": 3}, "assd")],
)
def test_every_section_has_auto_at_its_first_batch(
    tmp_path, monkeypatch, capsys, section, content, method, tuned_to, untuned
):
    monkeypatch.chdir(tmp_path)
    (method_used,) = {*checks.make_config({section: content}).model_dump()[section]["methods"]} - {"mar", "sequential"}
    assert method_used == untuned
    assert f"{section}.methods.auto: tuned.yaml: no entry" in capsys.readouterr().err
    kind = next(kind for kind, name in KINDS.items() if name == section)
    plain = {**content, "methods": {find_plain_method(kind): [{}]}}
    (case,) = tuned.list_cases(checks.make_config({section: plain}), kind)
    (tmp_path / "tuned.yaml").write_text(yaml.safe_dump({case.key: {**ENTRY, "method": method, "options": tuned_to}}))
    (chosen,) = checks.make_config({section: content}).model_dump()[section]["methods"][method]
    assert chosen.items() >= tuned_to.items()
    assert "as tuned.yaml has it" in capsys.readouterr().err


def test_an_entry_is_of_its_number_of_steps():
    sections = [{**CONTINUOUS, "methods": {"mar": [{}]}, "sampling": {"steps": steps}} for steps in (25, 100)]
    cases = [tuned.list_cases(checks.make_config({"continuous": section}), "continuous")[0] for section in sections]
    assert len({case.key for case in cases}) == 2


def test_a_stand_in_keeps_auto():
    section = {"methods": {"ar": [{}], "sjd": [{"window": 100}], "auto": [{}]}}
    stand_in.cap_options("discrete", section, [ModelSpec(family="llamagen", grid=8)])
    assert section["methods"] == {"ar": [{}], "sjd": [{"window": 64}], "auto": [{}]}
