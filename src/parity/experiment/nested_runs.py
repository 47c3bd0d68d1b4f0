"""Runs of the workflow, one experiment file after another, with the flags of the command that asked for them.

Each is a Snakemake of its own, with its own plan and record, so that one which was stopped continues. A file whose run
fails does not stop the others."""

import fcntl
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from parity.base import machine
from parity.experiment.config_overlay import overlay_config, read_experiment

LOCK = Path(".snakemake/papers.lock")  # held while runs of one command are made: those of another wait


def remove_targets(words: Sequence[str], targets: Sequence[str]) -> list[str]:
    """Remove the targets from the words of a snakemake command, whose flags stay: a word is a target if without it
    Snakemake reads one target less, and all flags as before."""
    from snakemake.cli import get_argument_parser  # imported here, as it takes longer than the rest of a small job

    parser = get_argument_parser()

    def read(words: Sequence[str]) -> tuple[int, str]:
        """Return how many targets a command has, and its flags as text without addresses of objects."""
        flags = vars(parser.parse_args(words))
        return len(flags.pop("targets")), re.sub(r" at 0x[0-9a-f]+", "", repr(flags))

    kept = list(words)
    for target in targets:
        count, flags = read(kept)
        places = [i for i, word in enumerate(kept) if word == target]
        fewer = [kept[:i] + kept[i + 1 :] for i in places]
        kept = next((words for words in fewer if read(words) == (count - 1, flags)), kept)
    return kept[:-1] if kept[-1:] == ["--"] else kept


def make_command(words: Sequence[str], snakefile: str, file: Path, target: str) -> list[str]:
    """Make the command that makes a target of an experiment file in the current folder. words: flags of the command
    that asked for it, without targets."""
    flags = ["--snakefile", snakefile, "--directory", ".", "--configfile", str(file)]
    return [sys.executable, "-m", "snakemake", *words, *flags, "--", target]


def run_files(
    files: Sequence[Path], words: Sequence[str], snakefile: str, fetched: Sequence[Path] = ()
) -> dict[Path, int]:
    """Run experiment files in turn, waiting for runs of another such command to end; return the exit code of each. Says
    on stderr which file runs, and in the end which failed. What those in `fetched` need is fetched first; if it cannot
    be, they are not run. A KeyboardInterrupt ends the run that is going on, first."""
    LOCK.parent.mkdir(exist_ok=True)
    codes: dict[Path, int] = {}
    environment = {name: value for name, value in os.environ.items() if name != machine.COMMAND}
    with LOCK.open("a", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for i, file in enumerate(files, 1):
            print(f"[{i}/{len(files)}] {file.stem}: {file}", file=sys.stderr, flush=True)
            for target in (*["fetch"] * (file in fetched), "all"):
                process = subprocess.Popen(make_command(words, snakefile, file, target), env=environment)
                try:
                    codes[file] = process.wait()
                except KeyboardInterrupt:
                    process.wait()
                    raise
                if codes[file]:
                    break
    for file in (file for file, code in codes.items() if code):
        again = shlex.join(["snakemake", *words, "--configfile", str(file)])
        print(f"error: {file.stem} failed ({codes[file]}); again: {again}", file=sys.stderr)
    return codes


def find_results(file: Path, command_line: Mapping[str, Any]) -> Path:
    """Find the folder that an experiment file's run ends in. command_line: what `--config` says."""
    raw = overlay_config(read_experiment(file), command_line)
    name = str(raw.get("experiment", "default"))
    name = f"{name[:50]}-stand_in" if raw.get("stand_in") else name
    scale = raw.get("scale", 1)
    return Path("results", name if scale == 1 else f"{name}-x{scale:g}")
