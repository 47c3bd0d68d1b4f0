"""Make a picture from a caption, or fill in a text, with any decoder.

    parity generate "a large red circle on a blue background" --model scenes --method mtj --out circle.png
    parity generate captions.txt --n 4 --out pictures --grid
    parity generate "one morning anna could not find the ___ ." --model xlnet

A prompt file (.txt, .tsv, .csv, .jsonl) stands for its prompts. Of a model of classes a prompt is a class, of a
text model a text whose blanks are `___`.
--option gives a method's options as NAME=VALUE: window=16. --compare ar makes the same with another method beside it.
"""

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any

import yaml

from parity.base.command import pin_threads, progress, run_command
from parity.base.errors import ParityError
from parity.experiment.prompt_files import read_prompts
from parity.experiment.schema import PromptSpec
from parity.generate import Generator, Made, load

FILES = (".txt", ".tsv", ".csv", ".jsonl")  # an argument that ends so is a prompt file
MOST_PROMPTS = 100_000


def read_given_prompts(given: list[str]) -> list[str]:
    """Read the prompts: each argument, or those of the file that it names. Raises ConfigError for a damaged file."""
    prompts: list[str] = []
    for argument in given:
        is_file = argument.endswith(FILES)
        prompts += read_prompts(PromptSpec(file=argument, limit=MOST_PROMPTS)) if is_file else [argument]
    return prompts


def read_options(given: list[str]) -> dict[str, Any]:
    """Read options of a method from NAME=VALUE texts, values as in YAML. Raises ParityError for another form."""
    chosen: dict[str, Any] = {}
    for argument in given:
        name, equals, value = argument.partition("=")
        if not equals:
            raise ParityError(f"--option {argument}: allowed: NAME=VALUE, such as window=16")
        chosen[name] = yaml.safe_load(value)
    return chosen


def check_out(out: Path, count: int, grid: bool) -> None:
    """Raise ParityError for a path that `count` pictures cannot be saved to, before a network is loaded."""
    folder = out.parent if out.suffix else out
    if not folder.is_dir():
        raise ParityError(f"--out {out}: no folder {folder}; allowed: one that exists")
    if out.suffix and out.suffix != ".png":
        raise ParityError(f"--out {out}: allowed: a name that ends in .png, or a folder")
    if out.suffix and count > 1 and not grid:
        raise ParityError(f"--out {out}: one file for {count} pictures; allowed: a folder, or --grid")


def name_file(out: Path, number: int, method: str, several_methods: bool) -> Path:
    """Name the file of picture `number`: `out`, or one in that folder; with the method if there are several."""
    file = out if out.suffix else out / f"{number:05d}.png"
    return file.with_stem(f"{file.stem}-{method}") if several_methods else file


def save_picture(made: Made, file: Path) -> None:
    """Save a picture as PNG with the facts of how it was made in its metadata, and print its name."""
    from PIL.PngImagePlugin import PngInfo

    info = PngInfo()
    facts = {**made.facts, "passes": made.passes, "seconds": round(made.seconds, 4)}
    info.add_text("parity", json.dumps(facts))
    info.add_itxt("prompt", made.prompt)
    made.image.save(file, pnginfo=info)
    print(file)


def save_grid(pictures: list[Made], file: Path) -> None:
    """Save pictures in one file, in a square grid, and print its name."""
    from torchvision.transforms.functional import pil_to_tensor, to_pil_image
    from torchvision.utils import make_grid

    tensors = [pil_to_tensor(made.image) for made in pictures]
    to_pil_image(make_grid(tensors, math.ceil(math.sqrt(len(tensors))), padding=1)).save(file)
    print(file)


def run_method(generator: Generator, prompts: list[str], method: str, a: argparse.Namespace) -> str:
    """Generate, and save or print, what `a` asks for by one method; return a line with mean passes and seconds."""
    given = read_options(a.option) if method == a.method else {}
    batches = generator.make_batches(prompts, method, a.seed, n=a.n, batch=a.batch, **given)
    finished: list[Made] = []
    for batch in progress(batches, math.ceil(len(prompts) * a.n / a.batch), method):
        for made in batch:
            if made.image is None:
                print(made.text)
            elif not a.grid:
                save_picture(made, name_file(a.out, len(finished), made.facts["method"], bool(a.compare)))
            finished.append(made)
    if a.grid and finished[0].image is not None:
        file = a.out if a.out.suffix else a.out / "grid.png"
        save_grid(finished, name_file(file, 0, finished[0].facts["method"], bool(a.compare)))
    passes = sum(made.passes for made in finished) / len(finished)
    seconds = sum(made.seconds for made in finished) / len(finished)
    return f"{finished[0].facts['method']}: {passes:.1f} passes, {seconds:.3g} s each"


def main() -> None:
    """Check the arguments, then generate with `--method`, and with `--compare`; means go to standard error."""
    parser = argparse.ArgumentParser(
        prog="parity generate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("prompt", nargs="+", help="a caption, a class, a text with blanks, or a file of them")
    parser.add_argument("--model", default="", help="of the configuration (its first)")
    parser.add_argument("--configfile", type=Path, default=Path("config.yaml"), help="the experiment (%(default)s)")
    parser.add_argument("--method", default="auto", help="a decoder; auto: what `parity tune` found (%(default)s)")
    parser.add_argument("--option", nargs="+", default=[], metavar="NAME=VALUE", help="of the method")
    parser.add_argument("--compare", default="", metavar="METHOD", help="make the same with another method, too")
    parser.add_argument("--out", type=Path, default=Path("picture.png"), help="a .png or a folder (%(default)s)")
    parser.add_argument("--grid", action="store_true", help="one file with all pictures")
    parser.add_argument("--n", type=int, default=1, help="pictures a prompt (%(default)s)")
    parser.add_argument("--batch", type=int, default=8, help="decoded at once (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="(%(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="(%(default)s)")
    a = parser.parse_args()
    for name in ("n", "batch"):
        if getattr(a, name) < 1:
            raise ParityError(f"--{name} {getattr(a, name)}: allowed: 1 or more")
    pin_threads(a.threads)
    prompts = read_given_prompts(a.prompt)
    generator = load(a.model, a.configfile)
    if generator.kind != "anysubset":
        check_out(a.out, len(prompts) * a.n, a.grid)
    chosen = [a.method, *([a.compare] if a.compare else [])]
    for method in chosen:
        generator.choose_method(method, read_options(a.option) if method == a.method else {})
    lines = [run_method(generator, prompts, method, a) for method in chosen]
    print(*lines, sep="\n", file=sys.stderr)


if __name__ == "__main__":
    run_command(main)
