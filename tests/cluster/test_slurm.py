"""A Slurm of two nodes on this machine runs `ci.yaml` whole, while jobs are cancelled and nodes drained.

Its tokens, its tables of tests and its page are those of a local run.
"""

import os
import subprocess
import sys
import time

import pandas as pd
import pytest

from parity.decode.shard_io import read_shard
from tests.cluster import one_machine
from tests.cluster.test_s3 import drop_timings
from tests.report.test_page import split_sections
from tests.workflow.conftest import copy_project

ONE_MACHINE = ["--cores", "2", "--resources", "gpu=0"]
CLUSTER = ["--profile", "profiles/slurm", "--slurm-no-account", "--slurm-status-command", "squeue"]
CLUSTER += ["--slurm-init-seconds-before-status-checks", "2"]
# Small jobs of a rule are grouped as one job of the cluster, because submitting them takes longer than their work. Jobs
# that hold no device run beside each other; a node has two cores.
SMALL = "captions=inputs reference=inputs decode=decode accuracy=measure test_method=laws_known"
SMALL += " measure_discrete=measure measure_anysubset=measure measure_continuous=measure"
SIZES = "inputs=8 decode=2 measure=6 laws_known=2"
CLUSTER += ["--groups", *SMALL.split(), "--group-components", *SIZES.split()]

# sections of the page that differ between runs, since they show times or the command
TIMED = {"verdicts", "image", "image-cost", "text", "continuous", "published", "environment"}


def find_obstacle():
    """Find why this machine cannot run Slurm; "" if it can."""
    try:
        import snakemake_executor_plugin_slurm  # noqa: F401
    except ModuleNotFoundError:
        return "no executor plugin: uv run --extra cluster"
    return one_machine.find_obstacle()


def start_run(project, *arguments):
    """Start snakemake on ci.yaml in a project; its output is appended to run.log."""
    command = [sys.executable, "-m", "snakemake", "--configfile", "workflow/experiments/ci.yaml", *arguments]
    environment = dict(os.environ) | {"PATH": f"{os.environ['PATH']}:/usr/sbin"}
    log = (project / "run.log").open("a")
    return subprocess.Popen(command, cwd=project, env=environment, stdout=log, stderr=log)


def read_tokens(project):
    """Read the tokens of each shard of a project, by its path."""
    files = sorted((project / "results/cells").rglob("shards/*.npz"))
    return {str(f.relative_to(project)): read_shard(f).tokens for f in files}


def read_decoding_jobs():
    """Read which cluster jobs decode now, and the node of each."""
    lines = one_machine.run_command("squeue", "-h", "-t", "R", "-o", "%i|%N|%k").splitlines()
    return {job: node for job, node, comment in (line.split("|") for line in lines) if "decode" in comment}


def wait_for(ask, run, seconds=600):
    """Return the first true answer of `ask`. Raises AssertionError if the run ends first, or after `seconds`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and run.poll() is None:
        if answer := ask():
            return answer
        time.sleep(0.3)
    raise AssertionError("it did not come to that")


@pytest.mark.long
@pytest.mark.skipif(bool(find_obstacle()), reason=find_obstacle())
def test_a_cluster_gives_the_tokens_and_the_page_of_one_machine(tmp_path):
    """One job cancelled, one node drained while its jobs run and given back; then nothing is left to be done."""
    local = copy_project(tmp_path / "here")
    cluster = copy_project(tmp_path / "there")
    assert start_run(local, *ONE_MACHINE).wait(1200) == 0, (local / "run.log").read_text()
    slurm = tmp_path / "slurm"
    slurm.mkdir()
    with one_machine.run_slurm(slurm):
        run = start_run(cluster, *CLUSTER)
        try:
            cancelled = next(iter(wait_for(read_decoding_jobs, run)))
            one_machine.run_command("scancel", cancelled)
            running = wait_for(lambda: {j: n for j, n in read_decoding_jobs().items() if j != cancelled}, run)
            node = next(iter(running.values()))
            one_machine.run_command("scontrol", "update", f"NodeName={node}", "State=DRAIN", "Reason=test")
            wait_for(lambda: node not in read_decoding_jobs().values(), run)
            assert one_machine.read_states()[node] in ("drained", "draining")
            one_machine.run_command("scontrol", "update", f"NodeName={node}", "State=RESUME")
            assert run.wait(3000) == 0, (cluster / "run.log").read_text()[-5000:]
        finally:
            run.kill()
            run.wait()
        assert start_run(cluster, *CLUSTER).wait(300) == 0
    output = (cluster / "run.log").read_text()
    assert output.splitlines()[-1].startswith("Nothing to be done"), output[-5000:]
    assert any("CANCELLED" in log.read_text() for log in (cluster / ".snakemake/log").glob("*.log"))
    local_tokens = read_tokens(local)
    cluster_tokens = read_tokens(cluster)
    assert len(local_tokens) == 11
    assert local_tokens.keys() == cluster_tokens.keys()
    assert all((local_tokens[name] == cluster_tokens[name]).all() for name in local_tokens)
    results = [project / "results/ci" for project in (local, cluster)]
    tables = [(folder / "equality.csv").read_bytes() for folder in results]
    assert tables[0] == tables[1]
    summaries = [drop_timings(pd.read_csv(folder / "summary.csv")) for folder in results]
    pd.testing.assert_frame_equal(*summaries)
    local_parts, cluster_parts = (split_sections((folder / "report.html").read_text()) for folder in results)
    assert list(local_parts) == list(cluster_parts)
    assert len(local_parts) > 12
    assert {k for k in local_parts if local_parts[k] != cluster_parts[k]} <= TIMED
