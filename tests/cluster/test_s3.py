"""Results in object storage: an S3 server on this machine; a second run finds nothing to do there."""

import io
import os
import re
import socket
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest

from parity.decode.shard_io import read_shard
from tests.report.test_page import split_sections
from tests.workflow.conftest import TINY, copy_project, count_jobs

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
        for _ in range(300):
            with socket.socket() as client:
                if client.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.2)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait()


def make_client(endpoint):
    """Make a client of the S3 server at an address."""
    import boto3

    keys = {"aws_access_key_id": "a", "aws_secret_access_key": "b", "region_name": "us-east-1"}
    return boto3.client("s3", endpoint_url=endpoint, **keys)


def run_snakemake(project, endpoint, *arguments):
    """Run snakemake on one.yaml of a project; results go to the S3 server at `endpoint`, or stay local if it is
    empty."""
    command = [sys.executable, "-m", "snakemake", "--cores", "2", "--resources", "gpu=0", "--configfile", "one.yaml"]
    command += arguments
    if endpoint:
        command += ["--default-storage-provider", "s3", "--default-storage-prefix", "s3://parity/run"]
        command += ["--storage-s3-endpoint-url", endpoint, "--storage-s3-region", "us-east-1"]
        command += ["--storage-s3-access-key", "a", "--storage-s3-secret-key", SECRET]
    environment = dict(os.environ)
    return subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=1800, env=environment)


def read_object(client, name):
    """Read the bytes of a result in the bucket by its name in the run's folder."""
    return client.get_object(Bucket="parity", Key=f"run/{name}")["Body"].read()


def drop_timings(table):
    """Return a summary table without the columns that a clock or a meter of memory measures."""
    timed = re.compile("second|speedup|ms_per|(network|head|test)_share|memory")
    return table[[c for c in table if not timed.search(c)]]


def check_bucket(client, local, remote, tmp_path):
    """Assert that the bucket holds the tokens, tables and page of a run in `local` and no secret, and that `remote`,
    whose run wrote to the bucket, holds no shard; return the bucket's page."""
    shards = sorted((local / "results/cells").rglob("shards/*.npz"))
    assert len(shards) == 2
    assert not list((remote / "results").rglob("shards/*.npz"))
    for shard in shards:
        (tmp_path / "got.npz").write_bytes(read_object(client, shard.relative_to(local)))
        assert np.array_equal(read_shard(tmp_path / "got.npz").tokens, read_shard(shard).tokens)
    results = local / "results/tiny"
    assert read_object(client, "results/tiny/equality.csv") == (results / "equality.csv").read_bytes()
    fetched = io.BytesIO(read_object(client, "results/tiny/summary.csv"))
    pd.testing.assert_frame_equal(*(drop_timings(pd.read_csv(file)) for file in (results / "summary.csv", fetched)))
    page = read_object(client, "results/tiny/report.html").decode()
    assert SECRET not in page
    local_parts = split_sections((results / "report.html").read_text())
    remote_parts = split_sections(page)
    assert list(local_parts) == list(remote_parts)
    assert len(local_parts) > 10
    different = {k for k in local_parts if local_parts[k] != remote_parts[k]}
    assert different <= {"image-cost", "published", "environment"}  # only these sections show times or the command
    return page


@pytest.mark.long
@pytest.mark.skipif(bool(find_missing()), reason=find_missing())
def test_object_storage_holds_the_results_of_a_folder_once(tmp_path, endpoint):
    """Up to the page. No results stay in the run's folder; a run from another folder finds them."""
    client = make_client(endpoint)
    client.create_bucket(Bucket="parity")
    projects = [copy_project(tmp_path / name) for name in ("here", "there", "elsewhere")]
    for project in projects:
        (project / "one.yaml").write_text(ONE)
    local_folder, remote_folder, third_folder = projects
    local = run_snakemake(local_folder, "")
    assert local.returncode == 0, local.stderr
    first = run_snakemake(remote_folder, endpoint)
    assert first.returncode == 0, first.stderr[-3000:]
    page = check_bucket(client, local_folder, remote_folder, tmp_path)
    assert "--storage-s3-secret-key ..." in page
    second = run_snakemake(remote_folder, endpoint)
    assert count_jobs(second) == 0, second.stderr
    third = run_snakemake(third_folder, endpoint)
    assert count_jobs(third) == 0, third.stderr
