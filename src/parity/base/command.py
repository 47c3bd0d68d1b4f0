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

from parity_decoders.errors import DecodingError

from parity.base.errors import ParityError
from parity.base.files import find_numbered_files
from parity.base.machine import cores, describe_hardware, resolve_device

T = TypeVar("T")
PACKAGES = ("torch", "transformers", "numpy", "scipy", "snakemake", "clean-fid", "open_clip_torch", "torch-fidelity")
MENDED = {  # what the system refuses, and what ends it
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "make room"),
    **dict.fromkeys((errno.EACCES, errno.EPERM), "let it be read and written"),
    errno.EFBIG: "allow larger files",
    errno.EROFS: "let it be written",
}
SCARCE = re.compile("allocate memory|out of memory", re.IGNORECASE)  # torch's words for a CPU and for a GPU
FLAGS: dict[str, dict[str, Any]] = {
    "threads": {"type": int, "default": 1},
    "device": {"default": "cpu", "type": resolve_device},
    "batch": {"type": int, "default": 32},
}


class Files(argparse.Action):
    """Several files, by name or by one name with a star for their number (`numbered_files`)."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option: Any = None) -> None:
        setattr(namespace, self.dest, [file for name in values for file in find_numbered_files(name)])


def add_arguments(parser: argparse.ArgumentParser, *names: str) -> None:
    """Add flags that recur: threads, device and batch as in FLAGS, any other name a path, as `--name`.

    A path is required, unless it ends in "?" (one or none: None), "+" (one or more) or "*" (any number: []).
    """
    for name in names:
        flag = name.rstrip("?+*")
        count = name[-1]
        if flag in FLAGS:
            parser.add_argument(f"--{flag}", **FLAGS[flag])
        elif count in "+*":
            parser.add_argument(f"--{flag}", type=Path, nargs=count, required=count == "+", default=[], action=Files)
        else:
            parser.add_argument(f"--{flag}", type=Path, required=count != "?")


def run_command(main: Callable[[], None]) -> None:
    """Run a command. A problem that the user can mend is printed as one line with exit code 1, any other error as a
    traceback; a log ends with the cost of the job."""
    try:
        main()
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second one has nothing to add
        print("stopped", file=sys.stderr)
        raise SystemExit(130) from None
    except Exception as error:
        if (problem := describe_mendable(error)) is None:
            raise
        print(f"error: {problem}", file=sys.stderr)
        raise SystemExit(1) from None
    if not sys.stderr.isatty():
        print(describe_cost(), file=sys.stderr)


def describe_mendable(error: Exception) -> str | None:
    """Describe an error that the user can mend (ParityError, DecodingError, a full disk, no right to write, too
    little memory) in one line; None for any other."""
    if isinstance(error, ParityError | DecodingError):
        return str(error)
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and SCARCE.search(str(error))):
        cause = " ".join(str(error)[:200].split()) or "of the process"
        return f"too little memory ({cause}); run again with more"
    if isinstance(error, OSError) and error.errno in MENDED:
        return f"{error.filename or 'a file'}: {error.strerror}; {MENDED[error.errno]} and run again"
    return None


def describe_cost() -> str:
    """Describe the CPU-seconds and the peak memory of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    unit = 2**20 if sys.platform == "darwin" else 2**10  # macOS counts bytes, Linux kibibytes
    return f"cost: {used.ru_utime + used.ru_stime:.2f} CPU-seconds, {used.ru_maxrss // unit} MiB"


def pin_threads(threads: int) -> None:
    """Use as many threads as the rule was given: jobs run side by side, and too many slow torch a hundredfold."""
    import torch

    if threads > (n_cores := cores()):
        raise ParityError(f"--threads {threads}: this machine has {n_cores} cores; allowed: 1 to {n_cores}")
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = str(threads)
    torch.set_num_threads(threads)


@cache
def find_progress_file() -> Path | None:
    """Find the file beside this process's log that shows its progress: read while it runs, removed when it ends."""
    try:
        log = os.readlink("/proc/self/fd/2")
    except OSError:
        return None
    if not log.endswith(".log"):
        return None
    note = Path(f"{log}.now")
    atexit.register(note.unlink, missing_ok=True)
    return note


def note(text: str, interval: float = 0.5) -> None:
    """Write the progress of a job beside its log, at most once in `interval` seconds; do nothing without a log."""
    if (file := find_progress_file()) is None or time.monotonic() - _noted["at"] < interval:
        return
    _noted["at"] = time.monotonic()
    with contextlib.suppress(OSError):
        file.write_text(text, encoding="utf-8")


_noted = {"at": 0.0}


def progress(items: Iterable[T], total: int, label: str) -> Iterator[T]:
    """Show a bar on a terminal, or print a plain line in a log at about every tenth of the work, while items are
    consumed."""
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import track

        yield from track(items, description=label, total=total, console=Console(stderr=True))
        return
    for n_done, item in enumerate(items, 1):
        yield item
        if n_done * 10 // total != (n_done - 1) * 10 // total:
            print(f"{label}: {n_done} of {total}", file=sys.stderr, flush=True)


def provenance(device: str, dtype: str, threads: int) -> dict[str, Any]:
    """Describe on what a number was computed: device, dtype, threads, versions."""
    import torch

    name = torch.cuda.get_device_name() if device.startswith("cuda") else platform.processor() or platform.machine()
    return {
        "device": device,
        "device_name": name,
        "machine": describe_hardware(name if device.startswith("cuda") else ""),
        "dtype": dtype,
        "threads": threads,
        "python": platform.python_version(),
        "versions": {package: importlib.metadata.version(package) for package in PACKAGES},
    }
