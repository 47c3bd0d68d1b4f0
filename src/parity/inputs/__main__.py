"""Prepare what is decoded: prompts, captions, text tasks.

python -m parity.inputs prompts --spec '{"file": "prompts/scenes.txt", "limit": 64}' --digest HEX --out FOLDER
python -m parity.inputs captions --prompts 0.json --checkpoint manifest.json --out 0.npz
python -m parity.inputs task --task-kind stories --settings JSON --checkpoint manifest.json --out stories.npz
"""

import argparse
import json
from collections.abc import Callable

from parity.base.command import add_arguments, pin_threads, run_command
from parity.base.digests import read_manifest


def prompts(a: argparse.Namespace) -> None:
    """Write the images that a prompt set asks for to JSON files in the folder `--out`, one file for each shard."""
    from parity.experiment.schema import PromptSpec, validate
    from parity.inputs.prompts import write_prompts

    write_prompts(validate(PromptSpec, a.spec, "image.prompts"), a.digest, a.out)


def captions(a: argparse.Namespace) -> None:
    """Encode the captions of a JSON file of prompts with a model's text encoder; write them to the .npz `--out`."""
    from parity.base.devices import take_device
    from parity.inputs.prompts import write_captions

    pin_threads(a.threads)
    write_captions(a.prompts, read_manifest(a.checkpoint), take_device(a.device), a.out)


def task(a: argparse.Namespace) -> None:
    """Build a text task in the tokens of a model, and write it to the .npz `--out`."""
    from parity.inputs import tasks

    pin_threads(a.threads)
    tasks.write(a.out, tasks.build(a.task_kind, a.settings, tasks.load_vocabulary(read_manifest(a.checkpoint))))


def main() -> None:
    """Parse the command line and run one of the commands `prompts`, `captions` and `task`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)

    def command(run: Callable[[argparse.Namespace], None], *flags: str) -> argparse.ArgumentParser:
        """Add a command that is named like its function `run`, with these flags, and return its parser."""
        c = commands.add_parser(run.__name__)
        c.set_defaults(run=run)
        add_arguments(c, *flags)
        return c

    c = command(prompts, "out")
    c.add_argument("--spec", type=json.loads, required=True, help="JSON: what the configuration says of the prompts")
    c.add_argument("--digest", required=True, help="of the prompts, when the run was planned")
    command(captions, "prompts", "checkpoint", "threads", "device", "out")
    c = command(task, "checkpoint", "threads", "out")
    c.add_argument("--task-kind", required=True)
    c.add_argument("--settings", type=json.loads, required=True, help="JSON: what the configuration says of the task")
    a = parser.parse_args()
    a.run(a)


if __name__ == "__main__":
    run_command(main)
