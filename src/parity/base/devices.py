"""The device of a job: whether it exists, whether it computes in the dtype, which of several this job has alone."""

import fcntl
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, TypeVar

import torch

from parity.base.command import note
from parity.base.errors import ParityError

T = TypeVar("T")

RENDERED = 8  # number of images that are decoded from tokens at once, if nothing else is said
HELD: dict[str, IO[str]] = {}  # holds the devices that this process has claimed, each with its locked file
ALLOCATED = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "JOB_ID")  # a cluster puts a job's id into one of these


def check(device: str, dtype: str) -> None:
    """Raise ParityError unless a device ("cpu", "cuda", "cuda:<number>") exists here and computes in `dtype`."""
    kind, _, number = device.partition(":")
    if kind == "cpu":
        return
    if kind != "cuda":
        raise ParityError(f"--device {device}: allowed: cpu, cuda, or cuda:<number>")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not count:
        raise ParityError(f"--device {device}: torch {torch.__version__} finds no CUDA device here; allowed: cpu")
    if number and not (number.isdigit() and int(number) < count):
        raise ParityError(f"--device {device}: allowed: cpu, cuda, cuda:0 to cuda:{count - 1}")
    if dtype == "bfloat16" and not torch.cuda.is_bf16_supported():
        raise ParityError(f"dtype bfloat16: {device} does not compute in it; allowed there: float32, float64")


def claim_device(device: str, count: int | None = None, folder: Path | None = None) -> str:
    """Claim a device for this process: "cuda" becomes "cuda:<i>", the first of the `count` visible ones (None: all)
    that no other job on this machine holds, after waiting if none is free. Another device is returned unchanged.

    A lock on a file in `folder`, the system's temporary one by default, reserves it until the process ends. A cluster
    may number the devices of every job from 0, so the lock's name contains the job's.
    """
    if device != "cuda":
        return device
    job = next((f"-{os.environ[name]}" for name in ALLOCATED if os.environ.get(name)), "").replace("/", "-")
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    count = torch.cuda.device_count() if count is None else count
    names = visible.split(",")[:count] if visible else [str(i) for i in range(count)]
    folder = folder or Path(tempfile.gettempdir())
    waiting = False
    while True:
        for i, name in enumerate(names):
            file = (folder / f"parity-{os.getuid()}{job}-cuda-{name.strip()}.lock").open("w")
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.close()
                continue
            HELD[f"cuda:{i}"] = file
            return f"cuda:{i}"
        if not waiting:
            print(f"all {len(names)} devices are held by other jobs; waiting", file=sys.stderr, flush=True)
        waiting = True
        time.sleep(1)


def take_device(device: str, dtype: str = "float32") -> str:
    """Check a device and return its name, for "cuda" that of the one this process has claimed, or claims now. Raises
    ParityError if it does not exist or does not compute in `dtype`."""
    check(device, dtype)
    return next(iter(HELD)) if device == "cuda" and HELD else claim_device(device)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that memory, of a GPU or of the machine, was too little."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)


def run_in_batches(run: Callable[[Any], T], items: Any, batch: int, what: str) -> Iterator[T]:
    """Yield run(batch of items) for batches of `batch` items, a tensor or list; where memory is too little for one,
    they are half as large from there on. `what` names the items in notes and messages. Raises ParityError if one item
    does not fit."""
    first = 0
    while first < len(items):
        note(f"{what} {first} of {len(items)}")
        try:
            result = run(items[first : first + batch])
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            if batch == 1:
                raise ParityError(f"out of memory: one of the {what} does not fit; allowed: more memory") from None
            batch //= 2
            print(f"out of memory: {what}: {batch} at once from here on", file=sys.stderr, flush=True)
            continue
        first += batch
        yield result
