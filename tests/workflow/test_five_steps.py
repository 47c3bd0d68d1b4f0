"""From an empty folder to a new decoder's verdict: five steps, of which one is to write a file."""

import os
import subprocess
import sys

import pytest
from parity_certify.verdict import judge_decoders

from parity.base.files import read_json
from parity.decode.shard_io import read_shard
from tests.workflow.conftest import copy_project, make_runner, read_jobs

FEW = """
experiment: few
text:
  methods: {sequential: [{}]}
  tasks: {infilling: [{rows: 4, length: 16, masked: 0.5}]}
equality: {n: 10000, long: 0, swaps: 99}
"""


@pytest.mark.long
def test_a_new_decoder_takes_five_steps_and_one_file(tmp_path):
    """As CONTRIBUTING.md has them, on texts, whose jobs are the shortest. It is decoded by a rule of its own; an edit
    makes it wrong, and its tests say so."""
    # Steps 1 and 2: clone the project and make an environment; here a copy
    project = copy_project(tmp_path / "parity")
    (project / "few.yaml").write_text(FEW)
    files = {p for p in project.rglob("*") if p.is_file() and "__pycache__" not in p.parts}
    # Step 3: begin a decoder by `parity new`
    created = subprocess.run(
        [sys.executable, "-m", "parity.new", "decoder", "mine", "--kind", "anysubset", "--rule"],
        cwd=project, env=os.environ | {"PYTHONPATH": f"{project}/src:{project}/certify/src:{project}/decoders/src"},
        capture_output=True, text=True,
    )  # fmt: skip
    assert created.returncode == 0, created.stderr
    written = {p for p in project.rglob("*") if p.is_file() and "__pycache__" not in p.parts} - files
    decoder = project / "decoders/src/parity_decoders/anysubset/mine.py"
    rule = project / "workflow/methods/mine.smk"
    assert written == {decoder, project / "tests/decoders/test_mine.py", rule}
    # Step 4: edit it, here so that it draws from another law, but still claims to be lossless
    text = decoder.read_text()
    decoder.write_text(text.replace("race(p,", "race(p.sqrt(),"))
    assert decoder.read_text() != text
    # Step 5: run it and its tests; the other jobs and the page are those of any run, which CI makes
    snakemake = make_runner(project)
    new = ("--config", "text={methods: {mine: [{}]}}")
    jobs = {file: rule for rule, file in read_jobs(snakemake("-n", *new, config="few.yaml")) if "/mine-" in file}
    goals = sorted(file for file, rule in jobs.items() if rule in ("decode_mine", "test_method"))
    finished = snakemake(*new, "--", *goals, config="few.yaml")
    assert finished.returncode == 0, finished.stderr
    shard, tests = (project / goal for goal in goals)
    assert len(read_shard(shard).tokens) == 4
    rows = [row for layer in read_json(tests).values() if isinstance(layer, dict) for row in layer["rows"]]
    assert judge_decoders(rows, {}, 0.01)[0]["verdict"].startswith("lossy")
