"""Equality layers: which cells a layer looks at and what it reads, as its module declares; imports none of them.

A layer is a module of equality/layers/<kind>: adding one is adding a file. Its declarations are in the docstring of
parity.equality.layers.
"""

from typing import Any

from parity.base.errors import ConfigError
from parity.experiment import paths
from parity.experiment.cells import Cell, reference_of
from parity.experiment.module_metadata import modules, require
from parity.experiment.options import coupled, declaration
from parity.experiment.schema import Config

WHEN = (
    "always",
    "coupled",
    "drafted",
)  # every cell; what must return plain decoding's tokens; what drafts tokens or steps, and controls
DECLARED = ("ROLES", "WHEN", "READS", "WRITES", "SETTINGS")


def declared(kind: str) -> dict[str, dict[str, Any]]:
    """What every layer of a kind says of itself, by name; ConfigError for one that says too little."""
    package = f"equality/layers/{kind}"
    of_layer = {name: require(package, name, DECLARED, ("rows",)) for name in modules(package)}
    for name, layer in of_layer.items():
        if layer["WHEN"] not in WHEN:
            raise ConfigError(
                f"src/parity/{package}/{name}.py: WHEN = {layer['WHEN']!r}; allowed: {', '.join(map(repr, WHEN))}"
            )
    return of_layer


def applies(layer: dict[str, Any], cell: Cell) -> bool:
    """Whether a layer looks at a cell."""
    method = cell.spec["method"]
    of_method = declaration(cell.kind, method)
    wanted = {
        "always": True,
        "coupled": coupled(cell.kind, method, cell.spec["options"]),
        "drafted": cell.role == "control" or bool(of_method.NEEDS) or of_method.TARGETS == "walks",
    }
    return cell.role in layer["ROLES"] and wanted[layer["WHEN"]]


def of(config: Config, layers: dict[str, dict[str, dict[str, Any]]], cell: Cell) -> list[str]:
    """Layers that look at a cell. Where the batch is part of a specification, the law is tested at the first size."""
    section = config.continuous if cell.kind == "continuous" else None
    if section is not None and (cell.spec["batch"] != section.batch[0] or not section.forced):
        return []
    return [name for name, layer in layers[cell.kind].items() if applies(layer, cell)]


def settings(config: Config, layer: dict[str, Any]) -> dict[str, Any]:
    """The settings that a layer reads: an edit of any other does not run it again."""
    known = config.equality.model_dump()
    if config.continuous is not None:
        known |= {"forced": config.continuous.forced, "conditions": config.continuous.conditions}
    return {name: known[name] for name in layer["SETTINGS"] if name in known}


def layer_settings(
    config: Config, layers: dict[str, dict[str, dict[str, Any]]], cell: Cell
) -> dict[str, dict[str, Any]]:
    """Settings of the layers that look at a cell, by name."""
    return {name: settings(config, layers[cell.kind][name]) for name in of(config, layers, cell)}


def baseline(config: Config, every: list[Cell], cell: Cell) -> list[str]:
    """Files of the plain decoding that a cell is compared with."""
    plain = reference_of(cell, every)
    return [*paths.pieces(config, plain, "shards"), f"{paths.folder(plain)}/features.npz"]
