"""Write a stand-in as a user would get the released files, and what a configuration says of it.

python -m parity.stand_ins chameleon clip --out results/stand_ins/chameleon results/stand_ins/clip

entry.json in the folder, written last, is what the configuration says of it: what the module's `entry` reads from the
files, or {"files": {part: path}, "sha256": {part: digest}}.
"""

import argparse
import importlib
from pathlib import Path
from typing import Any

from parity.base.command import arguments, one_line
from parity.base.digests import sha256
from parity.base.errors import ParityError
from parity.base.files import write_json
from parity.experiment.module_metadata import modules


def entry(name: str, folder: Path) -> dict[str, Any]:
    """What a configuration says of a stand-in, written to `folder`."""
    module = importlib.import_module(f"parity.stand_ins.{name}")
    folder.mkdir(parents=True, exist_ok=True)
    if hasattr(module, "entry"):
        return module.entry(folder)
    files = {part: folder / path for part, path in module.write(folder).items()}
    signed = {part: sha256(path) for part, path in files.items() if part != "tokenizer"}  # whose folder has no weights
    return {"files": {part: str(path) for part, path in files.items()}, "sha256": signed}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+")
    arguments(parser, "out+")
    a = parser.parse_args()
    if len(a.out) != len(a.names):
        raise ParityError(f"--out: {len(a.out)} folders; allowed: {len(a.names)}, one a name")
    for name, folder in zip(a.names, a.out, strict=True):
        if name not in modules("stand_ins"):
            raise ParityError(f"{name}: no such stand-in; allowed: {', '.join(modules('stand_ins'))}")
        write_json(folder / "entry.json", entry(name, folder))


if __name__ == "__main__":
    one_line(main)
