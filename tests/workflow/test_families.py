"""An experiment on stand-ins of the published families is planned from their entries alone."""

import pytest
import yaml

from parity.stand_ins import entry
from tests.families import LAYOUTS
from tests.workflow.conftest import jobs


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return {name: entry(name, folder / name) for name in LAYOUTS}


def test_every_family_is_planned_from_prompts_to_the_page(project, snakemake, models):
    few = {"prompts": {"file": "prompts/scenes.txt", "limit": 2}, "methods": {"ar": [{}], "sjd": [{"window": 8}]}}
    config = {
        "experiment": "families",
        "text": None,
        "continuous": None,
        "models": models,
        "image": {"sampling": {"guidance": 3.0}, **few},
    }
    (project / "families.yaml").write_text(yaml.safe_dump(config))
    planned = jobs(snakemake("-n", config="families.yaml"))
    for name in models:
        made = {rule for rule, output in planned if f"/{name}" in output}
        assert {"checkpoint", "captions", "decode", "measure_discrete"} <= made
    assert "report" in {rule for rule, _ in planned}


def test_a_window_longer_than_a_family_s_pictures_is_refused(project, snakemake, models):
    few = {"prompts": {"file": "prompts/scenes.txt", "limit": 2}, "methods": {"ar": [{}], "sjd": [{"window": 38}]}}
    config = {
        "experiment": "families",
        "text": None,
        "continuous": None,
        "models": {"anole": models["anole"]},
        "image": few,
    }
    (project / "families.yaml").write_text(yaml.safe_dump(config))
    refused = snakemake("-n", config="families.yaml")
    assert refused.returncode and "window = 38: allowed: at most 37" in refused.stdout + refused.stderr
