"""python -m parity.equality COMMAND ... : the equality layers from the command line.

    certify MODULE_OR_FILE.py:FUNCTION [--option k=v ...] [--n N] [--seed S]    verdict and table of any decoder
    exact --method NAME ... --out rows.json                                     layer 1 (and pathwise, for --pathwise) of one of ours
    mutants | continuous | anyorder | calibration --out rows.json               the layers that test the tests

--out files hold {"rows": [...], "seconds": s} and, for calibration, "p_values": {test: [...]}; see parity/equality/rows.py for a row.
"""

import argparse
import importlib
import importlib.util
import json
import os
import sys
import time
from pathlib import Path
from typing import Any


def load(name: str) -> Any:
    """The object named by `package.module:name` or `path/to/file.py:name`."""
    module, colon, function = name.rpartition(":")
    if not colon:
        raise SystemExit(f"{name}: expected MODULE:FUNCTION or FILE.py:FUNCTION")
    if module.endswith(".py"):
        if not Path(module).is_file():
            raise SystemExit(f"{module}: no such file")
        spec = importlib.util.spec_from_file_location(Path(module).stem, module)
        loaded = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
        sys.modules[Path(module).stem] = loaded
        spec.loader.exec_module(loaded)  # type: ignore[union-attr]
    else:
        sys.path.insert(0, os.getcwd())
        loaded = importlib.import_module(module)
    if not hasattr(loaded, function):
        raise SystemExit(f"{module}: has no {function!r}")
    return getattr(loaded, function)


def option(text: str) -> tuple[str, Any]:
    """`k=v`, v read as JSON where it is JSON (4, 0.5, true), else as text."""
    key, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r}: expected key=value")
    try:
        return key, json.loads(value)
    except json.JSONDecodeError:
        return key, value


def parser() -> argparse.ArgumentParser:
    main = argparse.ArgumentParser(
        prog="python -m parity.equality", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = main.add_subparsers(dest="command", required=True)

    def command(name: str, help: str, n: int | None) -> argparse.ArgumentParser:
        c = commands.add_parser(name, help=help)
        if n is not None:
            c.add_argument("--n", type=int, default=n, help=f"sequences a sample ({n})")
        c.add_argument("--threads", type=int, default=1, help="chunks decoded side by side")
        if name != "certify":
            c.add_argument("--out", type=Path, required=True, help="JSON file of rows")
        return c

    c = command("certify", "verdict and table of any object with the decoder signature", 100_000)
    c.add_argument("decoder", help="MODULE:FUNCTION or FILE.py:FUNCTION")
    c.add_argument("--option", type=option, action="append", default=[], metavar="K=V", help="an option of the decoder")
    c.add_argument("--seed", type=int, default=0, help="of the run; a rejection is repeated with the next")
    c.add_argument("--models", choices=("full", "small"), default="full")
    c.add_argument("--margin", type=float, default=0.025, help="TV below which a bound certifies")
    c.add_argument("--claim", choices=("lossless", "lossy"), default="lossless")

    c = command("exact", "layer 1 for a decoder of parity.decoders", 1_000_000)
    c.add_argument("--method", required=True, help="module in parity.decoders and function in it")
    c.add_argument("--options", type=json.loads, default={}, help="JSON object")
    c.add_argument("--claim", choices=("lossless", "lossy"), default="lossless")
    c.add_argument("--models", choices=("full", "small"), default="full")
    c.add_argument(
        "--seeds",
        type=json.loads,
        default=[0, 1],
        help="JSON list; the first is the run, the second repeats what it rejected",
    )
    c.add_argument("--draws", type=int, default=9999, help="of the Monte-Carlo null")
    c.add_argument("--key", default="", help="key of the cell, copied to the rows")
    c.add_argument(
        "--pathwise", action="store_true", help="also compare with ar token for token (for decoders coupled to it)"
    )

    for name, help, n in (
        ("mutants", "layer 2: planted faults", 10_000),
        ("continuous", "layer 5: Gaussian mixtures", 20_000),
        ("anyorder", "layer 5: any-subset models", 20_000),
    ):
        c = command(name, help, n)
        c.add_argument("--seeds", type=json.loads, default=[0, 1])
        c.add_argument("--draws", type=int, default=1999)
        if name == "mutants":
            c.add_argument("--n-tv", type=int, help="sequences from which the joint TV is measured (3 n)")

    c = command("calibration", "layer 7: sizes", None)
    c.add_argument("--replicates", type=int, default=1000)
    c.add_argument("--seed", type=int, default=0)
    c.add_argument("--draws", type=int, default=9999)
    return main


def run(a: argparse.Namespace) -> int:
    import torch

    torch.set_num_threads(1)
    if a.command == "certify":
        from parity.equality.certificate import certify

        settings = {
            "n": a.n,
            "models": a.models,
            "seeds": (a.seed, a.seed + 1),
            "margin": a.margin,
            "claim": a.claim,
            "threads": a.threads,
        }
        print(certify(load(a.decoder), **settings, **dict(a.option)))
        return 0

    from parity.base.files import write_json

    begin, extra = time.perf_counter(), {}
    if a.command == "exact":
        from parity.equality.exact import exact
        from parity.equality.pathwise import pathwise

        decoder = getattr(importlib.import_module(f"parity.decoders.discrete.{a.method}"), a.method)
        common = {"method": a.method, "key": a.key, "models": a.models, "threads": a.threads}
        rows = exact(decoder, a.options, claim=a.claim, n=a.n, seeds=a.seeds, draws=a.draws, **common)
        if a.pathwise:
            rows += pathwise(decoder, a.options, n=min(a.n, 10_000), seeds=a.seeds[:1], **common)
    elif a.command == "mutants":
        from parity.equality.faults import mutants

        rows = mutants(n=a.n, seeds=a.seeds, n_tv=a.n_tv, draws=a.draws, threads=a.threads)
    elif a.command == "continuous":
        from parity.equality.mixtures import continuous

        rows = continuous(n=a.n, seeds=a.seeds, draws=a.draws)
    elif a.command == "anyorder":
        from parity.equality.anyorder import anyorder

        rows = anyorder(n=a.n, seeds=a.seeds, draws=a.draws)
    else:
        from parity.equality.calibration import calibration

        rows, extra["p_values"] = calibration(replicates=a.replicates, seed=a.seed, draws=a.draws)
    write_json(a.out, {"rows": rows, "seconds": round(time.perf_counter() - begin, 1)} | extra)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(run(parser().parse_args()))
    except ValueError as error:
        sys.exit(f"error: {error}")
