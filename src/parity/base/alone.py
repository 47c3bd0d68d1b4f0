"""One run at a time in a folder, and none after a killed one has to be told so.

Snakemake locks the files that it is about to make by files of its own, which say neither who made them nor when; if it
is killed it leaves them, and asks for `--unlock`. A run here holds the system's lock on a file of its own until its
process ends, however it ends: whoever gets that lock knows that no run on this machine is alive, and takes away what
the last one left. A run on another machine is not known to be dead, so what it left stays, and Snakemake asks as it
always did.
"""

import fcntl
import functools
import json
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from parity.base.errors import ParityError

HELD: list[IO[str]] = []  # the lock of this process, until it ends
BOOT = Path("/proc/sys/kernel/random/boot_id")


def here() -> dict[str, Any]:
    """This process, its machine, and that machine's kernel since it started."""
    boot = BOOT.read_text().strip() if BOOT.exists() else ""
    return {"process": os.getpid(), "host": socket.gethostname(), "boot": boot}


def of_this_machine(run: dict[str, Any]) -> bool:
    """Whether a run was on this machine: containers of a kernel have names of their own, a restart changes the boot."""
    now = here()
    return bool(run) and (run.get("host") == now["host"] or (bool(now["boot"]) and run.get("boot") == now["boot"]))


def hold(kept: Path, planning: bool = False) -> None:
    """Hold the folder whose `kept` is Snakemake's own (.snakemake) until this process ends, and take away the locks of
    a run that was killed on this machine. A run that only plans does not hold it.

    ParityError while another run holds it, or where it cannot be written, if this one does not only plan. A file system
    without locks: nothing.
    """
    try:
        kept.mkdir(parents=True, exist_ok=True)
        file = (kept / "run.lock").open("a+", encoding="utf-8")
    except OSError as error:
        if planning:
            return
        place = "allowed: a folder that can be written, such as by --directory"
        raise ParityError(f"{kept / 'run.lock'}: {error.strerror}; {place}") from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        run = said(file)
        file.close()
        if planning:
            return
        who = f"process {run['process']} on {run['host']}" if run else "a process that has just begun"
        raise ParityError(
            f"{kept.parent}: another run works in this folder ({who}); allowed: one at a time, or --directory"
        ) from None
    except OSError:
        file.close()
        return
    left, ours = any((kept / "locks").glob("*")), of_this_machine(said(file))
    if left and ours:
        shutil.rmtree(kept / "locks", ignore_errors=True)
    if planning:
        file.close()
        return
    if ours or not left:
        file.truncate(0)
        file.write(json.dumps(here()))
        file.flush()
    HELD.append(file)


def check_writable(*folders: Path) -> None:
    """ParityError for a folder in which no file can be made; of one that is not there yet the nearest above it counts.
    By trying, for modes tell little: root may write whatever they say, but not where a disk is mounted read-only."""
    for folder in folders:
        there = next(place for place in (folder, *folder.absolute().parents) if place.is_dir())
        try:
            with tempfile.TemporaryFile(dir=there):
                pass
        except OSError as error:
            place = "allowed: a folder that can be written, such as by --directory"
            raise ParityError(f"{folder}: cannot be written ({error.strerror}); {place}") from None


def writing(*folders: Path) -> None:
    """One line and exit code 1 where a folder cannot be written: asked when jobs are about to begin, for a run with
    nothing to do writes nothing."""
    try:
        check_writable(*folders)
    except ParityError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)


def storing(storage: Any, prefix: str) -> None:
    """The same of a storage that results go to, such as S3: a small object is put there and taken away again."""
    try:
        trial = storage.object(f"{prefix}/.trial", keep_local=False, retrieve=False)
        trial.local_path().parent.mkdir(parents=True, exist_ok=True)
        trial.local_path().write_bytes(b"")
        trial.store_object()
        trial.remove()
        trial.local_path().unlink()
    except Exception as error:  # each storage's library raises its own
        why = (str(error) or type(error).__name__).strip().splitlines()[0]
        place = "allowed: a storage that can be written, with keys that may"
        print(f"error: {prefix}: cannot be written ({why}); {place}", file=sys.stderr)
        sys.exit(1)


def said(file: IO[str]) -> dict[str, Any]:
    """The last run that held the lock; {} if none has."""
    file.seek(0)
    try:
        run = json.loads(file.read())
    except ValueError:
        return {}
    return run if isinstance(run, dict) and {"process", "host"} <= set(run) else {}


def alone(workflow: Any, kept: Path, results: Path) -> Callable[..., Any]:
    """A Snakemake workflow's `execute` that holds the folder first; one line and exit code 1 where another run does, or
    where a plan cannot write to its own folder, or something of the `results` is to be made anew in one that cannot be
    written. A job that Snakemake runs by a Snakemake of its own is part of the run that holds it; `--nolock` asks for
    no lock."""
    from snakemake.exceptions import ProtectedOutputException

    execute = workflow.execute

    @functools.wraps(execute)
    def held(*arguments: Any, **settings: Any) -> Any:
        if workflow.is_main_process and workflow.execution_settings.lock:
            try:
                hold(kept, settings["executor_plugin"].common_settings.dryrun_exec)
            except ParityError as error:
                print(f"error: {error}", file=sys.stderr)
                sys.exit(1)
        try:
            return execute(*arguments, **settings)
        except (ProtectedOutputException, OSError):
            writing(kept, results, *sorted(folder for folder in results.rglob("*") if folder.is_dir()))
            raise  # such as a file that its owner protects

    return held
