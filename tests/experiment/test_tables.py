"""The papers' tables and figures on their own networks: every file plans, on a share of its prompts and on stand-ins,
which nothing else of the experiment gives way to."""

import copy
from pathlib import Path

import pytest
import yaml

from parity.experiment import checks, pins

ROOT = Path(__file__).parents[2]
TABLES = [p for p in sorted((ROOT / "workflow/experiments").glob("*.yaml")) if "source: hub" in p.read_text()]
PUBLISHED = sorted((ROOT / "workflow/published").glob("*.csv"))


def make_plan(raw, make=None):
    """Plan a configuration as the rules do; return its checked form and its cells. `make` makes stand-ins."""
    plan = checks.make_plan(copy.deepcopy(raw), str, lambda name: pins.NONE, PUBLISHED, make)
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
    assert (config.equality.n, config.equality.long) == (10_000, 0), "the fewest that the schema allows"
    if config.image:
        assert {spec.source for spec in config.models.values()} == {"files"}
