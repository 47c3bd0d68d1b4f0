"""A hub on localhost with one repository: it answers huggingface_hub, serves plain files, and can be faulty."""

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

REPO, COMMIT = "owner/name", "0123abcd" * 5
CODES = {401: "GatedRepo", 404: "EntryNotFound"}


class Hub(ThreadingHTTPServer):
    """A server of `files`, bytes by name, that lists its `requests`. `fault` is a status code or "a page" or
    "corrupts", what is wrong with answers that send a file; "" for nothing."""

    daemon_threads = True

    def __init__(self, files):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = files
        self.fault = ""
        self.requests = []
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def address(self):
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request, client_address):
        """Ignore a client that disconnects, which is tested."""

    def close(self):
        self.shutdown()
        self.server_close()


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def answer(self, code, body=b"", **headers):
        """Send a status code, headers whose names have `_` for `-`, and the body unless the request is HEAD."""
        self.send_response(code)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        path, hub = urlsplit(self.path).path, self.server
        hub.requests.append((self.command, path))
        if path.startswith("/api/models/"):
            if COMMIT not in path and path != f"/api/models/{REPO}":
                return self.answer(404, b"{}", X_Error_Code="RevisionNotFound")
            return self.answer(200, self.listing("/tree/" in path), Content_Type="application/json")
        name = path.removeprefix(f"/{REPO}/resolve/{COMMIT}/").removeprefix("/plain/")
        if name == path or name not in hub.files:
            return self.answer(404, X_Error_Code="EntryNotFound" if COMMIT in path else "RevisionNotFound")
        if hub.fault.isdigit():
            return self.answer(int(hub.fault), b"no", X_Error_Code=CODES.get(int(hub.fault), ""))
        body = hub.files[name]
        etag = f'"{hashlib.sha256(body).hexdigest()}"'
        if self.command == "GET":
            faults = {"a page": b"<!doctype html><html>sign in</html>", "corrupts": bytes(len(body))}
            body = faults.get(hub.fault, body)
        return self.answer(200, body, X_Repo_Commit=COMMIT, ETag=etag)

    def listing(self, tree):
        """Make the JSON by which the hub describes the repository, or if `tree` its files with sizes and digests."""
        files = self.server.files
        if tree:
            oids = {n: hashlib.sha1(b).hexdigest() for n, b in files.items()}
            return json.dumps(
                [{"type": "file", "path": n, "size": len(files[n]), "oid": oids[n]} for n in oids]
            ).encode()
        siblings = [{"rfilename": n, "size": len(b)} for n, b in files.items()]
        return json.dumps({"id": REPO, "sha": COMMIT, "siblings": siblings}).encode()
