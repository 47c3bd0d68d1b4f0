"""The workflow trains what the recipes declare: a target a kind, a job a recipe, in the order of their needs."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from parity.base.command import run_command
from parity.experiment import code_digest
from recipes.__main__ import main
from recipes.runs import INSTALLS, RUNS

ROOT = Path(__file__).parents[2]


def test_the_code_of_a_recipe_is_what_it_imports():
    code = code_digest.list_closure("recipes.__main__", "recipes.discrete")
    assert {"recipes.loop", "recipes.data", "parity.models.discrete.vq"} <= set(code)
    assert "recipes.continuous" not in code


@pytest.mark.long
def test_targets_train_recipes_in_the_order_of_their_needs(tmp_path):
    (tmp_path / "prompts").symlink_to(ROOT / "prompts")
    command = [sys.executable, "-m", "snakemake", "-s", str(ROOT / "Snakefile"), "--directory", str(tmp_path)]
    command += ["--configfile", str(ROOT / "config.yaml"), "--nocolor", "-np", *INSTALLS.values()]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    plan = finished.stdout + finished.stderr
    started = re.findall(r"python -m recipes (\S+) (\S+)", plan)
    jobs = [recipe for recipe, _ in started]
    assert sorted(jobs) == sorted([*RUNS, *["install"] * len(INSTALLS)])
    assert {kind for job, kind in started if job == "install"} == set(INSTALLS)
    for run in RUNS.values():
        assert all(jobs.index(needed) < jobs.index(run.name) for needed in run.reads)
        assert f"--steps {run.steps} " in plan
        assert f"--batch {run.batch} " in plan


def test_a_recipe_refuses_a_device_that_it_cannot_use(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(sys, "argv", ["recipes", "vq", "--work", str(tmp_path), "--device", "cuda"])
    with pytest.raises(SystemExit):
        run_command(main)
    assert capsys.readouterr().err == "error: --device cuda: allowed: cpu, for vq\n"
