"""The workflow as a module of another, in another folder: it finds its own files, and leaves theirs."""

import json
import os
import subprocess
import sys

import pytest
import yaml

from tests.workflow.conftest import ROOT, TINY

MODULE = f"""
module parity:
    snakefile: {str(ROOT / "Snakefile")!r}
    config: config["parity"]

use rule * from parity as parity_*

rule mine:
    default_target: True
    input: "results/tiny/report.html"
    output: "mine.txt"
    shell: "ls {{input}} > {{output}}"
"""


@pytest.mark.long
def test_the_workflow_runs_as_a_module_of_another(tmp_path):
    """Its rules have a prefix; prompts and published numbers are found; a job runs. Results go to the folder of the
    run. By a Python that finds this project through the Snakefile alone."""
    (tmp_path / "Snakefile").write_text(MODULE)
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"parity": yaml.safe_load(TINY)}))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()

    def run_snakemake(*arguments):
        command = [sys.executable, "-m", "snakemake", "--cores", "1", "--resources", "gpu=0", "--directory", elsewhere]
        command += ["--configfile", "config.yaml", *arguments]
        finished = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, timeout=500, env={**os.environ}
        )
        assert finished.returncode == 0, finished.stderr
        return finished.stdout

    planned = run_snakemake("-n", "-p")
    assert "parity_decode" in planned
    assert "mine" in planned
    assert str(ROOT / "workflow/published/sjd.csv") in planned
    run_snakemake("--until", "parity_checkpoint")
    [manifest] = (elsewhere / "results/checkpoints").rglob("manifest.json")
    assert json.loads(manifest.read_text())["kind"] == "discrete"
    assert not (tmp_path / "results").exists()
