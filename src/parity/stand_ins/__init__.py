"""Stand-ins: tiny random checkpoints in the published formats, for `--config stand_in=true` and for tests.

Each module lists what it `WRITES`: a function a network, f(folder) -> {part: path relative to the folder}, with exactly
the file names, keys, nesting and types of the released files, small sizes, and weights from a fixed seed. Nothing in
them was trained. PUBLISHED of a module has the arguments that give its functions the sizes of released networks.
"""

import importlib
from pathlib import Path
from typing import Any

import torch

from parity.base.digests import sha256
from parity.base.errors import ParityError
from parity.experiment.stand_in import list_stand_ins


def write(name: str, folder: Path, **sizes: Any) -> dict[str, str]:
    """Write the stand-in `name` to `folder`, made if need be, and return the paths of its parts relative to it. `sizes`
    replaces sizes of its function. torch's random state is as before afterwards, and has no influence."""
    folder.mkdir(parents=True, exist_ok=True)
    module = importlib.import_module(f"parity.stand_ins.{list_stand_ins()[name]}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return getattr(module, name)(folder, **sizes)


def list_published_sizes(name: str) -> dict[str, Any]:
    """List the arguments with which the stand-in `name` has the sizes of its authors' network. Raises ParityError if it
    is written small alone."""
    sizes: dict[str, dict[str, Any]] = {}
    for module in dict.fromkeys(list_stand_ins().values()):
        sizes |= getattr(importlib.import_module(f"parity.stand_ins.{module}"), "PUBLISHED", {})
    if name not in sizes:
        raise ParityError(f"stand_in.size = 'published': {name} is written small alone; allowed: {', '.join(sizes)}")
    return sizes[name]


def make_entry(name: str, folder: Path, published: bool = False, **changed: Any) -> dict[str, Any]:
    """Write the stand-in `name` to `folder`, and make its entry in a configuration: for a model of images what `parity
    models add` finds, for a continuous pair the folder that `convert` writes, for others their files and digests.
    published: in the sizes of its authors' network, except for those of `changed`."""
    from parity.models import add
    from parity.models.continuous.published import convert
    from parity.stand_ins.continuous import CELLS
    from parity.stand_ins.discrete import GRID, PIXELS

    sizes = {**(list_published_sizes(name) if published else {}), **changed}
    paths = {component: folder / path for component, path in write(name, folder, **sizes).items()}
    files = {component: str(path) for component, path in paths.items()}
    if "target" in paths:
        family, cell = CELLS.get(name, (name, 0))
        pair = (paths["target"], paths["draft"], paths["kl"])
        convert(family, *pair, folder / "weights", paths.get("tokenizer"), cell=cell)
        return {"folder": str(folder / "weights")}
    if "model" in paths:
        speculators = {component: path for component, path in paths.items() if component != "model"}
        return {**add.find(files["model"], None, speculators, PIXELS.get(name)).entry, "files": files}
    if "transformer" in paths:
        return {**add.find(str(folder), sizes.get("side", GRID)).entry, "files": files}
    # a tokenizer's folder has no weights, so it has no digest
    digests = {component: sha256(path) for component, path in paths.items() if component != "tokenizer"}
    return {"files": files, "sha256": digests}
