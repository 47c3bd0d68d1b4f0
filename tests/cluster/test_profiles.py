"""The profiles for Slurm are read whole by a dry run, and the example sends jobs with a device to their partition."""

import re
import subprocess
import sys

import pytest

from tests.workflow.conftest import copy_project

pytest.importorskip("snakemake_executor_plugin_slurm", reason="no executor plugin: uv run --extra cluster")


@pytest.mark.parametrize("profile", ["slurm", "slurm-site"])
def test_a_dry_run_accepts_the_profile(profile, tmp_path):
    flags = ["--profile", f"profiles/{profile}", "--configfile", "tiny.yaml", "--dry-run"]
    command = [sys.executable, "-m", "snakemake", *flags]
    finished = subprocess.run(command, cwd=copy_project(tmp_path), capture_output=True, text=True, check=False)
    output = finished.stdout + finished.stderr
    assert finished.returncode == 0, output[-2000:]
    rules = re.findall(r"^rule (\w+):.*?resources: (.*?)$", output, re.MULTILINE | re.DOTALL)
    assert "decode" in dict(rules)
    if profile == "slurm-site":
        for rule, resources in rules:
            assert f"slurm_partition={'gpu' if 'gpu=' in resources else 'cpu'}" in resources, rule
