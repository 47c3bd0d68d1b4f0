"""See on your own model that a decoder changes nothing: its tokens beside plain decoding's.

    parity verify captions.txt --model mine --method sjd_coupled --n 8
    parity verify captions.txt --model mine --method sjd --option window=16 --dtype bfloat16

A decoder that shares plain decoding's random numbers must draw its tokens. Where it does not, the first difference of
each row is shown with the nats by which that race was lost: a tie that rounding decides, or a fault. Of other decoders
each token is tested by its law given those before it. Exit code 1 for a fault.
"""

import argparse
from pathlib import Path

from parity_certify.seeding import check_seed

from parity.base.command import add_own_device, pin_threads, run_command
from parity.base.errors import ParityError
from parity.generate import load
from parity.generate.__main__ import DTYPES, read_given_prompts, read_options
from parity.verify import verify


def main() -> None:
    """Print what was found in one line, after a line for each row that differs. Exits with 1 for a fault."""
    parser = argparse.ArgumentParser(
        prog="parity verify", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("prompt", nargs="+", help="a caption, a class, a text with blanks, or a file of them")
    parser.add_argument("--model", default="", help="of the configuration (its first)")
    parser.add_argument("--configfile", type=Path, default=Path("config.yaml"), help="the experiment (%(default)s)")
    parser.add_argument("--method", default="auto", help="a decoder; auto: what `parity tune` found (%(default)s)")
    parser.add_argument("--option", nargs="+", action="extend", default=[], metavar="NAME=VALUE", help="of the method")
    parser.add_argument("--n", type=int, default=8, help="pictures or texts in all (%(default)s)")
    parser.add_argument("--dtype", choices=DTYPES, default="", help="of the transformer (the experiment's)")
    add_own_device(parser)
    parser.add_argument("--seed", type=int, default=0, help="(%(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="(%(default)s)")
    a = parser.parse_args()
    for name in ("n", "threads"):
        if getattr(a, name) < 1:
            raise ParityError(f"--{name} {getattr(a, name)}: allowed: 1 or more")
    check_seed(a.seed, "--seed")
    pin_threads(a.threads)
    generator = load(a.model, a.configfile, a.dtype, a.device)
    prompts = read_given_prompts(a.prompt)
    found = verify(generator, prompts, a.method, a.n, a.seed, **read_options(a.option))
    for row, position, lead in found.first or ():
        print(
            f"row {row}: first differs at token {position}, whose race it {'wins' if lead > 0 else 'loses'} by "
            f"{abs(lead):.2g} nats"
        )
    print(found)
    raise SystemExit(found.is_fault)


if __name__ == "__main__":
    run_command(main)
