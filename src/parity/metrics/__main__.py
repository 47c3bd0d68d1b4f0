"""Export images to benchmarks, and compute what metrics need beside a cell.

reference           images that quality is compared with, and their features
reference-features  the same for published models: the user's own, as the declared networks see them
export              images for GenEval, DPG-Bench and T2I-CompBench, and their results read back into the summary
accuracy            of a text model itself: last words and multiple choice
drafted-trees       how alike drafted sequences, and features by their distance, are
"""

import argparse
import importlib
import json

from parity.base.command import add_arguments, pin_threads, run_command
from parity.base.devices import take_device
from parity.experiment.module_metadata import modules


def parser() -> argparse.ArgumentParser:
    """Make the parser of all commands; each stores as `run` which function below `parity.metrics` does it."""
    main = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = main.add_subparsers(required=True)

    def command(name: str, run: str, *flags: str) -> argparse.ArgumentParser:
        """Add a command with the arguments `flags`. run: "<module>.<function>", imported when the command is given."""
        added = commands.add_parser(name)
        added.set_defaults(run=run)
        add_arguments(added, *flags, "threads", "device")
        return added

    reference = command("reference", "images.write_reference", "prompts*", "out", "checkpoint")
    reference.add_argument("--kind", choices=modules("metrics/samples"), required=True)
    reference.add_argument("--folder", default="", help="of the user's own images")
    reference.add_argument("--count", type=int, required=True)
    compared = command("reference-features", "images.write_reference_features", "networks*", "out")
    compared.add_argument("--reference", default="", help="a folder of images, or an .npz; '' for none")
    compared.add_argument("--count", type=int, default=0, help="images of it; 0 for all")
    compared.add_argument("--protocol", default="", help="how images of published models are measured")
    export = command("export", "export.run", "cell", "prompts?", "out?", "results?")
    export.add_argument("--layout", choices=("geneval", "dpg", "t2i_compbench"), required=True)
    export.add_argument("--format", default="auto", help="of the prompt file, as image.prompts.format")
    accuracy = command("accuracy", "accuracy.run", "out", "checkpoint")
    accuracy.add_argument("--task-kind", choices=("last_word", "choice"), required=True)
    accuracy.add_argument("--settings", type=json.loads, required=True, help="JSON: the task, as in the configuration")
    trees = command("drafted-trees", "drafted_trees.run", "cell", "inputs+", "shards+", "out+", "checkpoint")
    trees.add_argument("--images", type=int, default=32)
    return main


def main() -> None:
    """Run the command that was typed."""
    a = parser().parse_args()
    pin_threads(a.threads)
    a.device = take_device(a.device)
    module, _, function = a.run.partition(".")
    getattr(importlib.import_module(f"parity.metrics.{module}"), function)(a)


if __name__ == "__main__":
    run_command(main)
