"""What the workflow asks of the machine it runs on; imports no torch, for the Snakefile reads it when parsed."""

import os
import sys
from importlib.util import cache_from_source
from pathlib import Path


def gpu() -> int:
    """1 if the machine has a CUDA device, else 0: the `gpu` resource that a decoding job asks for."""
    return int(Path("/dev/nvidia0").exists())


def keep_bytecode(beside: str, folder: Path) -> None:
    """Let this process and its commands keep what they compile in a folder, where the environment forbids it beside the
    sources and an installed module (`beside`) has not been compiled: else every job compiles torch anew, seconds each.
    """
    if sys.dont_write_bytecode and sys.pycache_prefix is None and not Path(cache_from_source(beside)).exists():
        sys.dont_write_bytecode, sys.pycache_prefix = False, str(folder)
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = str(folder)


def use_package(source: Path, alone: bool = True) -> None:
    """Let the commands of rules find this package, by snakemake's interpreter, or a conda environment; before what is
    already on the path where the workflow is not `alone`, but a module of another."""
    before = "" if alone else os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(source), *filter(None, [before])])
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
