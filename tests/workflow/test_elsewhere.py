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


def snakemake(folder, *arguments):
    """By a Python that does not know of this checkout but by the Snakefile; no profile of another folder is read."""
    command = [sys.executable, "-m", "snakemake", "--cores", "1", "--resources", "gpu=0", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=500, env=dict(os.environ))
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_as_a_module_of_another_workflow(tmp_path):
    """Its rules have the other's names before theirs; prompts and published numbers are found; a job runs."""
    (tmp_path / "Snakefile").write_text(MODULE.replace("SNAKEFILE", repr(str(ROOT / "Snakefile"))))
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"parity": yaml.safe_load(TINY)}))
    # what this workflow prints of a job by its message is Snakemake's own here
    planned = snakemake(tmp_path, "-n", "-p")
    assert "parity_decode" in planned and "mine" in planned
    assert str(ROOT / "workflow/published/sjd.csv") in planned
    snakemake(tmp_path, "--until", "parity_checkpoint")
    [manifest] = (tmp_path / "results/checkpoints").rglob("manifest.json")
    assert json.loads(manifest.read_text())["kind"] == "discrete"


def test_from_another_folder(tmp_path):
    """`-s` and `--directory`: the default experiment, and everything that is written, below that folder."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    snakemake(tmp_path, "-s", str(ROOT / "Snakefile"), "--directory", str(elsewhere), "--until", "shard_prompts")
    assert list((elsewhere / "results/inputs").rglob("*.json")) and not (tmp_path / "results").exists()
