"""An experiment file as commands outside the workflow read it."""

from pathlib import Path

from parity.experiment import checks, pins, stand_in, tuned
from parity.experiment.config_overlay import read_experiment, resolve_paths
from parity.experiment.options import KINDS
from parity.experiment.schema import Config


def read_config(file: Path) -> tuple[Config, list[str]]:
    """Read and check the experiment of a file, without the method `auto`, which `parity tune` chooses. Returns it and
    the kinds of model that had `auto`. May write stand-ins."""
    raw = read_experiment(file)
    auto = []
    for kind, section in KINDS.items():
        if isinstance(raw.get(section), dict) and isinstance(raw[section].get("methods"), dict):
            auto += [kind] if raw[section]["methods"].pop(tuned.AUTO, None) else []
    raw = stand_in.use_stand_ins(resolve_paths(raw, lambda name: name), stand_in.make_stand_ins)
    return checks.make_config(pins.fill_pins(raw, pins.make_pin_reader())), auto
