"""Export pictures to benchmarks, and compute the metrics of cells.

reference           pictures that quality is compared with, and their features
reference-features  the same for published models: the user's own, as the declared networks see them
export              pictures for GenEval, DPG-Bench and T2I-CompBench, and their results read back into the summary
accuracy            of a text model itself: last words and multiple choice
drafted-trees       how alike drafted sequences, and features by their distance, are

The module of a command is imported by name, as are the kinds of model.
"""

import argparse
import importlib
import json

from parity.base.command import arguments, one_line, pin_threads
from parity.base.devices import take_device
from parity.experiment.module_metadata import modules

SHARED = ("checkpoint", "threads", "device")
COMMANDS = {  # module and function of each
    "reference": ("reference", "draw"),
    "reference-features": ("reference", "look"),
    "export": ("export", "run"),
    "accuracy": ("accuracy", "run"),
    "drafted-trees": ("drafted_trees", "run"),
}


def parser() -> argparse.ArgumentParser:
    main = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = main.add_subparsers(dest="command", required=True)

    def command(name: str, *flags: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name)
        arguments(added, *flags, *SHARED)
        return added

    reference = command("reference", "prompts*", "out")
    reference.add_argument("--kind", choices=modules("metrics/samples"), required=True)
    reference.add_argument("--folder", default="", help="of the user's own pictures")
    reference.add_argument("--count", type=int, required=True)
    compared = commands.add_parser("reference-features")
    arguments(compared, "networks*", "out", "threads", "device")
    compared.add_argument("--reference", default="", help="a folder of pictures, or an .npz; '' for none")
    compared.add_argument("--count", type=int, default=0, help="pictures of it; 0 for all")
    compared.add_argument("--protocol", default="", help="how pictures of published models are measured")
    export = commands.add_parser("export")
    arguments(export, "cell", "prompts?", "out?", "results?", "threads", "device")
    export.add_argument("--layout", choices=("geneval", "dpg", "t2i_compbench"), required=True)
    export.add_argument("--format", default="auto", help="of the prompt file, as image.prompts.format")
    accuracy = command("accuracy", "out")
    accuracy.add_argument("--task-kind", choices=("last_word", "choice"), required=True)
    accuracy.add_argument("--settings", type=json.loads, required=True, help="JSON: the task, as in the configuration")
    trees = command("drafted-trees", "cell", "inputs+", "shards+", "out+")
    trees.add_argument("--images", type=int, default=32)
    return main


def main() -> None:
    a = parser().parse_args()
    pin_threads(a.threads)
    a.device = take_device(a.device)
    module, function = COMMANDS[a.command]
    getattr(importlib.import_module(f"parity.metrics.{module}"), function)(a)


if __name__ == "__main__":
    one_line(main)
