"""Run the equality layers from the command line.

Of a decoder of your own: `parity certify decoder`.

    tests --kind K --method NAME --spec JSON --out rows.json         the next two, as the workflow asks for them
    exact --kind K --method NAME ... --out rows.json                 a decoder of ours on targets whose law is known
    long --kind K --method NAME ... --out rows.json                  the same at its own options, on long models
    faults --kind K --n N --out rows.json                            planted faults: the tests must find them
    calibration --replicates N --out rows.json                       correct samplers: the tests must have their size

--out files hold {"rows": [...], "seconds": s}; calibration adds "p_values": {test: [...]}. See
parity_certify.result_rows for a row. What a command needs of a kind or method is imported by name, so that a job
depends on the sources of its own alone. Layers that look at a cell are run by `python -m parity.measure`.
"""

import argparse
import json
import time
from typing import Any

from parity_certify.import_by_name import leaf

from parity.base.command import arguments, one_line, pin_threads
from parity.base.files import write_json

KINDS = ("discrete", "anysubset", "continuous")
PLANTED = (*KINDS, "long", "longanysubset", "longcontinuous")  # modules of parity.equality.faults


def exact(a: argparse.Namespace) -> dict[str, Any]:
    module = leaf(f"parity.decoders.{a.kind}.{a.method}")
    decoder, which = getattr(module, a.method), getattr(module, "TARGETS", a.models)
    harness, kind = leaf("parity.equality.exact"), leaf(f"parity.equality.targets.{a.kind}")
    targets, common = kind.targets(which), {"method": a.method, "threads": a.threads}
    settings = {"claim": a.claim, "draws": a.draws or kind.DRAWS, "family": kind.FAMILY, "n": a.n, "seeds": a.seeds}
    rows = harness.exact(decoder, targets, a.options, **settings, **common)
    if a.pathwise:
        pathwise = leaf("parity.equality.pathwise").pathwise
        rows += pathwise(decoder, targets, a.options, n=min(a.n, 10_000), seeds=a.seeds[:1], **common)
    return {"rows": rows}


def long(a: argparse.Namespace) -> dict[str, Any]:
    module = leaf(f"parity.decoders.{a.kind}.{a.method}")
    decoder, which = getattr(module, a.method), getattr(module, "TARGETS", "")
    targets = leaf(f"parity.equality.long.{a.kind}").targets(a.options, a.n, which=which)
    settings = {"claim": a.claim, "draws": 0, "family": "all", "layer": "long", "n": a.n, "seeds": a.seeds}
    return {"rows": leaf("parity.equality.exact").exact(decoder, targets, a.options, method=a.method, **settings)}


def tests(a: argparse.Namespace) -> dict[str, Any]:
    """{"exact": {...}, "long": {...}}: those of the two that the specification has settings of."""
    shared = {"kind": a.kind, "method": a.method, "threads": a.threads, "draws": None}
    return {
        name: run(argparse.Namespace(**shared, **a.spec[name]))
        for name, run in (("exact", exact), ("long", long)) if name in a.spec
    }  # fmt: skip


def faults(a: argparse.Namespace) -> dict[str, Any]:
    trials = leaf(f"parity.equality.faults.{a.kind}").trials(a.n, a.seeds, a.draws or 1999, a.threads)
    return {"rows": leaf("parity.equality.faults").planted(trials, a.seeds)}


def calibration(a: argparse.Namespace) -> dict[str, Any]:
    run = leaf("parity.equality.calibration").calibration
    rows, p_values = run(replicates=a.replicates, seed=a.seeds[0], draws=a.draws or 9999)
    return {"rows": rows, "p_values": p_values}


def parser() -> argparse.ArgumentParser:
    main = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = main.add_subparsers(dest="command", required=True)

    def command(run: Any, help: str, *flags: str, kind: bool = True, n: int | None = None) -> argparse.ArgumentParser:
        c = commands.add_parser(run.__name__, help=help)
        c.set_defaults(run=run)
        arguments(c, "threads", *flags)
        if kind:
            c.add_argument("--kind", choices=PLANTED if run is faults else KINDS, required=True)
        if n is not None:
            c.add_argument("--n", type=int, default=n, help=f"draws of a sample ({n})")
        if run in (exact, long, faults, calibration):
            c.add_argument("--seeds", type=json.loads, default=[0, 1], help="JSON list; the second repeats a rejection")
            c.add_argument("--draws", type=int, help="of the Monte-Carlo null")
        if run in (exact, long):
            c.add_argument("--claim", choices=("lossless", "lossy"), default="lossless")
            c.add_argument("--method", required=True, help="module in parity.decoders.KIND and function in it")
            c.add_argument("--options", type=json.loads, default={}, help="JSON object")
        if run is exact:
            c.add_argument("--models", choices=("full", "small"), default="full")
        return c

    c = command(exact, "the exact layer for a decoder of parity.decoders", "out", n=1_000_000)
    c.add_argument(
        "--pathwise", action="store_true", help="for decoders coupled to plain decoding: token for token too"
    )
    command(long, "the long layer for a decoder of parity.decoders", "out", n=65_536)
    c = command(tests, "both for a decoder of parity.decoders", "out")
    c.add_argument("--method", required=True)
    c.add_argument("--spec", type=json.loads, required=True, help="JSON: the settings of exact and long, by name")
    command(faults, "decoders with a planted fault", "out", n=10_000)
    c = command(calibration, "sizes of the tests", "out", kind=False)
    c.add_argument("--replicates", type=int, default=1000)
    return main


def main() -> None:
    a = parser().parse_args()
    pin_threads(1)  # tensors are small: chunks run side by side instead
    begin = time.perf_counter()
    write_json(a.out, {**a.run(a), "seconds": round(time.perf_counter() - begin, 1)})


if __name__ == "__main__":
    one_line(main)
