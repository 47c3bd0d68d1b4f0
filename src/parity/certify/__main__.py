"""Certify a sampler: the commands of parity-certify (certify/docs/reference.md), and one more.

decoder FILE.py:FUNCTION --option k=v      a decoder written for Parity, or NAME, one of an installed package
"""

import argparse
import sys
from typing import Any

from parity_certify.__main__ import choose_folder, digest_code, finish, main
from parity_certify.import_by_name import load, parse_option
from parity_certify.seeding import pair_seeds

from parity.certify import certify
from parity.experiment.schema import MARGIN


def load_decoder(name: str) -> Any:
    """Load a decoder of image tokens by its place or, without a colon, by its name. One with a draft network of its own
    gets new weights."""
    from parity.experiment import decoders

    if ":" not in name:
        return decoders.import_decoder("discrete", name)
    decode = load(name)
    return decoders.hand_draft(decode, sys.modules.get(getattr(decode, "__module__", "")))


def digest_decoder(name: str) -> str:
    """Digest the code of a decoder."""
    from parity.experiment.decoders import find_source

    source = None if ":" in name else find_source("discrete", name)
    return digest_code(f"{source.file}:{source.function}" if source else name)


def run_decoder(a: argparse.Namespace) -> int:
    """certify a decoder with the signature of Parity's discrete ones, on models whose distribution is known"""
    from parity.base.command import pin_threads

    pin_threads(1)  # torch gets one thread, as tensors are small; --threads runs chunks side by side
    settings = {"n": a.n, "models": a.models, "margin": a.margin, "claim": a.claim, "seeds": pair_seeds(a.seed)}
    certificate = certify(load_decoder(a.decoder), threads=a.threads, **settings, **dict(a.option))
    spec = {"decoder": a.decoder, "code": digest_decoder(a.decoder), "options": dict(a.option), **settings}
    return finish(certificate, choose_folder(a, certificate.name, spec), spec, a.require)


def add_decoder(add_command: Any) -> None:
    """Add the command `decoder` with its arguments to those of parity-certify."""
    p = add_command(run_decoder, "require")
    p.add_argument("decoder", help="MODULE:FUNCTION, FILE.py:FUNCTION, or a name of `parity methods`")
    p.add_argument(
        "--option",
        type=parse_option,
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME=VALUE",
        help="of the decoder",
    )
    p.add_argument("--n", type=int, default=100_000, help="draws of a sample (%(default)s)")
    p.add_argument("--margin", type=float, default=MARGIN, help="TV below which a bound certifies (%(default)s)")
    p.add_argument("--claim", choices=("lossless", "lossy"), default="lossless")
    p.add_argument("--models", choices=("full", "small"), default="full")
    p.add_argument("--threads", type=int, default=1)


if __name__ == "__main__":
    main(add_decoder)
