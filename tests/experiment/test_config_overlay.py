"""The command line over a configuration: YAML at every depth, keys under their section, an experiment in small."""

from pathlib import Path

import pytest
import yaml
from snakemake.cli import parse_config
from snakemake.utils import update_config

from parity.base.errors import ConfigError
from parity.experiment import checks, config_overlay
from parity.experiment.cells import list_text_tasks

ROOT = Path(__file__).parents[2]
RAW = yaml.safe_load((ROOT / "config.yaml").read_text())


def loaded(*entries, raw=RAW):
    """The experiment after `--config ENTRIES`, merged by Snakemake as it does, then by us."""
    said, merged = parse_config(entries), yaml.safe_load(yaml.safe_dump(raw))
    update_config(merged, said)
    return checks.load(config_overlay.overlay_config(merged, said))


@pytest.mark.parametrize(
    ("entry", "value", "find"),
    [
        ("prompts={limit: 4}", 4, lambda c: c.image.prompts.limit),
        ("image={sampling: {temperature: 0.5}}", 1.8, lambda c: c.image.sampling.guidance),  # what is not said stays
        ("image={methods: {sjd: [{window: 8}, {window: 4}]}}", 2, lambda c: len(c.image.methods["sjd"])),
        ("image={methods: {sjd: null}}", False, lambda c: "sjd" in c.image.methods),
        ("tasks={infilling: [{rows: 4, masked: 0.5}]}", 0.5, lambda c: c.text.tasks.infilling[0].masked),
        ("text=null", None, lambda c: c.text),
        ("repeat=true", True, lambda c: c.repeat),
    ],
)
def test_the_command_line_is_yaml_and_goes_deep(entry, value, find):
    assert find(loaded(entry)) == value
    assert find(loaded()) != value or "guidance" in str(find.__code__.co_names)


@pytest.mark.parametrize(
    ("entry", "parts"),
    [
        ("batch=4", ["--config batch = 4", "'image={batch: ...}' or 'text={batch: ...}'"]),
        ("promts={limit: 4}", ["promts = {'limit': 4}: unknown key"]),
        ("prompts={limit: four}", ["image.prompts.limit = 'four'", "a whole number"]),
        ("equality={alpha: 1e-2}", ["equality.alpha = '1e-2'", "write 1.0e-02, unquoted"]),
        ("equality={alpha: 1.0e-02}", []),  # what the hint says is right
        ("scale=0", ["scale = 0", "greater than 0"]),
        ("image=&i {models: *i}", ["image: an alias of YAML", "allowed: values that end"]),
        ("seeds=&i [*i]", ["seeds = [[[[...]]]]", "allowed: a mapping"]),
    ],
)
def test_a_wrong_value_on_the_command_line_is_one_line(entry, parts):
    if not parts:
        loaded(entry)
        return
    with pytest.raises(ConfigError) as error:
        loaded(entry)
    assert all(part in str(error.value) for part in parts) and "\n" not in str(error.value)


def test_a_configuration_that_holds_itself_is_one_line_and_one_that_repeats_itself_is_merged_once():
    text = "a0: &a0 {x: y}\n" + "\n".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 60))
    config_overlay.overlay_config(yaml.safe_load(text), {})  # 9 ** 59 values, were each visited as often as it is named
    with pytest.raises(ConfigError, match=r"image: an alias of YAML"):
        config_overlay.overlay_config(yaml.safe_load("image: &i {models: *i}"), {})


def test_scale_is_a_share_of_the_images_of_every_section_and_has_a_folder_of_its_own():
    whole, small = loaded(), config_overlay.scale_config(loaded("scale=0.1"))
    assert (small.image.prompts.limit, small.continuous.images) == (3, 3)
    assert [t["settings"]["rows"] for t in list_text_tasks(small)] == [4, 4, 20, 10]
    assert small.experiment == "default-x0.1" and config_overlay.scale_config(small) == small
    assert small.equality == whole.equality and config_overlay.scale_config(whole) is whole
    assert config_overlay.scale_config(loaded("scale=0.001")).image.prompts.limit == config_overlay.FEWEST


def test_an_experiment_with_a_section_stands_alone(tmp_path):
    (tmp_path / "alone.yaml").write_text("text: {methods: {}}")
    (tmp_path / "over.yaml").write_text("equality: {n: 20000}")
    assert config_overlay.is_complete([tmp_path / "alone.yaml"], {}) and not config_overlay.is_complete(
        [tmp_path / "over.yaml"], {}
    )
    assert config_overlay.is_complete([], RAW) and not config_overlay.is_complete([], {})


def test_files_are_found_from_another_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.txt").write_text("a prompt")
    raw = {"image": {}, "text": {"tasks": {"last_word": [{"data": "theirs.txt"}, {"data": "mine.txt"}, {}]}}}
    found = config_overlay.resolve_paths(raw, lambda name: f"/there/{name}")
    assert found["image"]["prompts"]["file"] == "/there/prompts/scenes.txt"
    assert [t.get("data") for t in found["text"]["tasks"]["last_word"]] == ["/there/theirs.txt", "mine.txt", None]
    raw = {"image": {"prompts": {"file": "a\0b"}}}  # no file can have this name: left for the checks to refuse
    assert config_overlay.resolve_paths(raw, lambda name: name)["image"]["prompts"]["file"] == "a\0b"
