"""Run the equality layers from the command line.

Of a decoder of your own: `parity certify decoder`.

    tests --kind K --method NAME --spec JSON --out rows.json         the next two, as the workflow asks for them
    exact --kind K --method NAME ... --out rows.json                 a decoder of ours on targets whose distribution is
                                                                     known
    long --kind K --method NAME ... --out rows.json                  the same at its own options, on long models

--out files hold {"rows": [...], "seconds": s}; see parity_certify.result_rows for a row. Layers that look
at a cell are run by `python -m parity.measure`.
"""

import argparse
import json
import time
from typing import Any

from parity_certify import result_rows as R
from parity_certify.import_by_name import import_named_module

from parity.base.command import add_arguments, pin_threads, run_command
from parity.base.files import write_json
from parity.experiment.decoders import import_decoder
from parity.experiment.options import declaration, measure_reach, options

KINDS = ("discrete", "anysubset", "continuous")
FLAGS: dict[str, dict[str, Any]] = {
    "kind": {"choices": KINDS, "required": True},
    "method": {"required": True, "help": "a decoder of this kind, by its name in a configuration"},
    "options": {"type": json.loads, "default": {}, "help": "JSON object"},
    "claim": {"choices": ("lossless", "lossy"), "default": "lossless"},
    "models": {"choices": ("full", "small"), "default": "full"},
    "n": {"type": int, "help": "draws of a sample (%(default)s)"},
    "seeds": {"type": json.loads, "default": [0, 1], "help": "JSON list; the second repeats a rejection"},
    "draws": {"type": int, "help": "of the Monte-Carlo null"},
    "alpha": {"type": float, "default": R.ALPHA, "help": "level of tests and bounds (%(default)s)"},
    "longest": {"type": int, "default": 0, "help": "discrete: tokens of the images, if more than 256"},
    "pathwise": {"action": "store_true", "help": "for decoders coupled to plain decoding: token for token too"},
    "spec": {"type": json.loads, "required": True, "help": "JSON: the settings of exact and long, by name"},
}


def run_exact(a: argparse.Namespace) -> dict[str, Any]:
    """Run the exact layer for one decoder. Returns {"rows": its result rows}, with `a.pathwise` also those that compare
    its tokens with plain decoding's under the same noise."""
    kind = import_named_module(f"parity.equality.targets.{a.kind}")
    decoder = import_decoder(a.kind, a.method)
    targets = kind.targets(declaration(a.kind, a.method).TARGETS or a.models)
    common = {"method": a.method, "threads": a.threads}
    settings = {"claim": a.claim, "draws": a.draws or kind.DRAWS, "family": kind.FAMILY, "n": a.n, "seeds": a.seeds}
    with R.set_alpha(a.alpha):
        rows = import_named_module("parity.equality.exact").exact(decoder, targets, a.options, **settings, **common)
    if a.pathwise:
        compare_tokens = import_named_module("parity.equality.pathwise").compare_tokens
        rows += compare_tokens(decoder, targets, a.options, n=min(a.n, 10_000), seeds=a.seeds[:1], **common)
    return {"rows": rows}


def run_long(a: argparse.Namespace) -> dict[str, Any]:
    """Run the long layer for one decoder, on models long enough for its options. Returns {"rows": its result rows}."""
    kind = import_named_module(f"parity.equality.targets.{a.kind}")
    lengths = measure_reach(a.kind, a.method, options(a.kind, a.method, a.options))
    longest = {"longest": a.longest} if a.longest else {}
    targets = kind.long_targets(lengths, a.n, which=declaration(a.kind, a.method).TARGETS, **longest)
    if a.kind == "discrete" and a.claim == "lossless":
        targets = [*targets, kind.make_real_vocabulary(lengths)]
    settings = {"claim": a.claim, "draws": 0, "family": "all", "layer": "long", "n": a.n, "seeds": a.seeds}
    run = import_named_module("parity.equality.exact").exact
    with R.set_alpha(a.alpha):
        return {"rows": run(import_decoder(a.kind, a.method), targets, a.options, method=a.method, **settings)}


def run_layers(a: argparse.Namespace) -> dict[str, Any]:
    """Run the layers "exact" and "long", each only if the specification `a.spec` has settings for it. Returns the
    result of each by name: {"exact": {"rows": [...]}, "long": {"rows": [...]}}."""
    shared = {"kind": a.kind, "method": a.method, "threads": a.threads, "draws": None, "longest": 0}
    commands = {"exact": run_exact, "long": run_long}
    return {name: commands[name](argparse.Namespace(**{**shared, **settings})) for name, settings in a.spec.items()}


def make_parser() -> argparse.ArgumentParser:
    """Make the parser of the commands exact, long and tests; the function that runs one is its `run`."""
    main = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = main.add_subparsers(dest="command", required=True)

    def add_command(name: str, run: Any, help: str, *flags: str, **defaults: Any) -> argparse.ArgumentParser:
        """Add a command that `run` carries out, with --threads, --out and the given FLAGS; return its parser."""
        c = commands.add_parser(name, help=help)
        add_arguments(c, "threads", "out")
        for flag in flags:
            c.add_argument(f"--{flag}", **FLAGS[flag])
        c.set_defaults(run=run, **defaults)
        return c

    decoder = ("kind", "method", "options", "claim", "n", "seeds", "draws", "alpha")
    exact_help = "the exact layer for a decoder of parity_decoders"
    add_command("exact", run_exact, exact_help, *decoder, "models", "pathwise", n=1_000_000)
    add_command("long", run_long, "the long layer for a decoder of parity_decoders", *decoder, "longest", n=65_536)
    add_command("tests", run_layers, "both for a decoder of parity_decoders", "kind", "method", "spec")
    return main


def main() -> None:
    """Run the command of the command line and write its result and the seconds that it took to the JSON file --out."""
    a = make_parser().parse_args()
    pin_threads(1)  # torch gets one thread, since its tensors are small; chunks of a sample run side by side instead
    start = time.perf_counter()
    result = a.run(a)
    write_json(a.out, {"seconds": round(time.perf_counter() - start, 1), **result})


if __name__ == "__main__":
    run_command(main)
