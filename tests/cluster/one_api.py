"""A Kubernetes of one machine, as far as Snakemake's plugin asks: a server of its API whose pods are processes here.

A pod has an empty folder of its own, the environment that its image would have and its secrets, and nothing else of the
machine that submits. As many pods run at once as the nodes have room for; the rest wait.
"""

import base64
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

PODS_AT_ONCE = 2
# The plugin lets each pod install the storage plugin, which an image with the extra `cluster` already has.
PIP = "#!/bin/sh\nexit 0\n"


class Pods:
    """Jobs by name: their specifications and how they ended."""

    def __init__(self, folder: Path):
        """Start without jobs, and write a `pip` that does nothing to the folder."""
        self.folder = folder
        self.lock = threading.Lock()
        self.room = threading.Semaphore(PODS_AT_ONCE)
        self.specs: dict[str, dict] = {}
        self.created: list[dict] = []  # all jobs, also those that were deleted later
        self.codes: dict[str, int | None] = {}  # exit codes; None while a job waits or runs
        self.running: dict[str, subprocess.Popen] = {}
        self.secrets: dict[str, dict[str, str]] = {}
        (folder / "bin").mkdir()
        (folder / "bin/pip").write_text(PIP)
        (folder / "bin/pip").chmod(0o755)

    def make_environment(self, container: dict) -> dict[str, str]:
        """Make the environment of a pod: a PATH whose `pip` does nothing, its home, and its container's secrets."""
        path = os.pathsep.join([str(self.folder / "bin"), str(Path(sys.executable).parent), "/usr/bin", "/bin"])
        environment = {"PATH": path, "HOME": str(self.folder / "home"), "OMP_NUM_THREADS": "1"}
        for variable in container.get("env") or []:
            reference = variable["valueFrom"]["secretKeyRef"]
            environment[variable["name"]] = base64.b64decode(self.secrets[reference["name"]][reference["key"]]).decode()
        return environment

    def create(self, body: dict) -> None:
        """Store the job that a request's body specifies, and start it in a thread."""
        name = body["metadata"]["name"]
        with self.lock:
            self.specs[name] = body
            self.codes[name] = None
            self.created.append(body)
        threading.Thread(target=self.run, args=(name,), daemon=True).start()

    def run(self, name: str) -> None:
        """Wait for room, run the job's command in an empty folder with its output in NAME.log, and store its exit code;
        a job that was deleted while it waited does not run."""
        container = self.specs[name]["spec"]["template"]["spec"]["containers"][0]
        workdir = self.folder / name
        workdir.mkdir()
        with self.room:
            with (self.folder / f"{name}.log").open("wb") as log, self.lock:
                if name not in self.specs:  # the job was deleted while it waited
                    return
                self.running[name] = subprocess.Popen(
                    [*container["command"], *container["args"]], cwd=workdir, env=self.make_environment(container),
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                )  # fmt: skip
            code = self.running[name].wait()
        with self.lock:
            self.codes[name] = code if code >= 0 else 128 - code

    def delete(self, name: str) -> None:
        """Kill what runs in a pod, as an eviction does."""
        with self.lock:
            process = self.running.get(name)
        if process is not None and process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    def forget(self, name: str) -> None:
        """Kill what runs of a job and remove its specification, as a request to delete it does."""
        self.delete(name)
        with self.lock:
            self.specs.pop(name, None)

    def make_status(self, name: str) -> dict:
        """Make the `status` of a job in the API's form: empty while it waits or runs, else succeeded or failed."""
        code = self.codes[name]
        return {} if code is None else {"succeeded": 1} if code == 0 else {"failed": 1}

    def make_pod(self, name: str) -> dict:
        """Make the description of a job's pod in the API's form, with its exit code once it has ended."""
        code = self.codes[name]
        state = {"running": {}} if code is None else {"terminated": {"exitCode": code}}
        status = {"name": "snakemake", "state": state, "image": "", "imageID": "", "ready": False, "restartCount": 0}
        return {"metadata": {"name": f"{name}-pod"}, "status": {"containerStatuses": [status]}}


class Handler(BaseHTTPRequestHandler):
    pods: Pods

    def log_message(self, *_: object) -> None:
        pass

    def answer(self, content: dict | str, code: int = 200) -> None:
        """Send a text, or a dictionary as JSON, with a status code."""
        data = content.encode() if isinstance(content, str) else json.dumps(content).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def read_body(self) -> dict:
        """Read the JSON of the request's body; an empty dictionary if it has none."""
        return json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or "{}")

    def do_POST(self) -> None:
        """Store the secret or create the job that the body specifies, and answer with the body."""
        body = self.read_body()
        if self.path.endswith("/secrets"):
            self.pods.secrets[body["metadata"]["name"]] = body.get("data") or {}
        else:
            self.pods.create(body)
        self.answer(body, 201)

    def do_DELETE(self) -> None:
        """Delete the job that the path names, and answer with success in any case."""
        self.read_body()
        if match := re.search(r"/jobs/([^/?]+)", self.path):
            self.pods.forget(match[1])
        self.answer({"kind": "Status", "status": "Success"})

    def do_GET(self) -> None:
        """Answer with a job's status, a job's pods or a pod's log, as the path asks; 404 for anything else."""
        if match := re.search(r"/jobs/([^/?]+)/status", self.path):
            name = match[1]
            if name not in self.pods.specs:
                return self.answer({"kind": "Status", "code": 404}, 404)
            return self.answer(self.pods.specs[name] | {"status": self.pods.make_status(name)})
        if match := re.search(r"labelSelector=job-name%3D([^&]+)", self.path):
            pods = [self.pods.make_pod(match[1])] if match[1] in self.pods.running else []
            return self.answer({"kind": "PodList", "items": pods})
        if match := re.search(r"/pods/([^/?]+)-pod/log", self.path):
            return self.answer((self.pods.folder / f"{match[1]}.log").read_text())
        return self.answer({"kind": "Status", "code": 404}, 404)


@contextlib.contextmanager
def serve_kubernetes(folder: Path) -> Iterator[Pods]:
    """Serve the API while the block runs and yield its pods; write `folder/config` for KUBECONFIG."""
    pods = Pods(folder)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Of", (Handler,), {"pods": pods}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    config = {
        "apiVersion": "v1", "kind": "Config", "current-context": "one",
        "clusters": [{"name": "one", "cluster": {"server": address}}],
        "users": [{"name": "one", "user": {}}],
        "contexts": [{"name": "one", "context": {"cluster": "one", "user": "one"}}],
    }  # fmt: skip
    (folder / "config").write_text(json.dumps(config))
    try:
        yield pods
    finally:
        for name in list(pods.running):
            pods.delete(name)
        server.shutdown()
        server.server_close()
