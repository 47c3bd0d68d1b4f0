"""Write a stand-in as a user would get the released files, read it as `parity models add` does, and keep what it said.

python -m parity.stand_ins chameleon --out results/stand_ins/chameleon

entry.json in the folder is what the configuration says of the model; it is written last.
"""

import argparse
import importlib

from parity.base.command import arguments, one_line
from parity.base.errors import ParityError
from parity.base.files import write_json
from parity.experiment.declared import modules


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    arguments(parser, "out")
    a = parser.parse_args()
    if a.name not in modules("stand_ins"):
        raise ParityError(f"{a.name}: no such stand-in; allowed: {', '.join(modules('stand_ins'))}")
    module = importlib.import_module(f"parity.stand_ins.{a.name}")
    write_json(a.out / "entry.json", module.entry(a.out))


if __name__ == "__main__":
    one_line(main)
