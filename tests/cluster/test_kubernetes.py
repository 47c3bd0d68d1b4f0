"""The profile for Kubernetes with results in S3, one pod killed: the tokens and the page of a run on one machine."""

import os
import subprocess
import sys
import time

import pytest

from tests.cluster import one_api
from tests.cluster.test_s3 import ONE, SECRET, check_bucket, endpoint, find_missing, make_client  # noqa: F401
from tests.workflow.conftest import copy_project


def find_obstacle():
    """Find which package is missing that the test needs; "" if none is."""
    try:
        import snakemake_executor_plugin_kubernetes  # noqa: F401
    except ModuleNotFoundError:
        return "no executor plugin: uv run --extra cluster"
    return find_missing()


def start_run(project, *arguments, **environment):
    """Start snakemake on one.yaml of a project, with changes of its environment; its output is appended to run.log."""
    command = [sys.executable, "-m", "snakemake", "--configfile", "one.yaml", *arguments]
    variables = dict(os.environ) | environment
    log = (project / "run.log").open("a")
    return subprocess.Popen(command, cwd=project, env=variables, stdout=log, stderr=log)


def list_decoding(pods):
    """Yield the names of pods whose command decodes and still runs."""
    for name, process in list(pods.running.items()):
        args = pods.specs.get(name, {}).get("spec", {}).get("template", {}).get("spec", {}).get("containers", [{}])
        if process.poll() is None and "decode" in str(args[0].get("args")):
            yield name


@pytest.mark.long
@pytest.mark.skipif(bool(find_obstacle()), reason=find_obstacle())
def test_pods_give_the_tokens_and_the_page_of_one_machine(tmp_path, endpoint):  # noqa: F811
    client = make_client(endpoint)
    client.create_bucket(Bucket="parity")
    local, remote = (copy_project(tmp_path / name) for name in ("here", "there"))
    for project in (local, remote):
        (project / "one.yaml").write_text(ONE)
        # The plugin uploads those files as sources that git lists.
        subprocess.run("git init -q && git add .", shell=True, cwd=project, check=True)
    assert start_run(local, "--cores", "2", "--resources", "gpu=0").wait(900) == 0, (local / "run.log").read_text()
    cluster = tmp_path / "cluster"
    cluster.mkdir()
    flags = ["--profile", "profiles/kubernetes", "--container-image", "none", "--resources", "gpu=0"]
    flags += ["--default-storage-prefix", "s3://parity/run", "--storage-s3-endpoint-url", endpoint]
    flags += ["--storage-s3-region", "us-east-1", "--seconds-between-status-checks", "1"]
    keys = {"SNAKEMAKE_STORAGE_S3_ACCESS_KEY": "a", "SNAKEMAKE_STORAGE_S3_SECRET_KEY": SECRET}
    with one_api.serve_kubernetes(cluster) as pods:
        run = start_run(remote, *flags, KUBECONFIG=str(cluster / "config"), **keys)
        evicted = ""
        try:
            deadline = time.monotonic() + 2400
            while run.poll() is None and time.monotonic() < deadline:
                if not evicted and (evicted := next(list_decoding(pods), "")):
                    pods.delete(evicted)
                time.sleep(0.3)
            assert run.poll() == 0, (remote / "run.log").read_text()[-5000:]
        finally:
            run.kill()
            run.wait()
        assert evicted
        assert pods.codes[evicted] == 128 + 9
        requests = [s["spec"]["template"]["spec"]["containers"][0]["resources"]["requests"] for s in pods.created]
        # Jobs that name no device ask for no number of them, the others for 0.
        assert {r.get("nvidia.com/gpu") for r in requests} == {None, "0"}
    check_bucket(client, local, remote, tmp_path)
