"""Slurm's profiles are read whole; results in object storage: a second run finds nothing to do there."""

import importlib.util
import logging
import re
import socket
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import yaml

from tests.workflow.conftest import ALL_KINDS, TINY, copy_project, count_jobs

ONE = TINY.replace("limit: 4, shards: 2", "limit: 4, shards: 1").replace("    sjd: [{window: 16}]\n", "")
ONE = ONE.replace("  prompts:", "  reference_images: 64\n  prompts:")
ONE += "equality: {n: 10000, long: 0, swaps: 99}\n"
SECRET = "ouroboros"  # the secret key of the store, which no page may show
PLUGINS = {"snakemake_storage_plugin_s3": "--extra cluster", "moto": "--group cluster"}


def find_missing():
    """Find which package is missing that tests of object storage need; "" if none is."""
    for name, flag in PLUGINS.items():
        try:
            __import__(name)
        except ModuleNotFoundError:
            return f"no {name}: uv run {flag}"
    return ""


@pytest.fixture
def endpoint():
    """The address of a server that keeps its objects in memory, while it runs."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        while server.poll() is None:
            with socket.socket() as client:
                if client.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.2)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait()


def make_client(endpoint):
    import boto3

    keys = {"aws_access_key_id": "a", "aws_secret_access_key": "b", "region_name": "us-east-1"}
    return boto3.client("s3", endpoint_url=endpoint, **keys)


def run_snakemake(project, endpoint):
    """Run snakemake on one.yaml of a project; results go to the S3 server at `endpoint`."""
    command = [sys.executable, "-m", "snakemake", "--cores", "2", "--resources", "gpu=0", "--configfile", "one.yaml"]
    command += ["--default-storage-provider", "s3", "--default-storage-prefix", "s3://parity/run"]
    command += ["--storage-s3-endpoint-url", endpoint, "--storage-s3-region", "us-east-1"]
    command += ["--storage-s3-access-key", "a", "--storage-s3-secret-key", SECRET]
    return subprocess.run(command, cwd=project, capture_output=True, text=True)


@pytest.mark.long
@pytest.mark.skipif(bool(find_missing()), reason=find_missing())
def test_object_storage_holds_the_results_of_a_folder_once(tmp_path, endpoint):
    """Up to the page, which shows no secret. No shard stays in the run's folder; another folder's run finds all."""
    client = make_client(endpoint)
    client.create_bucket(Bucket="parity")
    projects = [copy_project(tmp_path / name) for name in ("here", "elsewhere")]
    for project in projects:
        (project / "one.yaml").write_text(ONE)
    first = run_snakemake(projects[0], endpoint)
    assert first.returncode == 0, first.stderr[-3000:]
    names = [entry["Key"] for entry in client.list_objects_v2(Bucket="parity")["Contents"]]
    assert sum("/shards/" in name for name in names) == 2
    assert not list((projects[0] / "results").rglob("shards/*.npz"))
    page = client.get_object(Bucket="parity", Key="run/results/tiny/report.html")["Body"].read().decode()
    assert "--storage-s3-secret-key ..." in page
    assert SECRET not in page
    for project in projects:
        again = run_snakemake(project, endpoint)
        assert count_jobs(again) == 0, again.stderr


needs_slurm = pytest.mark.skipif(
    not importlib.util.find_spec("snakemake_executor_plugin_slurm"), reason="no executor plugin: uv run --extra cluster"
)


def list_resources(project, profile):
    """List what each job of every.yaml would ask for under a profile, (rule, {resource: value}), by a dry run."""
    flags = ["--profile", f"profiles/{profile}", "--configfile", "every.yaml", "--dry-run", "speculators", "all"]
    command = [sys.executable, "-m", "snakemake", *flags]
    finished = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    output = finished.stdout + finished.stderr
    assert finished.returncode == 0, output[-2000:]
    jobs = re.findall(r"^ *rule (\w+):.*?resources: (.*?)$", output, re.MULTILINE | re.DOTALL)
    return [(rule, dict(pair.split("=", 1) for pair in asked.split(", "))) for rule, asked in jobs]


@needs_slurm
@pytest.mark.parametrize("profile", ["slurm", "slurm-site"])
def test_every_job_gets_a_partition_by_whether_it_has_a_device(profile, tmp_path):
    """Every rule with a device, and without; `--exclusive` for the job that times others. No partition has both."""
    from snakemake_executor_plugin_slurm.partitions import get_best_partition, read_partition_file

    project = copy_project(tmp_path)
    config = yaml.safe_load(ALL_KINDS)
    config["image"] |= {"speculators": {"draft": {"steps": 2}}, "methods": {"ar": [{}], "vvs": [{}]}}
    (project / "every.yaml").write_text(yaml.safe_dump(config))
    jobs = list_resources(project, profile)
    with_device = {rule for rule, asked in jobs if "gpu" in asked}
    written = {  # rules of the workflow's files that name the resource
        rule
        for file in (project / "workflow/rules").glob("*.smk")
        for rule, body in re.findall(r"^rule (\w+):(.*?)(?=^\S|\Z)", file.read_text(), re.MULTILINE | re.DOTALL)
        if re.search(r"^ +gpu=gpu,", body, re.MULTILINE)
    }
    assert {"decode", "captions", "reference", "speed", "speculator", "drafted_trees"} <= written & with_device
    assert not {rule for rule, asked in jobs if "gpu" not in asked} & written
    assert {rule for rule, asked in jobs if asked.get("slurm_extra") == "--exclusive"} == {"speed"}
    settings = yaml.safe_load((project / f"profiles/{profile}/profile.yaml").read_text())
    assert "set-resources" not in settings  # a list of rules would lack those that are added
    if profile == "slurm":
        return
    partitions = read_partition_file(project / settings["slurm-partition-config"])
    log = logging.getLogger()
    for rule, asked in jobs:
        if "gpu" in asked:  # a dry run counts this machine's devices, a run on Slurm 1
            asked = asked | {"gpu": "1"}
        job = SimpleNamespace(name=rule, threads=1, resources=asked)
        assert get_best_partition(partitions, job, log) == ("gpu" if "gpu" in asked else "cpu"), rule
    without = [one for one in partitions if not one.limits.max_gpu]
    assert get_best_partition(without, SimpleNamespace(name="decode", threads=1, resources={"gpu": "1"}), log) is None
