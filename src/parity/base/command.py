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
from parity.base.machine import cores, describe_hardware, gpu, resolve_device

T = TypeVar("T")
PACKAGES = ("torch", "transformers", "numpy", "scipy", "snakemake", "clean-fid", "open_clip_torch", "torch-fidelity")
REMEDIES = {  # for each error of the system that the user can fix, this says how
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "make room"),
    **dict.fromkeys((errno.EACCES, errno.EPERM), "let it be read and written"),
    errno.EFBIG: "allow larger files",
    errno.EROFS: "let it be written",
}
SCARCE = re.compile("allocate memory|out of memory", re.IGNORECASE)  # torch says this if a CPU or a GPU lacks memory
FLAGS: dict[str, dict[str, Any]] = {
    "threads": {"type": int, "default": 1},
    "device": {"default": "cpu", "type": resolve_device},
    "batch": {"type": int, "default": 32},
}


class Files(argparse.Action):
    """Stores the files of a flag; a name with a star stands for its numbered files (`find_numbered_files`)."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option: Any = None) -> None:
        setattr(namespace, self.dest, [file for name in values for file in find_numbered_files(name)])


def add_arguments(parser: argparse.ArgumentParser, *names: str) -> None:
    """Add flags to a parser: "threads", "device" and "batch" as FLAGS describes them; any other name becomes `--name`,
    a path.

    A path is required, unless its name here ends in "?" (one or none: None), "+" (one or more) or "*" (any number: []).
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


def add_own_device(parser: argparse.ArgumentParser) -> None:
    """Add `--device` to a command that a user types: by default a GPU if there is one."""

    def choose(device: str) -> str:
        """Resolve a device; for the CPU hide GPUs, so that `auto` is what was tuned for the CPU."""
        device = resolve_device(device)
        if device == "cpu":
            os.environ["CUDA_VISIBLE_DEVICES"] = ""
        return device

    parser.add_argument(
        "--device",
        type=choose,
        default="cuda" if gpu() else "cpu",
        help="cpu, cuda or cuda:NUMBER (cuda if there is a GPU)",
    )


def run_command(main: Callable[[], None]) -> None:
    """Call `main`, a command. An error that the user can fix ends it with one line and exit code 1, Ctrl-C with
    "stopped" and 130; other errors propagate. On success prints the job's CPU time and memory, except on a terminal."""
    try:
        main()
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C may not interrupt the exit
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
    """Describe an error that the user can fix (ParityError, DecodingError, a full disk, no right to write, too
    little memory) in one line; None for any other."""
    if isinstance(error, ParityError | DecodingError):
        return str(error)
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and SCARCE.search(str(error))):
        cause = " ".join(str(error)[:200].split()) or "of the process"
        return f"too little memory ({cause}); run again with more"
    if isinstance(error, OSError) and error.errno in REMEDIES:
        return f"{error.filename or 'a file'}: {error.strerror}; {REMEDIES[error.errno]} and run again"
    return None


def describe_cost() -> str:
    """Describe in a line the CPU-seconds and the peak memory (MiB) that this process has used."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    unit = 2**20 if sys.platform == "darwin" else 2**10  # macOS counts bytes, Linux kibibytes
    return f"cost: {used.ru_utime + used.ru_stime:.2f} CPU-seconds, {used.ru_maxrss // unit} MiB"


def pin_threads(threads: int) -> None:
    """Limit torch, OpenMP and BLAS to `threads` threads in this process: jobs run side by side, and too many threads
    slow torch a hundredfold. Raises ParityError for more threads than cores."""
    import torch

    if threads > (n_cores := cores()):
        raise ParityError(f"--threads {threads}: this machine has {n_cores} cores; allowed: 1 to {n_cores}")
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = str(threads)
    torch.set_num_threads(threads)


@cache
def find_progress_file() -> Path | None:
    """Find the file `<log>.now` beside the `.log` that stderr is written to, for this process's progress; None if
    stderr is no such file. The file is deleted when the process ends."""
    try:
        log = os.readlink("/proc/self/fd/2")
    except OSError:
        return None
    if not log.endswith(".log"):
        return None
    note = Path(f"{log}.now")
    atexit.register(note.unlink, missing_ok=True)
    return note


def note(text: str, interval: float = 2.0, line_interval: float = 60.0) -> None:
    """Say what this process does now: replace the content of the progress file (`find_progress_file`), if there is one,
    with `text`, at most once in `interval` seconds; and print it on stderr, unless that is a terminal, at most once in
    `line_interval` seconds. Cheap enough for each pass of a run that is timed: a write takes a millisecond."""
    now = time.monotonic()
    if now - _noted["file"] >= interval and (file := find_progress_file()) is not None:
        _noted["file"] = now
        with contextlib.suppress(OSError):
            file.write_text(text, encoding="utf-8")
    if now - _noted["line"] >= line_interval and not sys.stderr.isatty():
        _noted["line"] = now
        print(text, file=sys.stderr, flush=True)


_noted = {"file": 0.0, "line": time.monotonic()}  # when `note` last wrote each; a line comes a minute after the start


def progress(items: Iterable[T], total: int, label: str) -> Iterator[T]:
    """Yield the `total` items and show on stderr how many are done: on a terminal as a bar, else a line per tenth."""
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
    """Record what a number was computed with: device, machine, dtype, threads, versions of Python and of PACKAGES."""
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
