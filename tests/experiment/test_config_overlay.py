"""The command line over a configuration: YAML at every depth, keys under their section, an experiment in small."""

import codecs
import json
from pathlib import Path

import pytest
import yaml
from snakemake.cli import parse_config
from snakemake.utils import update_config

from parity.base.errors import ConfigError
from parity.base.files import dump_canonical
from parity.experiment import checks, config_overlay
from parity.experiment.cells import list_text_tasks

ROOT = Path(__file__).parents[2]
RAW = yaml.safe_load((ROOT / "config.yaml").read_text())


def load_with(*entries, raw=RAW):
    """Load an experiment after `--config ENTRIES` were merged into it, first by Snakemake, then by this project."""
    overlay, merged = parse_config(entries), yaml.safe_load(yaml.safe_dump(raw))
    update_config(merged, overlay)
    return checks.make_config(config_overlay.overlay_config(merged, overlay))


@pytest.mark.parametrize(
    ("entry", "value", "find"),
    [
        ("prompts={limit: 4}", 4, lambda c: c.image.prompts.limit),
        ("image={sampling: {temperature: 0.5}}", 1.8, lambda c: c.image.sampling.guidance),  # other keys stay unchanged
        ("image={methods: {sjd: [{window: 8}, {window: 4}]}}", 2, lambda c: len(c.image.methods["sjd"])),
        ("image={methods: {sjd: null}}", False, lambda c: "sjd" in c.image.methods),
        ("tasks={infilling: [{rows: 4, masked: 0.5}]}", 0.5, lambda c: c.text.tasks.infilling[0].masked),
        ("text=null", None, lambda c: c.text),
        ("repeat=true", True, lambda c: c.repeat),
    ],
)
def test_the_command_line_is_yaml_and_goes_deep(entry, value, find):
    assert find(load_with(entry)) == value
    assert find(load_with()) != value or "guidance" in str(find.__code__.co_names)


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("batch=4", ["--config batch = 4", "'image={batch: ...}' or 'text={batch: ...}'"]),
        ("promts={limit: 4}", ["promts = {'limit': 4}: unknown key"]),
        ("prompts={limit: four}", ["image.prompts.limit = 'four'", "a whole number"]),
        ("equality={alpha: 1e-2}", ["equality.alpha = '1e-2'", "write 1.0e-02, unquoted"]),
        ("equality={alpha: 1.0e-02}", []),  # what the hint tells people to write is accepted
        ("scale=0", ["scale = 0", "greater than 0"]),
        ("image=&i {models: *i}", ["image: an alias of YAML", "allowed: values that end"]),
        ("seeds={methods: 010}", ["010, which YAML reads as 8", "allowed: 8 or 10"]),
        ("timing={seconds: 1:30}", ["1:30, which YAML reads as 90", "allowed: 90"]),
        ("experiment=2026-11-27", []),
        ("experiment=2026-13-45", []),
        ("seeds=&i [*i]", ["seeds = [[[[...]]]]", "allowed: a mapping"]),
    ],
)
def test_a_wrong_value_on_the_command_line_is_one_line(entry, words):
    if not words:
        load_with(entry)
        return
    with pytest.raises(ConfigError) as error:
        load_with(entry)
    assert all(word in str(error.value) for word in words)


def test_aliases_are_merged_once_and_never_forever():
    text = "a0: &a0 {x: y}\n" + "\n".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 60))
    config_overlay.overlay_config(yaml.safe_load(text), {})  # it holds 9 ** 59 values if each alias is followed
    with pytest.raises(ConfigError, match=r"image: an alias of YAML"):
        config_overlay.overlay_config(yaml.safe_load("image: &i {models: *i}"), {})


def test_scale_shrinks_every_section_into_its_own_folder():
    raw = {
        "image": {"methods": {"ar": [{}]}, "prompts": {"limit": 30}},
        "text": {"methods": {"sequential": [{}]}, "tasks": {"infilling": [{"rows": 40}], "choice": [{"rows": 100}]}},
        "continuous": {"methods": {"mar": [{}]}, "images": 30},
    }
    full, small = load_with(raw=raw), config_overlay.scale_config(load_with("scale=0.1", raw=raw))
    assert (small.image.prompts.limit, small.continuous.images) == (3, 3)
    assert [t["settings"]["rows"] for t in list_text_tasks(small)] == [4, 10]
    assert small.experiment == f"{full.experiment}-x0.1"
    assert config_overlay.scale_config(small) == small
    assert small.equality == full.equality
    assert config_overlay.scale_config(full) is full
    assert config_overlay.scale_config(load_with("scale=0.001", raw=raw)).image.prompts.limit == config_overlay.FEWEST


def test_a_job_reads_the_very_trial_that_the_workflow_planned():
    """Values are written alike, 1.0 and not 1, because digests of them name files."""
    trial = config_overlay.scale_config(load_with("stand_in=true"))
    again = checks.make_config(json.loads(trial.model_dump_json(exclude_unset=True)))
    assert trial.timing.seconds == 0
    assert dump_canonical(again.model_dump()) == dump_canonical(trial.model_dump())


def test_an_experiment_with_a_section_stands_alone(tmp_path):
    (tmp_path / "alone.yaml").write_text("text: {methods: {}}")
    (tmp_path / "over.yaml").write_text("equality: {n: 20000}")
    assert config_overlay.is_complete([tmp_path / "alone.yaml"], {})
    assert not config_overlay.is_complete([tmp_path / "over.yaml"], {})
    assert config_overlay.is_complete([], RAW)
    assert not config_overlay.is_complete([], {})


def test_files_are_found_from_another_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.txt").write_text("a prompt")
    raw = {"image": {}, "text": {"tasks": {"last_word": [{"data": "theirs.txt"}, {"data": "mine.txt"}, {}]}}}
    resolved = config_overlay.resolve_paths(raw, lambda name: f"/there/{name}")
    assert resolved["image"]["prompts"]["file"] == "/there/prompts/scenes.txt"
    assert [t.get("data") for t in resolved["text"]["tasks"]["last_word"]] == ["/there/theirs.txt", "mine.txt", None]
    raw = {"image": {"prompts": {"file": "a\0b"}}}  # no file can have this name: left for the checks to refuse
    assert config_overlay.resolve_paths(raw, lambda name: name)["image"]["prompts"]["file"] == "a\0b"


TABS = json.dumps({"experiment": "tiny", "equality": {"alpha": 1e-2}}, indent="\t")
BLOCK = "experiment: tiny\nequality: {alpha: 0.01}\n"


@pytest.mark.parametrize("text", [TABS, TABS.replace("0.01", "1e-2"), TABS.replace("\n", "\r\n"), BLOCK])
@pytest.mark.parametrize("mark", [b"", codecs.BOM_UTF8], ids=["", "mark"])
def test_json_with_tabs_and_a_byte_order_mark_are_read(tmp_path, text, mark):
    file = tmp_path / "x.json"
    file.write_bytes(mark + text.encode())
    assert config_overlay.read_experiment(file) == {"experiment": "tiny", "equality": {"alpha": 0.01}}
    assert not config_overlay.is_complete([file], {})


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("experiment: tiny\nimage:\n\tmethods: 1", ["x.yaml", "line 3"]),
        ("seeds: {methods: 010}", ["x.yaml: line 1: 010, which YAML reads as 8", "allowed: 8 or 10"]),
        ("scale: 1\nequality:\n  seeds: [011, 12]", ["line 3: 011, which YAML reads as 9"]),
        ("timing: {seconds: 1:30}", ["1:30, which YAML reads as 90"]),
        ("experiment: 12:30:45", ["12:30:45, which YAML reads as 45045", "a text in quotes"]),
        ("experiment: =", ["line 1", "could not determine a constructor"]),
        ("experiment: 2026-13-45", ["month"]),
        ("experiment: tiny".encode("utf-16"), ["UTF-16", "allowed: UTF-8"]),
        (b"experiment: \xff", ["not UTF-8 at byte 12"]),
    ],
)
def test_a_file_that_cannot_be_read_or_is_read_otherwise_is_one_line(tmp_path, content, words):
    file = tmp_path / "x.yaml"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    for read in (config_overlay.read_experiment, lambda file: config_overlay.is_complete([file], {})):
        with pytest.raises(ConfigError) as error:
            read(file)
        assert len(str(error.value).splitlines()) == 1
        assert all(word in str(error.value) for word in words), error.value


def test_a_number_with_one_meaning_is_read(tmp_path):
    file = tmp_path / "x.yaml"
    file.write_text("seeds: [0, 07, 10, 0x1f, '010', !!str 010, 1.5, 10_000]")
    assert config_overlay.read_experiment(file)["seeds"] == [0, 7, 10, 31, "010", "010", 1.5, 10_000]
