"""Write small random networks in the published formats.

Each folder gets an entry.json, its entry in a configuration, which is written last.

python -m parity.stand_ins chameleon clip --out results/stand_ins/chameleon results/stand_ins/clip
"""

import argparse

from parity.base.command import add_arguments, run_command
from parity.base.files import write_json
from parity.experiment.stand_in import list_stand_ins
from parity.stand_ins import make_entry


def main() -> None:
    """Write each stand-in that the command line names to its folder after `--out`, and its entry.json."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", choices=sorted(list_stand_ins()), metavar="names")
    parser.add_argument("--published", action="store_true", help="in the sizes of released networks")
    add_arguments(parser, "out+")
    a = parser.parse_args()
    for name, folder in zip(a.names, a.out, strict=True):
        write_json(folder / "entry.json", make_entry(name, folder, a.published))


if __name__ == "__main__":
    run_command(main)
