"""What the commands that decode a user's prompts share: their flags, and the reading of what these hold."""

import argparse
import os
import sys
from pathlib import Path
from typing import Any

import yaml
from parity_certify.seeding import check_seed

from parity.base.command import add_own_device, pin_threads
from parity.base.errors import ParityError
from parity.base.text_files import describe_missing, find_suffix
from parity.experiment.prompt_files import FORMATS, describe_left_out, iter_rows
from parity.experiment.schema import PromptSpec
from parity.generate import Generator, load

DTYPES = ("float32", "bfloat16", "float64")
CHOICES = ("auto", "on", "off")


def is_file(argument: str) -> bool:
    """Return whether an argument names a prompt file: by its suffix, or because there is such a file, pipe, link or
    folder."""
    is_folder = os.path.isdir(argument)  # a class may be called like a folder beside
    return find_suffix(argument) in FORMATS or (os.sep in argument if is_folder else os.path.lexists(argument))


def read_given_prompts(given: list[str]) -> list[str]:
    """Read the prompts: each argument, or those of the file that it names. Raises ConfigError for a file that cannot be
    read."""
    prompts: list[str] = []
    for argument in given:
        if not is_file(argument):
            prompts.append(argument)
            continue
        if os.path.exists(argument) and not os.path.isfile(argument) and not os.path.isdir(argument):
            raise ParityError(f"{argument}: a pipe or a device; allowed: a prompt file, or the prompts themselves")
        if os.path.islink(argument) and not os.path.exists(argument):
            raise ParityError(f"{argument}: {describe_missing(Path(argument))}")
        spec = PromptSpec(file=argument)
        read = [row["prompt"] for row in iter_rows(spec, Path(), argument)]
        if not read:
            raise ParityError(f"{argument}: holds no prompt; allowed: one prompt a line")
        prompts += read
        for line in describe_left_out(spec):
            print(line, file=sys.stderr)
    return prompts


def read_options(given: list[str]) -> dict[str, Any]:
    """Read options of a method from NAME=VALUE texts, values as in YAML. Raises ParityError for another form."""
    chosen: dict[str, Any] = {}
    for argument in given:
        name, equals, value = argument.partition("=")
        try:
            chosen[name] = yaml.safe_load(value)
        except yaml.YAMLError:
            equals = ""
        if not equals:
            raise ParityError(f"--option {argument}: allowed: NAME=VALUE, such as window=16")
    return chosen


def add_decoding(parser: argparse.ArgumentParser) -> None:
    """Add the flags that say which model is decoded, and how: read by `load_generator` and `read_options`."""
    parser.add_argument("--model", default="", help="of the configuration (its first)")
    parser.add_argument("--configfile", type=Path, default=Path("config.yaml"), help="the experiment (%(default)s)")
    parser.add_argument("--method", default="auto", help="a decoder; auto: what `parity tune` found (%(default)s)")
    parser.add_argument("--option", nargs="+", action="extend", default=[], metavar="NAME=VALUE", help="of the method")
    parser.add_argument("--dtype", choices=DTYPES, default="", help="of the transformer (that of the model's files)")
    parser.add_argument("--compile", choices=CHOICES, default="", help="whether passes are compiled (auto)")
    parser.add_argument("--capture", choices=("auto", "off"), default="", help="whether CUDA graphs are used (auto)")
    add_own_device(parser)
    parser.add_argument("--threads", type=int, default=1, help="(%(default)s)")


def add_prompts(parser: argparse.ArgumentParser) -> None:
    """Add the prompts and the seed: read by `read_given_prompts`."""
    parser.add_argument("prompt", nargs="+", help="a caption, a class, a text with blanks, or a file of them")
    parser.add_argument("--seed", type=int, default=0, help="(%(default)s)")


def load_generator(a: argparse.Namespace) -> Generator:
    """Prepare the model that the flags name. Raises ParityError for a number that is none, and as `load` does."""
    for name in ("n", "batch", "threads"):
        if getattr(a, name, 1) < 1:
            raise ParityError(f"--{name} {getattr(a, name)}: allowed: 1 or more")
    if "seed" in a:
        check_seed(a.seed, "--seed")
    pin_threads(a.threads)
    return load(a.model, a.configfile, a.dtype, a.device, a.compile, a.capture)
