"""Train the embedded models; `snakemake --cores all train_embedded train_words train_continuous` trains all.

    python -m recipes vq --work results/training --threads 2
    python -m recipes draft --work results/training --device cuda                     minutes, not hours
    python -m recipes xlnet --work results/training --scheme '{"permutations": 1}'    an ablation: all orders
    python -m recipes install discrete --work results/training                        into the package

Steps, batch and examples are those of the recipe unless an option changes them. Each run is seeded, and continues from
its last checkpoint, which is written every three minutes. `install` copies weights into the package, with model cards
and digests.
"""

import argparse
import json

from parity.base.command import add_arguments, pin_threads, run_command
from parity.base.errors import ParityError
from parity.embedded import WEIGHTS
from recipes.install import install
from recipes.runs import INSTALLS, ON_DEVICES, RUNS

SIZES = ("steps", "batch", "examples")


def train(a: argparse.Namespace) -> None:
    """Train the recipe that the command line `a` names: its weights and log are written to the folder `a.work`. Raises
    ParityError if a size is below 1, for a device that the recipe cannot use, or for a scheme of a recipe other than
    xlnet."""
    run = RUNS[a.recipe]
    sizes = {name: getattr(run, name) if getattr(a, name) is None else getattr(a, name) for name in SIZES}
    for name, value in sizes.items():
        if value < 1:
            raise ParityError(f"--{name} {value}: allowed: at least 1")
    if a.device != "cpu" and run.name not in ON_DEVICES:
        raise ParityError(f"--device {a.device}: allowed: cpu, for {run.name}")
    if a.scheme and run.name != "xlnet":
        raise ParityError(f"--scheme {sorted(a.scheme)[0]}: unknown key; allowed: none, for {run.name} has no scheme")
    pin_threads(a.threads)
    from parity.base.devices import check
    from parity.train import loop

    check(a.device, "bfloat16")
    job = loop.Job(run.name, a.work, **sizes, seed=a.seed, threads=a.threads, device=a.device, scheme=a.scheme)
    loop.train(run.make_recipe(job), job)


def main() -> None:
    """Parse the command line and train the recipe that it names, or install the trained weights of a kind of model."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="recipe", required=True)
    for name, run in RUNS.items():
        command = commands.add_parser(name, help=run.card)
        for size in SIZES:
            command.add_argument(f"--{size}", type=int, help=f"{getattr(run, size):,}")
        command.add_argument("--seed", type=int, default=0)
        command.add_argument("--scheme", type=json.loads, default={}, help="JSON: what an ablation changes")
        add_arguments(command, "threads", "device", "work")
        command.set_defaults(main=train)
    command = commands.add_parser("install", help="trained weights into the package")
    command.add_argument("kind", choices=list(INSTALLS))
    add_arguments(command, "work", "out?")
    command.set_defaults(main=lambda a: install(a.kind, a.work, a.out or WEIGHTS / a.kind))
    a = parser.parse_args()
    a.main(a)


if __name__ == "__main__":
    run_command(main)
