"""Real runs: a new decoder's verdict, a table on stand-ins, a module of another workflow; and one that is killed and
continues, in odd surroundings: names of every metacharacter, no home, the C locale, files only for the user."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import yaml
from parity_certify.verdict import judge_decoders

from parity.base import machine
from parity.base.errors import ConfigError, ParityError
from parity.base.files import read_json
from parity.decode.shard_io import read_shard
from parity.experiment import checks
from parity.stand_ins import make_entry
from tests.families import LAYOUTS
from tests.workflow.conftest import FEW, ROOT, TINY, copy_project, count_jobs, make_runner, read_jobs


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
    # Step 4: edit it, here so that it draws from another distribution, but still claims to be lossless
    text = decoder.read_text()
    decoder.write_text(text.replace("sample_token(p,", "sample_token(p.sqrt(),"))
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
    of the networks that judge, with random images to compare with, to every metric of quality that the table prints."""
    config = "workflow/experiments/sjd-table1.yaml"
    few = ("--config", "stand_in=true", *FEWER)
    planned = read_jobs(snakemake("-n", *few, config=config))
    goal = min(file for rule, file in planned if rule == "measure_discrete")
    finished = snakemake(*few, "--", goal, config=config)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    metrics = json.loads((project / goal).with_name("metrics.json").read_text())
    assert {"clip_score", "hps", "fid", "kid", "is", "precision", "recall"} <= set(metrics)
    assert metrics["cmmd_why"] == "no network: networks.clip_vision", "which the protocol does not have"
    assert metrics["nfe"] > 1


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
        finished = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env={**os.environ})
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


ODD = 'it\'s a "clone" $(HOME) `x` *?[a-b];&|<>#!~% \\ ünïcödé 名前'
TWO = """
experiment: odd
text:
  methods: {sequential: [{}]}
  tasks: {infilling: [{rows: 4, length: 8, masked: 0.5, data: FILE}]}
""".replace("FILE", "'prompts/" + ODD.replace("'", "''") + ".txt'")


class Clone:
    """A copy of the project with an experiment of plain decoding of texts alone: two cells of a shard each."""

    def __init__(self, folder):
        """Copy the project to a folder of odd name, and prepare an environment without a home."""
        self.folder = copy_project(folder / ODD)
        (self.folder / "prompts" / f"{ODD}.txt").write_text("anna was glad .\n" * 20)
        (self.folder / f"{ODD}.yaml").write_text(TWO)
        variables = {k: v for k, v in os.environ.items() if k not in ("LANG", "LC_ALL", "LC_CTYPE", "PYTHONPATH")}
        self.environment = variables | {"LC_ALL": "C", "HOME": str(folder / "no home")}

    def start(self):
        """Start snakemake until all is decoded, in odd surroundings, and return its process."""
        command = [sys.executable, "-m", "snakemake", "--until", "decode", "--cores", "1", "--resources", "gpu=0"]
        settings = {"cwd": self.folder, "env": self.environment, "umask": 0o077, "start_new_session": True}
        command += ["--configfile", f"{ODD}.yaml"]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, **settings)

    def run(self):
        """Run snakemake until all is decoded; return code and errors. A traceback fails the test."""
        process = self.start()
        errors = process.communicate()[1].decode(errors="replace")
        assert "Traceback" not in errors, errors
        return subprocess.CompletedProcess([], process.returncode, "", errors)

    def list_store(self):
        return {file.name: file.stat().st_ino for file in (self.folder / "results/store").glob("[!.]*.npz")}

    def list_shards(self):
        return sorted((self.folder / "results/cells").rglob("shards/*.npz"))


@pytest.mark.long
def test_a_killed_run_continues(tmp_path):
    """A run is killed with all its jobs once the first shard is there. The same command continues without a lock and
    decodes no shard twice."""
    clone = Clone(tmp_path)
    process = clone.start()
    while process.poll() is None and not clone.list_store():
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    stored = clone.list_store()
    assert stored
    assert len(clone.list_shards()) < 2
    assert count_jobs(clone.run()) > 0
    assert stored.items() <= clone.list_store().items()
    assert len(clone.list_shards()) == 2
    for file in (*(clone.folder / "results").rglob("*"), *(clone.folder / "logs").rglob("*")):
        if file.is_file() and ".snakemake" not in file.parts:
            assert file.stat().st_mode & 0o077 == 0, file


def test_braces_are_refused_in_one_line(tmp_path):
    """Braces are Snakemake's wildcards, in the name of a file and of the clone's folder."""
    with pytest.raises(ParityError, match=r"a folder without \{ and \}"):
        machine.check_place(tmp_path / "{of}")
    machine.check_place(tmp_path / ODD)
    with pytest.raises(ConfigError, match=r"prompts.file.*without \{ and \}"):
        checks.make_config({"image": {"prompts": {"file": "prompts/{of}.txt"}, "methods": {"ar": [{}]}}})
