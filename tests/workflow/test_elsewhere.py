"""The workflow from another folder, and as a module of another workflow: it finds its own files, and leaves theirs."""

import json
import os
import subprocess
import sys

import yaml

from tests.workflow.conftest import ROOT, TINY

MODULE = """
configfile: "config.yaml"

module parity:
    snakefile: SNAKEFILE
    config: config["parity"]

use rule * from parity as parity_*

rule mine:
    default_target: True
    input: "results/tiny/report.html"
    output: "mine.txt"
    shell: "ls {input} > {output}"
"""


def run_snakemake(folder, *arguments):
    """Run snakemake in a folder, by a Python that finds this project through the Snakefile alone; return its output."""
    command = [sys.executable, "-m", "snakemake", "--cores", "1", "--resources", "gpu=0", *arguments]
    finished = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=500, env=dict(os.environ))
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def test_the_workflow_runs_as_a_module_of_another(tmp_path):
    """Its rules have a prefix; prompts and published numbers are found; a job runs."""
    (tmp_path / "Snakefile").write_text(MODULE.replace("SNAKEFILE", repr(str(ROOT / "Snakefile"))))
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"parity": yaml.safe_load(TINY)}))
    planned = run_snakemake(tmp_path, "-n", "-p")
    assert "parity_decode" in planned
    assert "mine" in planned
    assert str(ROOT / "workflow/published/sjd.csv") in planned
    run_snakemake(tmp_path, "--until", "parity_checkpoint")
    [manifest] = (tmp_path / "results/checkpoints").rglob("manifest.json")
    assert json.loads(manifest.read_text())["kind"] == "discrete"


def test_results_go_to_the_folder_of_the_run(tmp_path):
    """By `-s` and `--directory`, on the default experiment."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    run_snakemake(tmp_path, "-s", str(ROOT / "Snakefile"), "--directory", str(elsewhere), "--until", "shard_prompts")
    assert list((elsewhere / "results/inputs").rglob("*.json"))
    assert not (tmp_path / "results").exists()
