"""The machine, as the workflow needs it. Imports no torch, because the Snakefile imports it when parsed."""

import fcntl
import os
import platform
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from parity.base.errors import ParityError

COMMAND = "PARITY_COMMAND"  # this environment variable holds the command as it was typed; the report shows it
SECRET = re.compile(r"(key|token|password|secret|auth|credentials)$")  # no page may show values of flags that end so
PROBABILITIES = 1 << 26  # this many are held at once where whole distributions are computed: 256 MiB in float32


def describe_machine() -> dict[str, str | int]:
    """Describe the machine for a page: the processor, its cores, and the load averages of the last minutes."""
    load = ", ".join(f"{one:.2f}" for one in os.getloadavg())
    return {
        "processor": read_processor(),
        "cores": os.cpu_count() or 0,
        "load over 1, 5 and 15 minutes": f"{load} when the page was made",
    }


def read_processor() -> str:
    """Read the processor's model name, from /proc/cpuinfo if that exists."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return model or platform.processor() or platform.machine()


def describe_hardware(gpu_name: str = "") -> str:
    """Describe in a line what a job's seconds depend on: the GPU `gpu_name`, if any, the processor, its cores."""
    return ", ".join(filter(None, [gpu_name, read_processor(), f"{os.cpu_count()} cores"]))


def identify_machine() -> str:
    """Name the hardware that timings depend on: the first GPU's model, or without a GPU the processor and its cores."""
    if gpu():
        files = sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))
        names = re.findall(r"^Model:\s*(.+)$", files[0].read_text(), re.MULTILINE) if files else []
        return names[0] if names else "a GPU"
    return describe_hardware()


def cores() -> int:
    """Count the cores that this process may use; all on macOS, which sets no such bounds."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def redact_command(words: Sequence[str]) -> str:
    """Join the words of a typed command to a line in which the values of flags such as --token, --key and --password
    are replaced by "...", because others read the page."""
    lines = []
    hide_next = False
    for word in words:
        flag, equals, _ = word.partition("=")
        secret = word.startswith("-") and bool(SECRET.search(flag))
        lines.append(f"{flag}=..." if secret and equals else "..." if hide_next and not word.startswith("-") else word)
        hide_next = (secret and not equals) or (hide_next and not word.startswith("-"))
    return shlex.join(lines)


def describe_commit(folder: Path) -> str:
    """Return the short hash of the commit checked out in the repository that tracks a folder, with " with changes"
    after it if tracked files there differ; a remark if no repository tracks it."""

    def git(*words: str) -> str:
        """Run git in the folder and return what it prints; "" if it fails or takes over ten seconds."""
        try:
            result = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, timeout=10)
        except (OSError, subprocess.TimeoutExpired):
            return ""
        return result.stdout.strip() if result.returncode == 0 else ""

    if not git("ls-files", "--", "."):  # the folder may be inside a repository that does not track it
        return "not known (no repository)"
    changed = " with changes" if git("status", "--porcelain", "-uno", "--", ".") else ""
    return git("rev-parse", "--short=12", "HEAD") + changed


def gpu() -> int:
    """Return 1 if this machine has an NVIDIA GPU that CUDA_VISIBLE_DEVICES does not hide, otherwise 0: the `gpu`
    resource that a job asks of the machine it is on."""
    return int(Path("/dev/nvidia0").exists() and os.environ.get("CUDA_VISIBLE_DEVICES", "0") not in ("", "-1"))


def resolve_device(device: str) -> str:
    """Resolve the value of `--device` to a device's name. A number is how many GPUs the job was given, because a plan
    made on one machine may run on another: 0 is "cpu", more is "cuda", or "cpu" with a remark on stderr if there is no
    GPU here. Any other value is returned unchanged."""
    if not device.isdecimal():
        return device
    if int(device) and not gpu():
        print("a device was given, and this machine has none: computing on its CPU", file=sys.stderr)
    return "cuda" if int(device) and gpu() else "cpu"


def lock_folder(folder: Path) -> IO[str]:
    """Make a folder and lock the file run.lock in it until this process ends; return that file, opened. Raises
    ParityError if another process has the lock, or the folder cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / "run.lock").open("a", encoding="utf-8")
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ParityError(f"{folder.parent}: another run works in this folder; allowed: one at a time") from None
    except OSError as error:
        raise ParityError(f"{folder}: cannot be written ({error.strerror}); allowed: --directory FOLDER") from None
    return file


def note_lost_record(results: Path, record: Path, note: Path) -> str:
    """If the folder `results` holds results and `record`, the folder where Snakemake keeps what each was made from, is
    missing or empty, write a new `note`: first jobs have it as an input, so that all is made anew. Return a line that
    says so; "" if nothing is lost. Raises ParityError if the note cannot be written."""
    made = (file for folder in results.glob("*") if folder.name != "store" for file in folder.rglob("*"))
    if (record.is_dir() and any(record.iterdir())) or not any(file.is_file() for file in made):
        return ""
    line = f"{results}: made anew, because {record} is empty, where Snakemake keeps what results were made from"
    try:
        note.write_text(f"{line} ({time.ctime()})\n", encoding="utf-8")
    except OSError as error:
        raise ParityError(f"{note}: cannot be written ({error.strerror}); allowed: --directory FOLDER") from None
    return f"{line}; shards that were decoded with the same settings are used again"


def check_place(folder: Path) -> None:
    """Raise ParityError for a folder whose name Snakemake would read as a pattern."""
    if set(str(folder)) & set("{}"):
        raise ParityError(f"{folder}: Snakemake takes braces for wildcards; allowed: a folder without {{ and }}")


def use_package(*sources: Path, is_main: bool = True) -> None:
    """Set PYTHONPATH to `sources` and put this interpreter first on PATH, for the commands of rules. If the workflow is
    not `is_main` but a module of another, what PYTHONPATH held stays after `sources`."""
    inherited = [] if is_main else list(filter(None, [os.environ.get("PYTHONPATH")]))
    os.environ["PYTHONPATH"] = os.pathsep.join([*map(str, dict.fromkeys(sources)), *inherited])
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])


def limit_rows(most: int, length: int, vocab: int) -> int:
    """Return how many rows of distributions [length, vocab] are computed at once: `most`, or fewer that hold
    PROBABILITIES together, at least one."""
    return max(1, min(most, PROBABILITIES // (length * vocab)))
