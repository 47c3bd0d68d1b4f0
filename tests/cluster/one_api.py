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

AT_ONCE = 2
# The plugin has each pod install what it stores with; an image that holds the extra `cluster` has it.
PIP = "#!/bin/sh\nexit 0\n"


class Pods:
    """The jobs by their name: what was asked, and how they ended."""

    def __init__(self, folder: Path):
        self.folder, self.lock, self.room = folder, threading.Lock(), threading.Semaphore(AT_ONCE)
        self.specs: dict[str, dict] = {}
        self.every: list[dict] = []  # of those that were deleted too
        self.codes: dict[str, int | None] = {}  # None: waits or runs
        self.running: dict[str, subprocess.Popen] = {}
        self.secrets: dict[str, dict[str, str]] = {}
        (folder / "bin").mkdir()
        (folder / "bin/pip").write_text(PIP)
        (folder / "bin/pip").chmod(0o755)

    def environment(self, container: dict) -> dict[str, str]:
        path = os.pathsep.join([str(self.folder / "bin"), str(Path(sys.executable).parent), "/usr/bin", "/bin"])
        found = {"PATH": path, "HOME": str(self.folder / "home"), "OMP_NUM_THREADS": "1"}
        for each in container.get("env") or []:
            key = each["valueFrom"]["secretKeyRef"]
            found[each["name"]] = base64.b64decode(self.secrets[key["name"]][key["key"]]).decode()
        return found

    def create(self, body: dict) -> None:
        name = body["metadata"]["name"]
        with self.lock:
            self.specs[name], self.codes[name] = body, None
            self.every.append(body)
        threading.Thread(target=self.run, args=(name,), daemon=True).start()

    def run(self, name: str) -> None:
        container = self.specs[name]["spec"]["template"]["spec"]["containers"][0]
        workdir = self.folder / name
        workdir.mkdir()
        with self.room:
            with (self.folder / f"{name}.log").open("wb") as log, self.lock:
                if name not in self.specs:  # deleted while it waited
                    return
                self.running[name] = subprocess.Popen(
                    [*container["command"], *container["args"]], cwd=workdir, env=self.environment(container),
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                )  # fmt: skip
            code = self.running[name].wait()
        with self.lock:
            self.codes[name] = code if code >= 0 else 128 - code

    def delete(self, name: str) -> None:
        """As an evicted pod: what runs is killed."""
        with self.lock:
            process = self.running.get(name)
        if process is not None and process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    def forget(self, name: str) -> None:
        self.delete(name)
        with self.lock:
            self.specs.pop(name, None)

    def status(self, name: str) -> dict:
        code = self.codes[name]
        return {} if code is None else {"succeeded": 1} if code == 0 else {"failed": 1}

    def pod(self, name: str) -> dict:
        code = self.codes[name]
        state = {"running": {}} if code is None else {"terminated": {"exitCode": code}}
        of = {"name": "snakemake", "state": state, "image": "", "imageID": "", "ready": False, "restartCount": 0}
        return {"metadata": {"name": f"{name}-pod"}, "status": {"containerStatuses": [of]}}


class Handler(BaseHTTPRequestHandler):
    pods: Pods

    def log_message(self, *_: object) -> None:
        pass

    def said(self, what: dict | str, code: int = 200) -> None:
        data = what.encode() if isinstance(what, str) else json.dumps(what).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def body(self) -> dict:
        return json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or "{}")

    def do_POST(self) -> None:
        body = self.body()
        if self.path.endswith("/secrets"):
            self.pods.secrets[body["metadata"]["name"]] = body.get("data") or {}
        else:
            self.pods.create(body)
        self.said(body, 201)

    def do_DELETE(self) -> None:
        self.body()
        if found := re.search(r"/jobs/([^/?]+)", self.path):
            self.pods.forget(found[1])
        self.said({"kind": "Status", "status": "Success"})

    def do_GET(self) -> None:
        if found := re.search(r"/jobs/([^/?]+)/status", self.path):
            name = found[1]
            if name not in self.pods.specs:
                return self.said({"kind": "Status", "code": 404}, 404)
            return self.said(self.pods.specs[name] | {"status": self.pods.status(name)})
        if found := re.search(r"labelSelector=job-name%3D([^&]+)", self.path):
            pods = [self.pods.pod(found[1])] if found[1] in self.pods.running else []
            return self.said({"kind": "PodList", "items": pods})
        if found := re.search(r"/pods/([^/?]+)-pod/log", self.path):
            return self.said((self.pods.folder / f"{found[1]}.log").read_text())
        return self.said({"kind": "Status", "code": 404}, 404)


@contextlib.contextmanager
def kubernetes(folder: Path) -> Iterator[Pods]:
    """Its pods, while it lives; KUBECONFIG is `folder/config`."""
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
