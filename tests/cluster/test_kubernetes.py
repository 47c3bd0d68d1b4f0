"""The profile for Kubernetes with results in S3, one pod killed: the tokens and the page of a run on one machine."""

import os
import subprocess
import sys
import time

import pytest

from tests.cluster import one_api
from tests.cluster.test_s3 import ONE, SECRET, endpoint, lacking, same_in_bucket, storage  # noqa: F401
from tests.workflow.conftest import copied


def without():
    try:
        import snakemake_executor_plugin_kubernetes  # noqa: F401
    except ModuleNotFoundError:
        return "no executor plugin: uv run --extra cluster"
    return lacking()


def begun(project, *arguments, **environment):
    command = [sys.executable, "-m", "snakemake", "--configfile", "one.yaml", *arguments]
    given = dict(os.environ) | environment
    log = (project / "run.log").open("a")
    return subprocess.Popen(command, cwd=project, env=given, stdout=log, stderr=log)


def decoding(pods):
    """Names of pods that decode now."""
    for name, process in list(pods.running.items()):
        args = pods.specs.get(name, {}).get("spec", {}).get("template", {}).get("spec", {}).get("containers", [{}])
        if process.poll() is None and "decode" in str(args[0].get("args")):
            yield name


@pytest.mark.slow
@pytest.mark.skipif(bool(without()), reason=without())
def test_pods_give_the_tokens_and_the_page_of_one_machine(tmp_path, endpoint):  # noqa: F811
    client = storage(endpoint)
    client.create_bucket(Bucket="parity")
    here, there = (copied(tmp_path / name) for name in ("here", "there"))
    for project in (here, there):
        (project / "one.yaml").write_text(ONE)
        subprocess.run("git init -q && git add .", shell=True, cwd=project, check=True)  # sources are what git lists
    assert begun(here, "--cores", "2", "--resources", "gpu=0").wait(900) == 0, (here / "run.log").read_text()
    cluster = tmp_path / "cluster"
    cluster.mkdir()
    to = ["--profile", "profiles/kubernetes", "--container-image", "none", "--resources", "gpu=0"]
    to += ["--default-storage-prefix", "s3://parity/run", "--storage-s3-endpoint-url", endpoint]
    to += ["--storage-s3-region", "us-east-1", "--seconds-between-status-checks", "1"]
    keys = {"SNAKEMAKE_STORAGE_S3_ACCESS_KEY": "a", "SNAKEMAKE_STORAGE_S3_SECRET_KEY": SECRET}
    with one_api.kubernetes(cluster) as pods:
        run, evicted = begun(there, *to, KUBECONFIG=str(cluster / "config"), **keys), ""
        try:
            end = time.monotonic() + 2400
            while run.poll() is None and time.monotonic() < end:
                if not evicted and (evicted := next(decoding(pods), "")):
                    pods.delete(evicted)
                time.sleep(0.3)
            assert run.poll() == 0, (there / "run.log").read_text()[-5000:]
        finally:
            run.kill()
            run.wait()
        assert evicted and pods.codes[evicted] == 128 + 9
        asked = [s["spec"]["template"]["spec"]["containers"][0]["resources"]["requests"] for s in pods.every]
        assert {r.get("nvidia.com/gpu") for r in asked} == {None, "0"}  # jobs that name no device, and the others
    same_in_bucket(client, here, there, tmp_path)
