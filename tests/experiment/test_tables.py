"""The papers' tables on their own networks: every file plans, on a share of its prompts and on stand-ins,
which nothing else of the experiment gives way to."""

import copy
from pathlib import Path

import pytest
import yaml

from parity.experiment import checks, pins, stand_in

ROOT = Path(__file__).parents[2]
TABLES = sorted((ROOT / "workflow/experiments").glob("*-table*.yaml"))
PUBLISHED = sorted((ROOT / "workflow/published").glob("*.csv"))


def make_plan(raw, make=None):
    """Plan a configuration as the rules do; return its checked form and its cells. `make` makes stand-ins."""
    plan = checks.make_plan(copy.deepcopy(raw), str, make, lambda name: pins.NONE, PUBLISHED)
    return plan.config, plan.cells


@pytest.mark.parametrize("file", TABLES, ids=lambda p: p.stem)
def test_it_plans_on_stand_ins_without_its_data(file, make_stand_in, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prompts").symlink_to(ROOT / "prompts")
    raw = yaml.safe_load(file.read_text())
    config, planned_cells = make_plan(
        {**raw, "stand_in": True}, lambda names, published: {name: make_stand_in(name) for name in names}
    )
    assert config.stand_in
    assert config.experiment == f"{file.stem}-stand_in"
    assert planned_cells or config.text
    if config.image:
        assert {spec.source for spec in config.models.values()} == {"files"}


ENTRY = {
    "family": "llamagen", "source": "files", "files": {"transformer": "t.pt", "vq": "v.pt", "text": "t5"},
    "sha256": dict.fromkeys(("transformer", "vq", "text"), "a" * 64),
    "network": {"vocab": 64, "dim": 64, "layers": 1, "heads": 1, "grid": 4, "prefix": 8, "caption_dim": 32},
}  # fmt: skip
RAW = yaml.safe_load(f"""
experiment: table
stand_in: true
models:
  xl: {{family: llamagen, source: hub, repo: o/n, files: {{transformer: t.pt, drafter: "hub:o/d:."}}}}
  other: {{family: chameleon, stand_in: anole, source: files, files: {{model: /m}}, sha256: {{model: {"a" * 64}}}}}
  scenes: {{family: llamagen}}
image:
  prompts: {{file: data/captions.json, caption: sjd, limit: 5000, shards: 50}}
  reference: data/val2017
  methods: {{ar: [{{}}], sjd: [{{window: 8}}, {{window: 32}}, {{window: 64}}]}}
  study: [{{title: t, x: window, y: [nfe], where: {{window: [8, 32, 64]}}}}]
""")
DRAFTER = {"files": {"drafter": "eagle_drafter"}, "sha256": {"drafter": "b" * 64}}


def make_entries_of(requested):
    """Make a function that returns tiny LlamaGens as stand-ins' entries, and appends their names to `requested`."""

    def make(names, published):
        requested.extend(names)
        return {name: copy.deepcopy(DRAFTER if name == "eagle_drafter" else ENTRY) for name in names}

    return make


def test_published_models_give_way_and_the_embedded_one_stays():
    requested = []
    raw = stand_in.use_stand_ins(RAW, make_entries_of(requested))
    models = raw["models"]
    assert requested == ["llamagen", "eagle_drafter", "anole"]
    assert models["scenes"] == {"family": "llamagen"}
    assert models["other"] == ENTRY
    assert models["xl"]["files"]["drafter"] == "eagle_drafter"
    assert models["xl"]["sha256"]["drafter"] == "b" * 64
    assert raw["experiment"] == "table-stand_in"
    assert "reference" not in raw["image"]
    assert RAW["image"]["prompts"]["limit"] == 5000, "what was given is left as it was"
    assert raw["image"]["methods"]["sjd"] == [{"window": 8}, {"window": 16}], (
        "as large as they may be, no variant twice"
    )
    assert raw["image"]["study"][0]["where"] == {"window": [8, 16]}
    assert raw["image"]["prompts"] == {"file": "prompts/plain.txt", "limit": 2}


def test_the_tests_are_as_small_as_the_schema_lets_them_be():
    raw = {"experiment": "e", "stand_in": True, "image": {"methods": {"ar": [{}]}}}
    config = checks.load(stand_in.use_stand_ins(raw, make_entries_of([])))
    assert config.stand_in
    assert config.equality.n == 10_000
    assert config.equality.long == 0
