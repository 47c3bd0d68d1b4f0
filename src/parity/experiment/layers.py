"""Equality layers: which cells a layer looks at and what it reads, as its module declares; imports none of them.

A layer is a module of equality/layers/<kind>: adding one is adding a file. Its declarations are in the docstring of
parity.equality.layers.
"""

from typing import Any

from parity.base.errors import ConfigError
from parity.experiment.cells import Cell
from parity.experiment.module_metadata import modules, require
from parity.experiment.options import declaration, has_drafts, is_coupled, is_plain_decoding
from parity.experiment.schema import Config

# Which cells a layer tests: all; those that must return plain decoding's tokens; those with drafts, and the control of
# plain decoding.
WHEN = ("always", "coupled", "drafted")
DECLARED = ("ROLES", "WHEN", "READS", "WRITES", "SETTINGS")
Layers = dict[str, dict[str, dict[str, Any]]]  # declarations of the layers, by kind and name


def read_layers(kind: str) -> dict[str, dict[str, Any]]:
    """Read the declarations (the literals of DECLARED) of every layer of a kind, by name. Raises ConfigError for a
    layer that lacks one or has no function `rows`."""
    package = f"equality/layers/{kind}"
    of_layer = {name: require(package, name, DECLARED, ("rows",)) for name in modules(package)}
    for name, layer in of_layer.items():
        if layer["WHEN"] not in WHEN:
            label = f"src/parity/{package}/{name}.py: WHEN = {layer['WHEN']!r}"
            raise ConfigError(f"{label}; allowed: {', '.join(map(repr, WHEN))}")
    return of_layer


def select_layers(config: Config, layers: Layers, cell: Cell) -> list[str]:
    """Select the names of the layers that test a cell, by its role and what its method declares. Cells of vectors are
    tested at the section's first batch size alone, and not at all if `forced` is 0."""
    section = config.continuous if cell.kind == "continuous" else None
    if section is not None and (cell.spec["batch"] != section.batch[0] or not section.forced):
        return []
    method = cell.spec["method"]
    drafts = has_drafts(cell.kind, method) or declaration(cell.kind, method).TARGETS == "walks"
    is_plain = is_plain_decoding(cell.kind, cell.spec["method"], cell.spec["options"])
    holds = {
        "always": True,
        "coupled": is_coupled(cell.kind, cell.spec["method"], cell.spec["options"]),
        "drafted": (cell.role == "control" and is_plain) or drafts,
    }
    return [name for name, layer in layers[cell.kind].items() if cell.role in layer["ROLES"] and holds[layer["WHEN"]]]


def layer_settings(config: Config, layers: Layers, cell: Cell) -> dict[str, dict[str, Any]]:
    """Select the settings that each layer of a cell reads, and `alpha`, by name of the layer: an edit of any other
    repeats nothing."""
    settings = config.equality.model_dump()
    if config.continuous is not None:
        settings |= {"forced": config.continuous.forced, "conditions": config.continuous.conditions}
    return {
        name: {s: settings[s] for s in ("alpha", *layers[cell.kind][name]["SETTINGS"]) if s in settings}
        for name in select_layers(config, layers, cell)
    }
