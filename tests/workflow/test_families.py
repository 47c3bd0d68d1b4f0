"""An experiment on stand-ins of the published families is planned from their entries alone."""

import json

import pytest
import yaml

from parity.stand_ins import make_entry
from tests.families import LAYOUTS
from tests.workflow.conftest import read_jobs


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Entries of stand-ins of the published families, by name."""
    folder = tmp_path_factory.mktemp("models")
    return {name: make_entry(name, folder / name) for name in LAYOUTS}


def test_every_family_is_planned_from_prompts_to_the_page(project, snakemake, models):
    image = {"prompts": {"file": "prompts/scenes.txt", "limit": 2}, "methods": {"ar": [{}], "sjd": [{"window": 8}]}}
    config = {"experiment": "families", "models": models, "image": {"sampling": {"guidance": 3.0}, **image}}
    (project / "families.yaml").write_text(yaml.safe_dump(config))
    planned = read_jobs(snakemake("-n", config="families.yaml"))
    for name in models:
        rules = {rule for rule, output in planned if f"/{name}" in output}
        assert {"checkpoint", "captions", "decode", "measure_discrete"} <= rules
    assert "report" in {rule for rule, _ in planned}


# Fewer methods and models take less time.
FEWER = ("image={methods: {jacobi: null, sjd: [{window: 16}]}}", "models={lumina: null}")


@pytest.mark.long
def test_a_cell_of_a_papers_table_runs_on_stand_ins(snakemake, project):
    """The command in the head of the table's file, for the figures of plain decoding: from stand-ins of the target and
    of the networks that judge, to a picture's CLIP-score."""
    config = "workflow/experiments/sjd-table1.yaml"
    few = ("--config", "stand_in=true", *FEWER)
    planned = read_jobs(snakemake("-n", *few, config=config))
    goal = min(file for rule, file in planned if rule == "measure_discrete")
    finished = snakemake(*few, "--", goal, config=config)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    metrics = json.loads((project / goal).with_name("metrics.json").read_text())
    assert -1 <= metrics["clip_score"] <= 1, "judged by the stand-in of its CLIP"
    assert metrics["nfe"] > 1
