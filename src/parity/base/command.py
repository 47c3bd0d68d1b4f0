"""What the commands of the workflow share: flags, one-line errors, pinned threads, progress, versions."""

import argparse
import atexit
import contextlib
import errno
import importlib.metadata
import os
import platform
import re
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from parity.base.errors import ParityError
from parity.base.files import numbered_files
from parity.base.machine import cores, placed

T = TypeVar("T")
PACKAGES = ("torch", "transformers", "numpy", "scipy", "snakemake", "clean-fid", "open_clip_torch", "torch-fidelity")


MENDED = {  # what the system refuses, and what ends it
    errno.ENOSPC: "make room",
    errno.EDQUOT: "make room",
    errno.EFBIG: "allow larger files",
    errno.EROFS: "let it be written",
    errno.EACCES: "let it be read and written",
    errno.EPERM: "let it be read and written",
}
SCARCE = re.compile("allocate memory|out of memory", re.IGNORECASE)  # torch's words for a CPU and for a GPU
FLAGS: dict[str, dict[str, Any]] = {
    "threads": {"type": int, "default": 1},
    "device": {"default": "cpu", "type": placed},
    "batch": {"type": int, "default": 32},
}


class Files(argparse.Action):
    """Several files, by name or by one name with a star for their number (`files.apart`)."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option: Any = None) -> None:
        setattr(namespace, self.dest, [file for name in values for file in numbered_files(name)])


def arguments(parser: argparse.ArgumentParser, *names: str) -> None:
    """Flags that recur: threads, device and batch as in FLAGS, any other name a path, as `--name`.

    A path is required, unless it ends in "?" (one or none: None), "+" (one or more) or "*" (any number: []).
    """
    for name in names:
        flag, many = name.rstrip("?+*"), name[-1]
        if flag in FLAGS:
            parser.add_argument(f"--{flag}", **FLAGS[flag])
        elif many in "+*":
            parser.add_argument(f"--{flag}", type=Path, nargs=many, required=many == "+", default=[], action=Files)
        else:
            parser.add_argument(f"--{flag}", type=Path, required=many != "?")


def one_line(main: Callable[[], None]) -> None:
    """Run a command; what the user can mend (ParityError, a full disk, a folder that cannot be written, too little
    memory) is one line and exit code 1, anything else a traceback.

    A log ends with what the job cost.
    """
    try:
        main()
        if not sys.stderr.isatty():
            print(cost(), file=sys.stderr)
    except ParityError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second one has nothing to add
        print("stopped", file=sys.stderr)
        raise SystemExit(130) from None
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and not SCARCE.search(str(error)):
            raise
        problem = ParityError(f"too little memory ({str(error)[:200] or 'of the process'}); run again with more")
        print(f"error: {problem}", file=sys.stderr)
        raise SystemExit(1) from None
    except OSError as error:
        if error.errno not in MENDED:
            raise
        what = ParityError(f"{error.filename or 'a file'}: {error.strerror}; {MENDED[error.errno]} and run again")
        print(f"error: {what}", file=sys.stderr)
        raise SystemExit(1) from None


def cost() -> str:
    """CPU-seconds and peak memory of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    unit = 2**20 if sys.platform == "darwin" else 2**10  # macOS counts bytes, Linux kibibytes
    return f"cost: {used.ru_utime + used.ru_stime:.2f} CPU-seconds, {used.ru_maxrss // unit} MiB"


def pin_threads(threads: int) -> None:
    """As many threads as the rule was given: jobs run side by side, and torch on too many is a hundred times slower."""
    import torch

    if threads > (most := cores()):
        raise ParityError(f"--threads {threads}: this machine has {most} cores; allowed: 1 to {most}")
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = str(threads)
    torch.set_num_threads(threads)


@cache
def beside_log() -> Path | None:
    """The file beside this process's log that says how far it is: read while it runs, gone when it ends."""
    try:
        log = os.readlink("/proc/self/fd/2")
    except OSError:
        return None
    if not log.endswith(".log"):
        return None
    note = Path(f"{log}.now")
    atexit.register(note.unlink, missing_ok=True)
    return note


def note(text: str, every: float = 0.5) -> None:
    """Say how far a job is, for whoever watches: at most once in `every` seconds, and only where its errors go to a
    log."""
    if (file := beside_log()) is None or time.monotonic() - _said["at"] < every:
        return
    _said["at"] = time.monotonic()
    with contextlib.suppress(OSError):
        file.write_text(text, encoding="utf-8")


_said = {"at": 0.0}


def progress(items: Iterable[T], total: int, what: str) -> Iterator[T]:
    """A bar on a terminal; in a log a plain line at about every tenth of the work."""
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True)) as bar:
            yield from bar.track(items, total=total, description=what)
        return
    for done, item in enumerate(items, 1):
        yield item
        if done * 10 // total != (done - 1) * 10 // total:
            print(f"{what}: {done} of {total}", file=sys.stderr, flush=True)


def provenance(device: str, dtype: str, threads: int) -> dict[str, Any]:
    """How a number was obtained."""
    import torch

    name = torch.cuda.get_device_name() if device.startswith("cuda") else platform.processor() or platform.machine()
    versions = {p: importlib.metadata.version(p) for p in PACKAGES}
    return {
        "device": device,
        "device_name": name,
        "dtype": dtype,
        "threads": threads,
        "python": platform.python_version(),
        "versions": versions,
    }
