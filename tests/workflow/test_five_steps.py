"""From an empty folder to a new decoder's verdict on the page: five steps, of which one is to write a file."""

import csv
import os
import subprocess
import sys
from html import escape

import pytest

from tests.workflow.conftest import copy_project, make_runner

FEW = """
experiment: few
text:
  methods: {sequential: [{}]}
  tasks: {infilling: [{rows: 4, length: 16, masked: 0.5}]}
equality: {n: 10000, long: 0, swaps: 99}
"""


@pytest.mark.long
def test_a_new_decoder_takes_five_steps_and_one_file(tmp_path):
    """As CONTRIBUTING.md has them, on texts, whose jobs are the shortest. An edit then makes the decoder wrong, and the
    page says so."""
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
    # Step 5: run an experiment with it
    finished = make_runner(project)("--config", "text={methods: {mine: [{}]}}", config="few.yaml")
    assert finished.returncode == 0, finished.stderr
    lines = finished.stderr.strip().splitlines()
    assert "report.html" in lines[-1]
    assert any("mine" in line and "lossless" in line and "lossy: TV" in line for line in lines[-12:]), lines
    page = (project / "results/few/report.html").read_text()
    with (project / "results/few/summary.csv").open() as stream:
        [row] = [row for row in csv.DictReader(stream) if row["method"] == "mine"]
    assert row["verdict"].startswith("lossy: TV")
    assert row["pill"].startswith("lossy")
    assert escape(row["pill"]) in page
