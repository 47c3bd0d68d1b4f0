"""The papers' tables on their own networks: every file plans, on a share of its prompts and on stand-ins."""

import copy
import json
import re
from pathlib import Path

import pytest
import yaml

from parity.experiment import cells, checks, config_overlay, pins, stand_in
from parity.experiment.prompt_files import read_prompts
from parity.experiment.schema import Config

ROOT = Path(__file__).parents[2]
TABLES = sorted((ROOT / "workflow/experiments").glob("*-table*.yaml"))
PUBLISHED = sorted((ROOT / "workflow/published").glob("*.csv"))
NUMBERED = re.compile(r"(?P<paper>sjd|gsd|vvs|cspd|assd)-table(?P<number>\d+)(-[a-z0-9-]+)?")
COUNTS = {"sjd": 11, "gsd": 1, "vvs": 6, "cspd": 9, "assd": 11}  # tables of the five documents


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A folder with the data that the tables name, of their sizes: what only names and counts are read of."""
    folder = tmp_path_factory.mktemp("tables") / "data"
    (folder / "val2017").mkdir(parents=True)
    pictures = [{"image_id": i, "id": i, "caption": f"picture {i}"} for i in range(5000)]
    images = [{"id": i, "file_name": f"{i:012d}.jpg"} for i in range(5000)]
    (folder / "captions_val2017.json").write_text(json.dumps({"annotations": pictures, "images": images}))
    lines = [f"a thing {i}\tAbstract\tBasic\t" for i in range(1632)]
    (folder / "PartiPrompts.tsv").write_text("\n".join(["Prompt\tCategory\tChallenge\tNote", *lines]) + "\n")
    for name in ("wikitext-2-test.txt", "lambada_test.jsonl", "hellaswag_val.jsonl"):
        (folder / name).write_text("words\n")
    for name in ("cloze_test_val__spring2016.csv", "HumanEval-SingleLineInfilling.jsonl.gz"):
        (folder / name).write_bytes(b"")
    (folder.parent / "prompts").symlink_to(ROOT / "prompts")
    return folder.parent


def planned(raw, make=None):
    """What the rules plan of a configuration: the experiment and its cells."""
    raw = copy.deepcopy(raw)
    ready = pins.filled(stand_in.replaced(raw, make) if make else raw, lambda name: pins.NONE)
    config = config_overlay.scaled(checks.load(ready))
    checks.check_sources(config, PUBLISHED)
    prompts = read_prompts(config.image.prompts, most=checks.most_words(config)) if config.image else []
    return config, cells.cells(config, prompts)


def test_every_table_of_every_paper_has_a_file():
    found = {}
    for file in TABLES:
        name = NUMBERED.fullmatch(file.stem)
        assert name, file.name
        found.setdefault(name["paper"], set()).add(int(name["number"]))
    assert found == {paper: set(range(1, count + 1)) for paper, count in COUNTS.items()}


@pytest.mark.parametrize("file", TABLES, ids=lambda p: p.stem)
def test_a_share_of_its_prompts_plans(file, data, monkeypatch):
    monkeypatch.chdir(data)
    raw = yaml.safe_load(file.read_text())
    assert raw["experiment"] == file.stem
    config, whole = planned(raw)
    less, found = planned({**raw, "scale": 0.01})
    assert isinstance(config, Config) and (len(found) == len(whole) > 0 or config.text)
    if config.image:
        assert less.image.prompts.limit < config.image.prompts.limit or config.image.prompts.limit == 1


@pytest.mark.parametrize("file", TABLES, ids=lambda p: p.stem)
def test_it_plans_on_stand_ins_without_its_data(file, stood_in, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prompts").symlink_to(ROOT / "prompts")
    raw = yaml.safe_load(file.read_text())
    config, found = planned({**raw, "stand_in": True}, lambda names: {name: stood_in(name) for name in names})
    assert config.stand_in and config.experiment == f"{file.stem}-stand_in"
    assert found or config.text
    if config.image:
        assert {spec.source for spec in config.models.values()} == {"files"}
