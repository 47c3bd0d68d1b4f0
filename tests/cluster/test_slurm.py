"""A Slurm of two nodes, on this machine: `ci.yaml` whole, whatever happens to jobs and nodes on the way.

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
from tests.cluster.test_s3 import untimed
from tests.report.test_page import split_sections
from tests.workflow.conftest import copied

ONE_MACHINE = ["--cores", "2", "--resources", "gpu=0"]
CLUSTER = ["--profile", "profiles/slurm", "--slurm-no-account", "--slurm-status-command", "squeue"]
CLUSTER += ["--slurm-init-seconds-before-status-checks", "2"]
# Small jobs of a kind are one job of the cluster, for what that costs beside its work is most of what this test takes.
# Those that hold no device run beside each other, and a node has two cores.
SMALL = "captions=inputs reference=inputs decode=decode accuracy=measure test_method=laws_known"
SMALL += " measure_discrete=measure measure_anysubset=measure measure_continuous=measure"
SIZES = "inputs=8 decode=2 measure=6 laws_known=2"
CLUSTER += ["--groups", *SMALL.split(), "--group-components", *SIZES.split()]


# sections that tell times or the command
TIMED = {"verdicts", "image", "image-cost", "text", "continuous", "published", "environment"}


def lacking():
    try:
        import snakemake_executor_plugin_slurm  # noqa: F401
    except ModuleNotFoundError:
        return "no executor plugin: uv run --extra cluster"
    return one_machine.lacking()


def begun(project, *arguments):
    command = [sys.executable, "-m", "snakemake", "--configfile", "workflow/experiments/ci.yaml", *arguments]
    environment = dict(os.environ) | {"PATH": f"{os.environ['PATH']}:/usr/sbin"}
    log = (project / "run.log").open("a")
    return subprocess.Popen(command, cwd=project, env=environment, stdout=log, stderr=log)


def tokens(project):
    files = sorted((project / "results/cells").rglob("shards/*.npz"))
    return {str(f.relative_to(project)): read_shard(f).tokens for f in files}


def decoding():
    """Cluster jobs that decode now, and the node of each."""
    jobs = [line.split("|") for line in one_machine.called("squeue", "-h", "-t", "R", "-o", "%i|%N|%k").splitlines()]
    return {job: node for job, node, comment in jobs if "decode" in comment}


def wait_for(what, run, seconds=600):
    """Its first answer that is not empty, while a run lives."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and run.poll() is None:
        if found := what():
            return found
        time.sleep(0.3)
    raise AssertionError("it did not come to that")


@pytest.mark.slow
@pytest.mark.skipif(bool(lacking()), reason=lacking())
def test_a_cluster_gives_the_tokens_and_the_page_of_one_machine(tmp_path):
    """One job cancelled, one node drained while its jobs run and given back; then nothing is left to be done."""
    here, there = copied(tmp_path / "here"), copied(tmp_path / "there")
    assert begun(here, *ONE_MACHINE).wait(1200) == 0, (here / "run.log").read_text()
    slurm = tmp_path / "slurm"
    slurm.mkdir()
    with one_machine.slurm(slurm):
        run = begun(there, *CLUSTER)
        try:
            cancelled = next(iter(wait_for(decoding, run)))
            one_machine.called("scancel", cancelled)
            later = wait_for(lambda: {j: n for j, n in decoding().items() if j != cancelled}, run)
            node = next(iter(later.values()))
            one_machine.called("scontrol", "update", f"NodeName={node}", "State=DRAIN", "Reason=test")
            wait_for(lambda: node not in decoding().values(), run)
            assert one_machine.states()[node] in ("drained", "draining")
            one_machine.called("scontrol", "update", f"NodeName={node}", "State=RESUME")
            assert run.wait(3000) == 0, (there / "run.log").read_text()[-5000:]
        finally:
            run.kill()
            run.wait()
        assert begun(there, *CLUSTER).wait(300) == 0
    told = (there / "run.log").read_text()
    assert told.splitlines()[-1].startswith("Nothing to be done"), told[-5000:]
    assert any("CANCELLED" in log.read_text() for log in (there / ".snakemake/log").glob("*.log"))
    ours, theirs = tokens(here), tokens(there)
    assert len(ours) == 11 and ours.keys() == theirs.keys()
    assert all((ours[name] == theirs[name]).all() for name in ours)
    mine, other = here / "results/ci", there / "results/ci"
    assert (mine / "equality.csv").read_bytes() == (other / "equality.csv").read_bytes()
    summaries = [untimed(pd.read_csv(folder / "summary.csv")) for folder in (mine, other)]
    pd.testing.assert_frame_equal(*summaries)
    mine, other = (split_sections((folder / "report.html").read_text()) for folder in (mine, other))
    assert list(mine) == list(other) and len(mine) > 12
    assert {k for k in mine if mine[k] != other[k]} <= TIMED
