"""A headless Chromium, driven over its debugging protocol through a pipe: no library needed.

with Browser() as browser:
    page = browser.open(file, width=420, dark=True)
    page.ask("document.title")
"""

import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Browser:
    """One browser with one page at a time; `events` is what it told of the page that is open."""

    def __enter__(self) -> "Browser":
        self.folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        (theirs, self.out), (self.inp, ours) = os.pipe(), os.pipe()  # the browser reads from 3 and writes to 4
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-pipe"]
        command = [CHROMIUM, *flags, f"--user-data-dir={self.folder.name}", "about:blank"]
        pipes, quiet = f'exec "$@" 3<&{theirs} 4>&{ours}', subprocess.DEVNULL
        self.process = subprocess.Popen(
            ["bash", "-c", pipes, "bash", *command], pass_fds=(theirs, ours), stdout=quiet, stderr=quiet
        )
        os.close(theirs), os.close(ours)
        self.number, self.rest, self.events, self.session = 0, b"", [], ""
        return self

    def __exit__(self, *_: Any) -> None:
        self.process.terminate()
        self.process.wait(10)
        os.close(self.out), os.close(self.inp)
        self.folder.cleanup()

    def message(self) -> dict[str, Any]:
        while b"\0" not in self.rest:
            got = os.read(self.inp, 1 << 20)
            if not got:
                raise RuntimeError("chromium ended")
            self.rest += got
        one, self.rest = self.rest.split(b"\0", 1)
        return json.loads(one)

    def call(self, method: str, **given: Any) -> dict[str, Any]:
        self.number += 1
        session = {"sessionId": self.session} if self.session else {}
        said = {"id": self.number, "method": method, "params": given, **session}
        os.write(self.out, json.dumps(said).encode() + b"\0")
        while True:
            got = self.message()
            if got.get("id") == self.number:
                if "error" in got:
                    raise RuntimeError(f"{method}: {got['error']['message']}")
                return got["result"]
            self.events.append(got)

    def open(self, file: Path, width: int = 1400, dark: bool = False, scripts: bool = True) -> "Browser":
        """A file in a fresh page of this width, as soon as it stands and its packed data are shown."""
        self.session, self.events = "", []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setScriptExecutionDisabled", value=not scripts)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=scheme)
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        self.call("Page.navigate", url=file.absolute().as_uri())
        ready = "document.readyState == 'complete' && location.protocol == 'file:'"
        shown = " && !document.querySelector('.packed > .instead:not([hidden])')" * scripts
        begin = time.monotonic()
        while not self.ask(ready + shown):
            if time.monotonic() > begin + 20:
                raise RuntimeError(f"{file.name}: not shown within 20 seconds")
            time.sleep(0.05)
        return self

    def ask(self, script: str) -> Any:
        """The value of an expression in the page, awaited."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise RuntimeError(found["exceptionDetails"]["exception"].get("description", script))
        return found["result"].get("value")

    def said(self, method: str) -> list[dict[str, Any]]:
        return [e["params"] for e in self.events if e.get("method") == method]
