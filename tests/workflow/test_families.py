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
def test_a_table_of_a_paper_runs_on_stand_ins(snakemake, project):
    """The command in the head of the table's file, without the tests of equality and the report."""
    config = "workflow/experiments/sjd-table1.yaml"
    omitted = ("--omit-from", "report", "test_method")
    finished = snakemake(*omitted, "--config", "stand_in=true", *FEWER, config=config)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    metrics = [json.loads(f.read_text()) for f in (project / "results/cells/discrete/anole").rglob("metrics.json")]
    assert len(metrics) == 3
    assert all(-1 <= m["clip_score"] <= 1 for m in metrics), "judged by the stand-in of its CLIP"
    assert min(m["nfe"] for m in metrics) < max(m["nfe"] for m in metrics)
