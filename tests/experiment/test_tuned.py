"""`auto` in a configuration is the variant that tuned.yaml has for this machine: an ordinary cell."""

import pytest
import yaml

from parity.base.errors import ConfigError
from parity.experiment import checks, stand_in, tuned, weights
from parity.experiment.cells import cells
from parity.experiment.schema import ModelSpec

SPEC = ModelSpec(family="llamagen")
ENTRY = {"method": "sjd", "options": {"window": 8}, "compiled": False, "seconds": 0.2, "times": 1.5}


@pytest.fixture
def write(tmp_path, monkeypatch):
    """A tuned.yaml in the current folder, with one entry for a batch of 32 on this machine."""
    monkeypatch.chdir(tmp_path)

    def written(**changes):
        entries = {tuned.key_of("scenes", SPEC, 32): {**ENTRY, **changes}}
        (tmp_path / "tuned.yaml").write_text(yaml.safe_dump(entries))

    return written


def loaded(methods, **section):
    return checks.load({"image": {"methods": methods, **section}})


def keys(methods, **section):
    return {cell.key for cell in cells(loaded(methods, **section), ["a red circle"])}


def test_auto_is_an_ordinary_cell_with_an_ordinary_key(write, capsys):
    write()
    assert keys({"ar": [{}], "auto": [{}]}) == keys({"ar": [{}], "sjd": [{"window": 8}]})
    assert keys({"ar": [{}], "auto": [{}], "sjd": [{"window": 8}]}) == keys({"ar": [{}], "sjd": [{"window": 8}]})
    assert not capsys.readouterr().err


def test_without_an_entry_it_is_coupled_jacobi_and_one_line_names_the_command(write, monkeypatch, capsys):
    write()
    for batch, problem in ((4, "no entry for this machine"), (32, "another machine or version is ignored")):
        monkeypatch.setattr(tuned, "version", lambda: "0.0.0")
        assert keys({"ar": [{}], "auto": [{}]}, batch=batch) == keys({"ar": [{}], "sjd_coupled": [{}]})
        line = capsys.readouterr().err
        assert line.count("\n") == 1 and "`parity tune`" in line and problem in line


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
    ],
)
def test_an_entry_that_cannot_be_used_is_ignored_in_one_line(write, capsys, changes, problem):
    write(**changes)
    assert loaded({"ar": [{}], "auto": [{}]}).image.methods == loaded({"ar": [{}], "sjd_coupled": [{}]}).image.methods
    line = capsys.readouterr().err
    assert line.count("\n") == 1 and "its entry is ignored" in line and problem in line


@pytest.mark.parametrize("text", ["[1]", "a: 1", "a: {method: sjd}", "\tx", "a: b: c"])
def test_other_files_are_refused(tmp_path, monkeypatch, text):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tuned.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"tuned.yaml: .*allowed: to delete it and tune again"):
        loaded({"ar": [{}], "auto": [{}]})


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        ({"image": {"methods": {"ar": [{}], "auto": [{"window": 3}]}}}, "has no options; allowed: [{}]"),
        ({"image": {"methods": {"ar": [{}], "auto": []}}}, "has no options"),
        ({"image": {"methods": {"auto": [{}]}}}, "needs ar"),
        ({"text": {"methods": {"sequential": [{}], "auto": [{}]}}}, "text.methods.auto: unknown method"),
        (
            {"models": {n: {"family": "llamagen"} for n in "ab"}, "image": {"methods": {"ar": [{}], "auto": [{}]}}},
            "2 models (a, b); allowed: with one",
        ),
    ],
)
def test_auto_is_for_one_image_model_and_has_no_options(raw, problem):
    with pytest.raises(ConfigError) as error:
        checks.load(raw)
    assert problem in str(error.value) and "\n" not in str(error.value)


def test_planning_reads_the_file_and_times_nothing(write):
    """The revision of the model and the file decide, so two plans are one."""
    write()
    assert tuned.find("scenes", SPEC, 32) == tuned.find("scenes", SPEC, 32)
    assert weights.revision(SPEC) in tuned.key_of("scenes", SPEC, 32)


def test_a_stand_in_keeps_auto():
    section = {"methods": {"ar": [{}], "sjd": [{"window": 100}], "auto": [{}]}}
    stand_in.cap_options("discrete", section, [ModelSpec(family="llamagen", grid=8)])
    assert section["methods"] == {"ar": [{}], "sjd": [{"window": 64}], "auto": [{}]}
