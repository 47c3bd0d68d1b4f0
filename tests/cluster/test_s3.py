"""Results in object storage: an S3 server on this machine; a second run finds there that nothing is to be done."""

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
from tests.workflow.conftest import TINY, copied, executed

ONE = TINY.replace("limit: 4, shards: 2", "limit: 4, shards: 1").replace("    sjd: [{window: 16}]\n", "")
ONE = ONE.replace("  prompts:", "  reference_images: 64\n  prompts:")
ONE += "equality: {n: 10000, long: 0, swaps: 99}\n"
SECRET = "ouroboros"  # a key that no page may tell
PLUGINS = {"snakemake_storage_plugin_s3": "--extra cluster", "moto": "--group cluster"}


def lacking():
    for name, flag in PLUGINS.items():
        try:
            __import__(name)
        except ModuleNotFoundError:
            return f"no {name}: uv run {flag}"
    return ""


@pytest.fixture
def endpoint():
    """Its address, while it lives; what it is given it keeps in memory. One bucket, `parity`."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
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


def storage(endpoint):
    import boto3

    keys = {"aws_access_key_id": "a", "aws_secret_access_key": "b", "region_name": "us-east-1"}
    return boto3.client("s3", endpoint_url=endpoint, **keys)


def run(project, endpoint, *arguments):
    command = [sys.executable, "-m", "snakemake", "--cores", "2", "--resources", "gpu=0", "--configfile", "one.yaml"]
    command += arguments
    if endpoint:
        command += ["--default-storage-provider", "s3", "--default-storage-prefix", "s3://parity/run"]
        command += ["--storage-s3-endpoint-url", endpoint, "--storage-s3-region", "us-east-1"]
        command += ["--storage-s3-access-key", "a", "--storage-s3-secret-key", SECRET]
    environment = dict(os.environ)
    return subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=1800, env=environment)


def in_bucket(client, name):
    return client.get_object(Bucket="parity", Key=f"run/{name}")["Body"].read()


def untimed(table):
    """A summary without what is measured by a clock."""
    timed = re.compile("second|speedup|ms_per|(network|head|test)_share|memory")
    return table[[c for c in table if not timed.search(c)]]


def same_in_bucket(client, here, there, tmp_path):
    """The results of a local run stand in the bucket, no shard stays in the folder that asked for them; the page."""
    shards = sorted((here / "results/cells").rglob("shards/*.npz"))
    assert len(shards) == 2 and not list((there / "results").rglob("shards/*.npz"))
    for shard in shards:
        (tmp_path / "got.npz").write_bytes(in_bucket(client, shard.relative_to(here)))
        assert np.array_equal(read_shard(tmp_path / "got.npz").tokens, read_shard(shard).tokens)
    own = here / "results/tiny"
    assert in_bucket(client, "results/tiny/equality.csv") == (own / "equality.csv").read_bytes()
    fetched = io.BytesIO(in_bucket(client, "results/tiny/summary.csv"))
    pd.testing.assert_frame_equal(untimed(pd.read_csv(own / "summary.csv")), untimed(pd.read_csv(fetched)))
    page = in_bucket(client, "results/tiny/report.html").decode()
    assert SECRET not in page
    mine, other = split_sections((own / "report.html").read_text()), split_sections(page)
    assert list(mine) == list(other) and len(mine) > 10
    assert {k for k in mine if mine[k] != other[k]} <= {"image-cost", "published", "environment"}  # times, the command
    return page


@pytest.mark.slow
@pytest.mark.skipif(bool(lacking()), reason=lacking())
def test_results_in_object_storage_are_those_of_a_folder_and_are_made_once(tmp_path, endpoint):
    """Up to the page. Nothing of the results stays here; a run from another folder finds them."""
    client = storage(endpoint)
    client.create_bucket(Bucket="parity")
    projects = [copied(tmp_path / name) for name in ("here", "there", "elsewhere")]
    for project in projects:
        (project / "one.yaml").write_text(ONE)
    here, there, elsewhere = projects
    local, first = run(here, ""), run(there, endpoint)
    assert local.returncode == 0 and first.returncode == 0, local.stderr + first.stderr[-3000:]
    page = same_in_bucket(client, here, there, tmp_path)
    assert "--storage-s3-secret-key ..." in page
    again = run(there, endpoint)
    assert executed(again) == 0, again.stderr
    third = run(elsewhere, endpoint)
    assert executed(third) == 0, third.stderr
