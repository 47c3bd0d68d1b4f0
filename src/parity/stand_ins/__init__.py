"""Stand-ins: tiny random checkpoints in the published formats, for `--config stand_in=true` and for tests.

Each module lists what it `WRITES`: a function a network, f(folder) -> {part: path relative to the folder}, with exactly
the file names, keys, nesting and types of the released files, small sizes, and weights from a fixed seed. Nothing in
them was trained.
"""

import importlib
from pathlib import Path
from typing import Any

from parity.base.digests import sha256
from parity.experiment.stand_in import stand_in_modules


def write(name: str, folder: Path, **sizes: Any) -> dict[str, Any]:
    """The parts of a stand-in, written to `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    module = importlib.import_module(f"parity.stand_ins.{stand_in_modules()[name]}")
    return getattr(module, name)(folder, **sizes)


def entry(name: str, folder: Path) -> dict[str, Any]:
    """What a configuration says of a stand-in, written to `folder`: what its module reads from the files, or
    {"files": {part: path}, "sha256": {part: digest}}."""
    folder.mkdir(parents=True, exist_ok=True)
    module = importlib.import_module(f"parity.stand_ins.{stand_in_modules()[name]}")
    if hasattr(module, "entry"):
        return module.entry(name, folder)
    files = {part: folder / path for part, path in write(name, folder).items()}
    digests = {part: sha256(path) for part, path in files.items() if part != "tokenizer"}  # whose folder has no weights
    return {"files": {part: str(path) for part, path in files.items()}, "sha256": digests}
