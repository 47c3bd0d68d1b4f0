"""A folder in which the small experiment is run, disturbed and run again; prepared once, copied for each fault."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from parity.base.errors import ParityError
from parity.base.forks.client import NAME

LAYERS = {"equality": {"n": 10_000, "long": 0}}
EXPERIMENTS: dict[str, dict[str, Any]] = {  # each of a few shards
    "image": {
        "models": {"scenes": {"source": "embedded", "grid": 8}},
        "prompts": {"file": "prompts/scenes.txt", "limit": 4, "shards": 2},
        "methods": {"ar": [{}], "sjd": [{"window": 16}]},
        "reference_images": 64,
    },
    "text": {
        "methods": {"sequential": [{}], "assd": [{"k": 5}]},
        "tasks": {"infilling": [{"rows": 4, "length": 32, "masked": 0.9}]},
    },
}
READY = {  # rules whose files are there when decoding begins
    "image": ["--until", "captions", "specification"],
    "text": ["--until", "task", "specification"],
}
DECODE = ["--until", "decode"]
WHOLE = ["--until", "measure"]  # the tests of the tests are no file that is made otherwise, and take minutes
LONGEST = 300.0  # seconds after which a run hangs
WORDS = re.compile(r"^\s*(error: .*\S)\s*$", re.MULTILINE)


@dataclass
class Ended:
    """How a run of Snakemake ended: its exit code (negative: a signal; None: it did not), and what it printed."""

    code: int | None
    text: str
    seconds: float

    @property
    def told(self) -> list[str]:
        """The lines that say what is wrong, each once."""
        return list(dict.fromkeys(WORDS.findall(self.text)))

    @property
    def traceback(self) -> bool:
        return "Traceback (most recent call last)" in self.text


class Run:
    """A run of Snakemake that goes on; `warm`: its jobs fork from this command's process, not from one of its own."""

    def __init__(self, command: Sequence[str], folder: Path, warm: bool):
        environment = {k: v for k, v in os.environ.items() if warm or k != NAME}
        self.output, self.began = folder / f".said-{time.time_ns()}", time.monotonic()
        with self.output.open("wb") as stream:
            self.process = subprocess.Popen(
                command, cwd=folder, env=environment, start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=stream, stderr=subprocess.STDOUT,
            )  # fmt: skip

    def alive(self) -> bool:
        return self.process.poll() is None

    def until(self, moment: float) -> float:
        """Wait until so many seconds have passed since it began, or it has ended; how many have."""
        while self.alive() and time.monotonic() - self.began < moment:
            time.sleep(0.02)
        return time.monotonic() - self.began

    def ended(self) -> Ended:
        """Wait for its end; one that hangs is killed."""
        code: int | None
        try:
            code = self.process.wait(LONGEST)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            code = None
        text = self.output.read_text(encoding="utf-8", errors="replace")
        self.output.unlink()
        return Ended(code, text, time.monotonic() - self.began)


class Watch:
    """Counts how often each shard is decoded to its end from now on: its file in the store is then another, by its
    number. Its time is no sign, for Snakemake touches what a job has made, and a cell's file is the store's."""

    def __init__(self, store: Path):
        self.store, self.seen, self.open = store, set[tuple[str, int]](), True
        self.look()
        self.thread = threading.Thread(target=self.watch, daemon=True)
        self.thread.start()

    def watch(self) -> None:
        while self.open:
            self.look()
            time.sleep(0.05)

    def look(self) -> None:
        for file in self.store.glob("[!.]*.npz"):
            with contextlib.suppress(OSError):
                self.seen.add((file.name, file.stat().st_ino))

    def end(self) -> int:
        """Shards decoded again."""
        self.open = False
        self.thread.join()
        self.look()
        return len(self.seen) - len({name for name, *_ in self.seen})


@dataclass
class Place:
    """The folder `work` of the run; beside it copies of it as they were before decoding and when all was done."""

    folder: Path
    workflow: Path  # the folder of the Snakefile
    experiment: str = "image"  # of EXPERIMENTS
    cores: int = 2
    goal: list[str] = field(default_factory=list)  # of the run that is disturbed, and of those after it
    watch: Watch | None = None  # since the first run in a folder that was restored
    seen: dict[str, float] = field(default_factory=dict)  # seconds of the last runs that nothing disturbed in time

    @property
    def work(self) -> Path:
        return self.folder / "work"

    @property
    def results(self) -> Path:
        return self.work / "results"

    @property
    def reach(self) -> str:
        """How far the goal goes."""
        return "decode" if self.goal == DECODE else "whole"

    @property
    def seconds(self) -> float:
        """What the run of this goal takes when nobody disturbs it, as last seen."""
        return self.seen.get(self.reach) or json.loads((self.folder / "seconds.json").read_text())[self.reach]

    def took(self, seconds: float) -> None:
        """A run of this goal ended after so many seconds: the machine is not as busy as it was."""
        self.seen[self.reach] = seconds

    def start(self, *before: str, warm: bool = False) -> Run:
        """Begin a run of the goal; `before` stands before the command, to limit what it may do."""
        self.watch = self.watch or Watch(self.results / "store")
        told = ["--cores", str(self.cores), "--resources", "gpu=0", "--configfile", str(self.folder / "faults.yaml")]
        here = ["--snakefile", str(self.workflow / "Snakefile"), "--directory", str(self.work)]
        return Run([*before, sys.executable, "-m", "snakemake", *here, *told, *self.goal], self.work, warm)

    def run(self) -> Ended:
        """A run that nobody disturbs. It is warm, which halves what a fault costs."""
        return self.start(warm=True).ended()

    def watched(self) -> int:
        """Shards that were decoded to their end twice since the folder was restored."""
        twice, self.watch = self.watch.end() if self.watch else 0, None
        return twice

    def processes(self) -> list[int]:
        """What runs in the folder: Snakemake, shells, clients, the process that jobs fork from, jobs."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if Path(os.readlink(entry / "cwd")).is_relative_to(self.work) and int(entry.name) != os.getpid():
                    found.append(int(entry.name))
            except OSError:
                continue
        return sorted(found)

    def clear(self) -> None:
        """Kill what still runs in the folder."""
        while left := self.processes():
            for pid in left:
                killed(pid)
            time.sleep(0.02)

    def restore(self, state: str) -> None:
        """The folder as it was: `ready` to decode, or `finished`."""
        self.clear()
        self.watched()
        shutil.rmtree(self.work, ignore_errors=True)
        subprocess.run(["cp", "-a", str(self.folder / state), str(self.work)], check=True)

    def keep(self, state: str) -> None:
        self.clear()
        subprocess.run(["cp", "-a", str(self.work), str(self.folder / state)], check=True)

    def prepare(self, last: str = "finished") -> None:
        """Run the experiment undisturbed, once, to the state `last`; nothing where the folder holds it. ParityError
        where it fails."""
        if (self.folder / "seconds.json").exists():
            return
        shutil.rmtree(self.folder, ignore_errors=True)
        self.work.mkdir(parents=True)
        told = {"experiment": "faults", self.experiment: EXPERIMENTS[self.experiment], **LAYERS}
        (self.folder / "faults.yaml").write_text(json.dumps(told))
        seconds, ready = {}, READY[self.experiment]
        for name, goal, state in (("", ready, "ready"), ("decode", DECODE, "decoded"), ("whole", WHOLE, "finished")):
            self.goal = goal
            done = self.run()
            if done.code != 0:
                raise ParityError(f"{self.folder}: the undisturbed run fails: {(done.told or ['no line says why'])[0]}")
            seconds[name] = done.seconds
            self.keep(state)
            if state == last:
                break
        (self.folder / "seconds.json").write_text(json.dumps(seconds))


def killed(pid: int, number: int = signal.SIGKILL) -> bool:
    """Whether a process was there to be sent the signal."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def snakefile() -> Path:
    """The folder of the workflow: the current one, or the clone that this module is of."""
    for folder in (Path.cwd(), Path(__file__).parents[3]):
        if (folder / "Snakefile").is_file() and (folder / "workflow/rules").is_dir():
            return folder
    raise ParityError("no Snakefile here; allowed: the folder of the repository")
