"""Certify a sampler: the commands of parity-certify (certify/docs/reference.md), and one more.

decoder FILE.py:FUNCTION --option k=v      a decoder written for Parity
"""

import argparse
from typing import Any

from parity_certify.__main__ import choose_folder, digest_code, finish, main
from parity_certify.import_by_name import load, parse_option
from parity_certify.seeding import pair_seeds

from parity.certify import certify
from parity.experiment.schema import MARGIN


def run_decoder(a: argparse.Namespace) -> int:
    """certify a decoder with the signature of Parity's discrete ones, on models whose law is known"""
    from parity.base.command import pin_threads

    pin_threads(1)  # torch gets one thread, as tensors are small; --threads runs chunks side by side
    settings = {"n": a.n, "models": a.models, "margin": a.margin, "claim": a.claim, "seeds": pair_seeds(a.seed)}
    certificate = certify(load(a.decoder), threads=a.threads, **settings, **dict(a.option))
    spec = {"decoder": a.decoder, "code": digest_code(a.decoder), "options": dict(a.option), **settings}
    return finish(certificate, choose_folder(a, certificate.name, spec), spec, a.require)


def add_decoder(add_command: Any) -> None:
    """Add the command `decoder` with its arguments to those of parity-certify."""
    p = add_command(run_decoder, "require")
    p.add_argument("decoder", help="MODULE:FUNCTION or FILE.py:FUNCTION")
    p.add_argument(
        "--option",
        type=parse_option,
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME=VALUE",
        help="of the decoder",
    )
    p.add_argument("--n", type=int, default=100_000, help="draws of a sample (100000)")
    p.add_argument("--margin", type=float, default=MARGIN, help="TV below which a bound certifies (%(default)s)")
    p.add_argument("--claim", choices=("lossless", "lossy"), default="lossless")
    p.add_argument("--models", choices=("full", "small"), default="full")
    p.add_argument("--threads", type=int, default=1)


if __name__ == "__main__":
    main(add_decoder)
