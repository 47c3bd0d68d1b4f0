"""An experiment on stand-ins of the published families is planned from their entries alone."""

import json

import pytest
import yaml

from parity.stand_ins import make_entry
from tests.families import LAYOUTS
from tests.workflow.conftest import jobs


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return {name: make_entry(name, folder / name) for name in LAYOUTS}


def test_every_family_is_planned_from_prompts_to_the_page(project, snakemake, models):
    few = {"prompts": {"file": "prompts/scenes.txt", "limit": 2}, "methods": {"ar": [{}], "sjd": [{"window": 8}]}}
    config = {"experiment": "families", "models": models, "image": {"sampling": {"guidance": 3.0}, **few}}
    (project / "families.yaml").write_text(yaml.safe_dump(config))
    planned = jobs(snakemake("-n", config="families.yaml"))
    for name in models:
        made = {rule for rule, output in planned if f"/{name}" in output}
        assert {"checkpoint", "captions", "decode", "measure_discrete"} <= made
    assert "report" in {rule for rule, _ in planned}


LESS = ("image={methods: {jacobi: null, sjd: [{window: 16}]}}", "models={lumina: null}")  # the rest takes as long again


@pytest.mark.slow
def test_a_table_of_a_paper_runs_on_stand_ins(snakemake, project):
    """The command in the head of the table's file, without the tests of equality and the report."""
    config = "workflow/experiments/sjd-table1.yaml"
    omitted = ("--omit-from", "report", "test_method")
    done = snakemake(*omitted, "--config", "stand_in=true", *LESS, config=config)
    assert done.returncode == 0, done.stdout + done.stderr
    found = [json.loads(f.read_text()) for f in (project / "results/cells/discrete/anole").rglob("metrics.json")]
    assert len(found) == 3 and all(-1 <= m["clip_score"] <= 1 for m in found), "judged by the stand-in of its CLIP"
    assert min(m["nfe"] for m in found) < max(m["nfe"] for m in found)
