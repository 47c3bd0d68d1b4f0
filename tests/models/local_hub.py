"""A hub on localhost, with faults: what huggingface_hub asks for, and plain files, of one repository."""

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

REPO, COMMIT = "owner/name", "0123abcd" * 5
CODES = {401: "GatedRepo", 404: "EntryNotFound"}


class Hub(ThreadingHTTPServer):
    """files: name -> bytes; fault: what is wrong with the next `times` answers that give a file's bytes."""

    daemon_threads = True

    def __init__(self, files):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files, self.fault, self.times, self.asked = files, "", 0, []
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def address(self):
        return f"http://127.0.0.1:{self.server_port}"

    def break_it(self, fault, times=10**6):
        self.fault, self.times = fault, times

    def handle_error(self, request, client_address):
        """A client that goes away is what is tested."""

    def close(self):
        self.shutdown()
        self.server_close()


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def say(self, code, body=b"", **headers):
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
        hub.asked.append((self.command, path, self.headers.get("Range")))
        name = path.removeprefix(f"/{REPO}/resolve/{COMMIT}/").removeprefix("/plain/")
        fault = ""
        asked_for = name != path and (self.command == "GET" or hub.fault in ("401", "404"))
        if asked_for and hub.times > 0 and hub.fault:
            fault, hub.times = hub.fault, hub.times - 1
        if path.startswith("/api/models/"):
            if COMMIT not in path and path != f"/api/models/{REPO}":
                return self.say(404, b"{}", X_Error_Code="RevisionNotFound")
            return self.say(200, self.listing(path), Content_Type="application/json")
        if name == path or name not in hub.files:
            return self.say(404, X_Error_Code="EntryNotFound" if COMMIT in path else "RevisionNotFound")
        if fault.isdigit():
            return self.say(int(fault), b"no", X_Error_Code=CODES[int(fault)])
        self.file(hub.files[name], fault)

    def listing(self, path):
        files = self.server.files
        if "/tree/" in path:
            said = [
                {"type": "file", "path": n, "size": len(b), "oid": hashlib.sha1(b).hexdigest()}
                for n, b in files.items()
            ]
        else:
            siblings = [{"rfilename": n, "size": len(b)} for n, b in files.items()]
            said = {"id": REPO, "sha": COMMIT, "siblings": siblings}
        return json.dumps(said).encode()

    def file(self, body, fault):
        named = {"X_Repo_Commit": COMMIT, "ETag": f'"{hashlib.sha256(body).hexdigest()}"', "Accept_Ranges": "bytes"}
        if fault == "a page":
            return self.say(200, b"<!doctype html><html>sign in</html>", **named)
        begun = int((self.headers.get("Range") or "bytes=0-")[6:-1])
        if begun >= len(body):
            return self.say(416)
        rest = body[begun:] if fault != "corrupts" else bytes(len(body) - begun)
        whole = {"Content_Range": f"bytes {begun}-{len(body) - 1}/{len(body)}"} if begun else {}
        return self.say(206 if begun else 200, rest, **named, **whole)
