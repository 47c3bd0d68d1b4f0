"""What the workflow asks of the machine it runs on; imports no torch, for the Snakefile reads it when parsed."""

import os
import sys
from pathlib import Path


def gpu() -> int:
    """1 if the machine has a CUDA device, else 0: the `gpu` resource that a decoding job asks for."""
    return int(Path("/dev/nvidia0").exists())


def use_package(source: Path) -> None:
    """Let the commands of rules find this package, by snakemake's interpreter, or a conda environment."""
    os.environ["PYTHONPATH"] = str(source)
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
