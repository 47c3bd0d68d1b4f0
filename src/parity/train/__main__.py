"""Train a speculator of a model of image tokens from its own samples (heads, draft model, drafter), or a text model.

    parity train heads --model scenes --out speculators
    parity train draft --model mine --configfile mine.yaml --prompts captions.txt --layers 6 --out speculators
    parity train --auto --model mine --configfile mine.yaml          which of them gains most, before any is trained
    parity train arm corpus.jsonl --from xlnet-base-cased --out arm  an any-subset model of text, see its --help
    parity train own --method path/to/mine.py:mine                   the draft network of a decoder of others

A speculator needs no data set: the model draws the rows itself, by the fastest lossless method, at the sampling of the
experiment. A killed command goes on where it was. OUT gets the weights, a card, and an experiment that uses them.
"""

import argparse
import importlib
import json
import sys
from pathlib import Path
from typing import Any

import yaml
from parity_certify.seeding import check_seed

from parity.base.command import add_arguments, add_own_device, pin_threads, run_command
from parity.base.devices import take_device
from parity.base.digests import sha256
from parity.base.errors import ParityError
from parity.base.files import publish, read_json
from parity.experiment import checks, tuned, weights
from parity.experiment.caption_cleaning import check_prompts
from parity.experiment.checks import read_config
from parity.experiment.prompt_files import iter_rows, read_prompts
from parity.experiment.schema import PromptSpec, TrainingSpec, validate
from parity.generate import Generator, check_captions
from parity.train import format_log

EVALUATIONS, EVERY = 8, 50  # of the speculator on held-out rows, over all steps; a multiple of this many steps apart
HELD_SHARE = 8  # one prompt in this many is held out, if there are at least twice as many


def read_generator(a: argparse.Namespace) -> Generator:
    """Prepare the model that is named, of an experiment's file or of its checked JSON."""
    config = checks.make_config(a.config) if a.config else read_config(a.configfile)[0]
    if config.image is None:
        raise ParityError(f"{a.configfile}: no section image; allowed: an experiment with models of image tokens")
    cases = {case.model: case for case in tuned.list_cases(config, "discrete")}
    if a.model and a.model not in cases:
        raise ParityError(f"--model {a.model!r}: not among the models of image tokens; allowed: {', '.join(cases)}")
    case = cases[a.model or next(iter(cases))]
    device = take_device(a.device, case.setting.get("dtype", "float32"))
    return Generator(case, config, device=device, manifest=read_json(a.checkpoint) if a.checkpoint else None)


def read_all_prompts(a: argparse.Namespace, generator: Generator) -> list[str]:
    """Read the prompts of the file --prompts, all of them, or those of the experiment. Raises ParityError for one that
    the model cannot read."""
    assert generator.config.image is not None
    if not a.prompts:
        prompts = read_prompts(generator.config.image.prompts)
        check_prompts(prompts, generator.case.spec, f"image.prompts.file = {generator.config.image.prompts.file!r}: ")
        return prompts
    prompts = [row["prompt"] for row in iter_rows(PromptSpec(file=str(a.prompts)), Path(), f"--prompts {a.prompts}")]
    if not prompts:
        raise ParityError(f"--prompts {a.prompts}: holds no prompt; allowed: one prompt a line")
    check_captions(prompts, generator.case.spec)
    return prompts


def describe_model(generator: Generator, kind: str, file: Path) -> dict[str, Any]:
    """Describe the model with its speculator as an entry of a configuration; an embedded one by its files."""
    spec, manifest = generator.case.spec, generator.manifest
    entry = spec.model_dump(exclude_unset=True)
    if spec.source == "embedded":
        sizes = weights.read_sizes(spec)
        default = weights.read_family(spec.family)["sizes"]
        network = {key: value for key, value in sizes.items() if value != default[key]}
        names = weights.read_family(spec.family)["files"]
        files = {name: str(shorten(Path(manifest["files"][name]))) for name in names}
        digests = {name: manifest["sha256"][name] for name in names}
        entry = {"family": spec.family, "source": "files", "files": files, "sha256": digests, "network": network}
    entry["files"] = {**entry["files"], kind: str(file.resolve())}
    entry["sha256"] = {**entry["sha256"], kind: sha256(file)}
    return entry


def shorten(path: Path) -> Path:
    """Return a path relative to the current folder if it lies there."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def write_experiment(generator: Generator, kind: str, file: Path) -> Path:
    """Write an experiment in which the model has its speculator, beside its file; returns the path."""
    from parity.train.samples import complete_options
    from parity.train.speculators import METHODS

    model, config = generator.case.model, generator.config
    assert config.image is not None
    image = config.image.model_dump(exclude_unset=True, exclude={"speculators"}, mode="json")
    methods = ("ar", "mtj", METHODS[kind])
    first = {method: (image["methods"].get(method) or [{}])[0] for method in methods}
    image["methods"] = {method: [complete_options(generator, method, first[method])] for method in methods}
    entry = describe_model(generator, kind, file)
    content = {"experiment": f"{config.experiment}-{kind}", "models": {model: entry}, "image": image}
    out = file.with_suffix(".yaml")
    publish(out, yaml.safe_dump(content, sort_keys=False, width=120).encode())
    lines = {"files": {kind: entry["files"][kind]}, "sha256": {kind: entry["sha256"][kind]}}
    print(f"models.{model} of a configuration gets:\n{yaml.safe_dump(lines, sort_keys=False).rstrip()}")
    return out


def write_card(generator: Generator, kind: str, record: dict[str, Any], prompts: tuple[int, int], drawn: int) -> str:
    """Write a speculator's card as Markdown; prompts: read and held out; drawn: rows."""
    case, last = generator.case, record["log"][-1]
    share = f"{record['parameters']['speculator'] / record['parameters']['target']:.1%} of the target's parameters"
    held = f"{prompts[1]} held out" if prompts[1] < prompts[0] else "the same held out, with other noise"
    facts = [
        f"# {kind} of {case.model}",
        "",
        f"- target: {case.spec.family}, revision {case.setting['revision']}; dtype {generator.dtype}",
        f"- sampling: {json.dumps(case.setting['sampling'])}",
        f"- size: {record['parameters']['speculator']:,} parameters, {share}",
        f"- data: {drawn:,} rows that the target drew by {record['drawn_by']}, for {prompts[0]:,} prompts; {held}",
        f"- training: {record['taken']:,} steps of batch {record['batch']}; seed {record['seed']}; on"
        f" {record['device']}",
        f"- passes of held-out rows: {last['passes']:.1f}; {last['passes_without']:.1f} by {record['without']}, which"
        f" has no speculator; {last['gain']:.2f} times plain decoding's speed there, batch {record['decoded']}",
    ]
    return "\n".join([*facts, *format_log(record["log"])])


def train(a: argparse.Namespace, spec: TrainingSpec) -> None:
    """Train the speculator that is asked for, unless OUT holds it, and write it, its card and an experiment."""
    import torch

    from parity.base.weights import count_parameters
    from parity.train import loop, speculators
    from parity.train.samples import Samples

    generator = read_generator(a)
    speculators.check_kind(generator, a.kind)
    prompts = read_all_prompts(a, generator)
    splits = len(prompts) >= 2 * HELD_SHARE
    held = prompts[::HELD_SHARE] if splits else prompts
    learnt = [prompt for i, prompt in enumerate(prompts) if i % HELD_SHARE or not splits]
    torch.manual_seed(a.seed)
    net, header = speculators.build(generator, a.kind, spec.layers, spec.width)
    a.out.mkdir(parents=True, exist_ok=True)
    # on a CPU no method draws a batch of rows sooner than plain decoding
    rows = Samples(generator, a.out / "rows", learnt, spec.drawn, plain=generator.device == "cpu")
    held_out = Samples(generator, a.out / "held-out", held, min(speculators.DECODED, spec.drawn))
    settings = {**spec.model_dump(), "model": generator.case.setting, "rows": rows.folder.name}
    settings.pop("minutes")
    sizes = {"steps": spec.steps, "batch": spec.batch, "examples": spec.images, "seed": a.seed}
    job = loop.Job(
        a.kind, a.out, **sizes, threads=a.threads, device=generator.device, scheme=settings, minutes=spec.minutes
    )
    lesson = speculators.Lesson(generator, a.kind, net, rows, held_out)
    every = EVERY * max(1, round(spec.steps / EVALUATIONS / EVERY))
    log = loop.train(lesson.make_recipe(job, header, every), job)
    record = read_json(job.out.with_suffix(".json"))
    record |= {"parameters": {"speculator": count_parameters(net), "target": count_parameters(lesson.target)}}
    record |= {"drawn_by": rows.method, "without": held_out.method, "decoded": held_out.at_once}
    record["taken"] = max(int(row["step"]) for row in log if "step" in row)
    card = write_card(generator, a.kind, record, (len(prompts), len(held)), len(rows.batches) * rows.at_once)
    publish(job.out.with_suffix(".md"), card.encode())
    print(f"written: {job.out}, its card, and {write_experiment(generator, a.kind, job.out)}")


def main() -> None:
    """Parse the command line; train what it names: a speculator, a text model, another's draft network; or print the
    table of --auto."""
    if sys.argv[1:2] in (["arm"], ["own"]):
        importlib.import_module(f"parity.train.{sys.argv.pop(1)}").main()
        return
    parser = argparse.ArgumentParser(
        prog="parity train", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    default = TrainingSpec()
    parser.add_argument("kind", nargs="?", choices=["heads", "draft", "drafter"])
    parser.add_argument("--auto", action="store_true", help="print which speculator is predicted to gain most")
    parser.add_argument("--model", default="", help="of the configuration (its first of image tokens)")
    parser.add_argument("--configfile", type=Path, default=Path("config.yaml"), help="the experiment (%(default)s)")
    parser.add_argument("--config", type=json.loads, help="JSON: the experiment, in place of a file")
    parser.add_argument("--checkpoint", type=Path, help="the model's manifest, if the workflow has made it")
    parser.add_argument("--prompts", help="a file of them (the experiment's)")
    parser.add_argument("--out", type=Path, default=Path("speculators"), help="a folder (%(default)s)")
    for name, field in TrainingSpec.model_fields.items():
        kind = float if field.annotation is float else int
        parser.add_argument(f"--{name}", type=kind, help=f"{field.description} ({getattr(default, name):g})")
    parser.add_argument("--seed", type=int, default=0, help="(%(default)s)")
    add_arguments(parser, "threads")
    add_own_device(parser)
    a = parser.parse_args()
    if not a.auto and not a.kind:
        raise ParityError("kind: none; allowed: heads, draft, drafter, or --auto")
    given = {name: value for name in TrainingSpec.model_fields if (value := getattr(a, name)) is not None}
    spec = validate(TrainingSpec, given, "--")
    check_seed(a.seed, "--seed")
    pin_threads(a.threads)
    if a.auto:
        from parity.train.auto import describe_choices

        generator = read_generator(a)
        print("\n".join(describe_choices(generator, read_all_prompts(a, generator)[0])))
        return
    train(a, spec)


if __name__ == "__main__":
    run_command(main)
