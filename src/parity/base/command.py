"""What the commands of the workflow share: one-line errors, pinned threads, progress, versions."""

import importlib.metadata
import os
import platform
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

T = TypeVar("T")
PACKAGES = ("torch", "transformers", "numpy", "scipy", "snakemake", "clean-fid", "open_clip_torch", "torch-fidelity")


def one_line(main: Callable[[], None]) -> None:
    """Run a command; what the user can mend is one line and exit code 1, anything else a traceback."""
    from parity.base.errors import ConfigError

    try:
        main()
    except (ConfigError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(1) from None


def pin_threads(threads: int) -> None:
    """As many threads as the rule was given: jobs run side by side, and oversubscribed torch is a hundred times slower."""
    import torch

    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = str(threads)
    torch.set_num_threads(threads)


def progress(items: Iterable[T], total: int, what: str) -> Iterator[T]:
    """A bar on a terminal; in a log a plain line at about every tenth of the work."""
    console = Console(stderr=True)
    if console.is_terminal:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console) as bar:
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
