"""An experiment file as commands outside the workflow read it."""

import os
from pathlib import Path

from parity.experiment import checks, code_digest, pins, stand_in, tuned
from parity.experiment.config_overlay import read_experiment, resolve_paths
from parity.experiment.options import KINDS
from parity.experiment.protocol_networks import add_networks
from parity.experiment.schema import Config


def find_shipped(name: str) -> str:
    """Find a file by its name in a clone of the project; return the name itself if there is no such file."""
    shipped = code_digest.ROOT.parent / name
    return str(shipped) if os.path.exists(shipped) else name


def read_config(file: Path) -> tuple[Config, list[str]]:
    """Read and check the experiment of a file, without the method `auto`, which `parity tune` chooses. Returns it and
    the kinds of model that had `auto`. May write stand-ins."""
    raw = read_experiment(file)
    auto = []
    for kind, section in KINDS.items():
        if isinstance(raw.get(section), dict) and isinstance(raw[section].get("methods"), dict):
            auto += [kind] if raw[section]["methods"].pop(tuned.AUTO, None) else []
    raw = stand_in.use_stand_ins(add_networks(resolve_paths(raw, find_shipped)), stand_in.make_stand_ins)
    return checks.make_config(pins.fill_pins(raw, pins.make_pin_reader())), auto
