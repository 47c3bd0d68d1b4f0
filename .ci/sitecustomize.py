"""Put beside the package of a copy of the project: every command notes which modules it imported (.ci/imports.py)."""

import atexit
import json
import os
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "imported"


def note_imports() -> None:
    """Write a file for this process: its arguments, and the modules of the package that it holds at the end."""
    modules = sorted(m for m in sys.modules if m.partition(".")[0] in ("parity", "parity_certify", "parity_decoders"))
    if modules and "snakemake" not in sys.modules:
        FOLDER.mkdir(exist_ok=True)
        record = {"arguments": sys.orig_argv[1:], "modules": modules}
        (FOLDER / f"{os.getpid()}.json").write_text(json.dumps(record))


atexit.register(note_imports)
