"""Fetch and verify the models of an experiment, or write an experiment for a published checkpoint.

python -m parity.models add llamagen-xl FOLDER
python -m parity.models add llamagen-xl hub:owner/name --text flan-t5-xl
python -m parity.models pin workflow/experiments/sjd-table1.yaml
python -m parity.models --kind discrete --name scenes --spec '{}' --out results/checkpoints/scenes/manifest.json
python -m parity.models convert --model mar --target mar_base.pth --draft mar_small.pth --kl kl16.ckpt --out weights/mar
"""

import argparse
import json
import sys
from pathlib import Path

from parity.base.command import add_arguments, run_command
from parity.base.files import write_json
from parity.experiment.options import KINDS


def write_manifest() -> None:
    """Parse the command line, fetch and verify a model's files, and write its manifest to `--out`."""
    from parity.models import fetch

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=[*KINDS, "networks"], required=True)
    parser.add_argument("--name", required=True, help="of the model in the configuration: what messages call it")
    parser.add_argument("--spec", type=json.loads, required=True, help="JSON: what the configuration says of it")
    add_arguments(parser, "out")
    a = parser.parse_args()
    write_json(a.out, fetch.make_manifest(a.kind, a.name, a.spec, a.out.parent))


def convert_model() -> None:
    """Convert published checkpoints of a continuous family to a folder of weights that an experiment reads."""
    from parity.models.continuous.published import RELEASED, convert

    parser = make_parser("convert", convert_model.__doc__)
    parser.add_argument("--model", choices=RELEASED, required=True)
    add_arguments(parser, "target", "out")
    parser.add_argument("--draft", type=Path, help="of the same family; without it, methods that draft cannot run")
    parser.add_argument("--kl", type=Path, help="the autoencoder, where the target's file does not hold it")
    parser.add_argument("--tokenizer", type=Path, help="tokenizer.json or its folder, for a family that reads captions")
    parser.add_argument("--grid", type=int, default=0, help="tokens a side, where a family can be resized")
    parser.add_argument("--cell", type=int, default=0, help="tokens a side of a cell, where a family has cells")
    a = parser.parse_args(sys.argv[2:])
    convert(a.model, a.target, a.draft, a.kl, a.out, a.tokenizer, a.grid, a.cell)


def add_model() -> None:
    """Write an experiment for a published model: files, digests and sizes are read from its folder or repository."""
    from parity.experiment import weights
    from parity.models import add

    parser = make_parser("add", add_model.__doc__)
    parser.add_argument("name", help="of the model in the configuration")
    parser.add_argument("where", help="a folder, or hub:owner/name, with @revision for another than the newest commit")
    parser.add_argument("--grid", type=int, help="tokens a side, where the file's name does not tell the pixels")
    parser.add_argument("--pixels", type=int, help="of an image's side, for a folder whose name does not tell them")
    parser.add_argument("--vq", type=Path, help="the image tokenizer, if it is not in the model's folder")
    parser.add_argument("--text", type=Path, help="folder of the text encoder, if it is not in the model's folder")
    parser.add_argument("--drafter", type=Path, help="a released drafter, or one that `parity train` made")
    parser.add_argument("--heads", type=Path, help="heads that `parity train` made")
    parser.add_argument("--draft", type=Path, help="a draft model: a smaller one of the family, or of `parity train`")
    parser.add_argument("--tokenizer", type=Path, help="of a continuous model that reads captions")
    parser.add_argument("--captions", type=Path, help="for a continuous model that reads them, one a line")
    parser.add_argument("--out", type=Path, help="the experiment's file; NAME.yaml otherwise")
    a = parser.parse_args(sys.argv[2:])
    local_parts = {
        component: path
        for component in ("text", "vq", *weights.SPECULATORS, "tokenizer")
        if (path := getattr(a, component))
    }
    out = a.out or Path(f"{a.name}.yaml")
    add.check_free(out)
    add.write(a.name, add.identify(a.where, a.grid, local_parts, a.pixels), out, a.captions)


def pin_models() -> None:
    """Write to pins.yaml the commits and digests of the networks that an experiment names by repository."""
    from parity.experiment import pins
    from parity.models import pin

    parser = make_parser("pin", pin_models.__doc__)
    parser.add_argument("experiment", type=Path, help="its file")
    parser.add_argument("--out", type=Path, default=pins.FILE, help="where they are kept: %(default)s, which runs read")
    a = parser.parse_args(sys.argv[2:])
    pin.write(a.experiment, a.out)


def plan_needs() -> None:
    """Print what an experiment will need: cells and samples, downloads and disk, and what is not here."""
    from parity.experiment import cells, checks, pins, weights
    from parity.models import pin, plan

    parser = make_parser("plan", plan_needs.__doc__)
    parser.add_argument("--config", type=json.loads, required=True, help="JSON: the experiment, checked")
    parser.add_argument("--absent", type=json.loads, default=[], help="JSON: lines that say what is not here")
    a = parser.parse_args(sys.argv[2:])
    config = checks.make_config(a.config)
    all_cells = cells.cells(config, [])
    models = [pair for kind in cells.kinds(config) for pair in weights.list_models(config, kind).items()]
    none = pins.NONE["commit"]
    pinned = {n: m for n, m in models if m.source == "hub" and none not in " ".join([m.revision, *m.files.values()])}
    listed = {name: pin.weigh(m.repo, m.revision, m.files) for name, m in pinned.items()}
    print("\n".join(plan.describe(config, all_cells, listed, a.absent)))


def fetch_experiment() -> None:
    """Fetch all that an experiment needs: commits, files in data/, checkpoints, and networks that judge."""
    from parity.experiment import catalogue, pins
    from parity.models import fetch_all

    parser = make_parser("fetch", fetch_experiment.__doc__)
    parser.add_argument("--config", type=json.loads, required=True, help="JSON: the experiment, unchecked")
    add_arguments(parser, "catalogue")
    parser.add_argument("--out", type=Path, default=pins.FILE, help="where commits and digests are kept: %(default)s")
    a = parser.parse_args(sys.argv[2:])
    fetch_all.fetch_all(a.config, catalogue.read(a.catalogue), a.out)


def make_parser(name: str, description: str | None) -> argparse.ArgumentParser:
    return argparse.ArgumentParser(prog=f"python -m parity.models {name}", description=description)


COMMANDS = {
    "add": add_model,
    "convert": convert_model,
    "fetch": fetch_experiment,
    "pin": pin_models,
    "plan": plan_needs,
}

if __name__ == "__main__":
    run_command(COMMANDS.get(" ".join(sys.argv[1:2]), write_manifest))
