"""See on your own model that a decoder changes nothing: its tokens beside plain decoding's.

    parity verify captions.txt --model mine --method sjd_coupled --n 8
    parity verify captions.txt --model mine --method sjd --option window=16 --dtype bfloat16

A decoder that shares plain decoding's random numbers must draw its tokens. Where it does not, the first difference of
each row is shown with the nats by which that draw was lost: a tie that rounding decides, or a fault. Of other decoders
each token is tested by its distribution given those before it. Exit code 1 for a fault.
"""

import argparse

from parity.base.command import run_command
from parity.generate.arguments import add_decoding, add_prompts, load_generator, read_given_prompts, read_options
from parity.verify import verify


def main() -> None:
    """Print what was found in one line, after a line for each row that differs. Exits with 1 for a fault."""
    parser = argparse.ArgumentParser(
        prog="parity verify", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_prompts(parser)
    add_decoding(parser)
    parser.add_argument("--n", type=int, default=8, help="images or texts in all (%(default)s)")
    a = parser.parse_args()
    prompts = read_given_prompts(a.prompt)
    generator = load_generator(a)
    found = verify(generator, prompts, a.method, a.n, a.seed, **read_options(a.option))
    for row, position, lead in found.first or ():
        print(
            f"row {row}: first differs at token {position}, whose draw it {'wins' if lead > 0 else 'loses'} by "
            f"{abs(lead):.2g} nats"
        )
    print(found)
    raise SystemExit(found.is_fault)


if __name__ == "__main__":
    run_command(main)
