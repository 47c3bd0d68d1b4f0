"""Make a picture from a caption, or fill in a text, with any decoder.

    parity generate "a large red circle on a blue background" --model scenes --method mtj --out circle.png
    parity generate captions.txt --n 4 --out pictures --grid
    parity generate "a large red circle on a blue background" --method mtj --compare ar --animate circle.webp
    parity generate "one morning anna could not find the ___ ." --model xlnet

A prompt file (.txt, .tsv, .csv, .jsonl, COCO's .json) stands for its prompts. Of a model of classes a prompt is a
class, of a text model a text whose blanks are `___`.
--option gives a method's options as NAME=VALUE: window=16. --compare ar makes the same with another method beside it.
--out names a .png, or a folder, which is made if it is not there. --animate draws how the pictures fill in, a frame a
pass, with open slots grey. --device is a GPU by default, if there is one.
"""

import argparse
import json
import math
import os
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml
from parity_certify.seeding import check_seed

from parity.base.command import add_own_device, pin_threads, progress, run_command
from parity.base.errors import ParityError
from parity.base.files import replace_whole
from parity.base.text_files import describe_missing, find_suffix
from parity.experiment.prompt_files import FORMATS, describe_left_out, iter_rows
from parity.experiment.schema import PromptSpec
from parity.generate import Generator, Made, load
from parity.generate.animation import Pace, draw_animation

DTYPES = ("float32", "bfloat16", "float64")


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


def is_folder(out: Path) -> bool:
    """Return whether pictures go to a folder."""
    return out.is_dir() or not out.suffix


def check_animation(file: Path, count: int, batch: int) -> None:
    """Raise ParityError for a file that no animation can be saved to, or for more pictures than are decoded at once."""
    if file.suffix != ".webp" or file.is_dir():
        raise ParityError(f"--animate {file}: allowed: a name that ends in .webp")
    if not file.parent.is_dir():
        raise ParityError(f"--animate {file}: no folder {file.parent}; allowed: one that exists")
    if count > batch:
        raise ParityError(f"--animate: {count} pictures; allowed: --batch, {batch}, which are decoded together")


def check_out(out: Path, count: int, grid: bool) -> None:
    """Raise ParityError for a path that `count` pictures cannot be saved to, before a network is loaded."""
    if is_folder(out):
        if blocked := next((path for path in (out, *out.parents) if path.exists() and not path.is_dir()), None):
            raise ParityError(f"--out {out}: {blocked} is a file; allowed: a folder, or a name that ends in .png")
        return
    if not out.parent.is_dir():
        raise ParityError(f"--out {out}: no folder {out.parent}; allowed: one that exists")
    if out.suffix != ".png":
        raise ParityError(f"--out {out}: allowed: a name that ends in .png, or a folder")
    if count > 1 and not grid:
        raise ParityError(f"--out {out}: one file for {count} pictures; allowed: a folder, or --grid")


def name_file(out: Path, name: str, method: str, several_methods: bool) -> Path:
    """Name the file of a picture: `out`, or `name` in that folder; with the method if there are several."""
    file = out / f"{name}.png" if is_folder(out) else out
    return file.with_stem(f"{file.stem}-{method}") if several_methods else file


def save_pictures(pictures: list[Made], file: Path) -> None:
    """Save a picture, or a square grid of several, as PNG with the facts of how it was made in its metadata, and print
    its name."""
    from PIL.PngImagePlugin import PngInfo

    info = PngInfo()
    passes, seconds = average_cost(pictures)
    info.add_text("parity", json.dumps({**pictures[0].facts, "passes": passes, "seconds": round(seconds, 4)}))
    info.add_itxt("prompt", "\n".join(made.prompt for made in pictures))
    image = pictures[0].image if len(pictures) == 1 else make_grid_image(pictures)
    with replace_whole(file) as temporary:
        image.save(temporary, format="PNG", pnginfo=info)
    print(file)


def make_grid_image(pictures: list[Made]) -> Any:
    """Put pictures in a square grid, one image."""
    from torchvision.transforms.functional import pil_to_tensor, to_pil_image
    from torchvision.utils import make_grid

    tensors = [pil_to_tensor(made.image) for made in pictures]
    return to_pil_image(make_grid(tensors, math.ceil(math.sqrt(len(tensors))), padding=1))


def average_cost(finished: list[Made]) -> tuple[float, float]:
    """Average passes and seconds."""
    return fmean(made.passes for made in finished), fmean(made.seconds for made in finished)


def run_method(
    generator: Generator, prompts: list[str], method: str, given: dict[str, Any], a: argparse.Namespace
) -> list[Made]:
    """Generate, and save or print, what `a` asks for by one method. What is done is saved even if the rest is not."""
    batches = generator.make_batches(prompts, method, a.seed, n=a.n, batch=a.batch, **given)
    finished: list[Made] = []
    try:
        for batch in progress(batches, math.ceil(len(prompts) * a.n / a.batch), method):
            for made in batch:
                if made.image is None:
                    print(made.text)
                elif not a.grid:
                    save_pictures([made], name_file(a.out, f"{len(finished):05d}", method, bool(a.compare)))
                finished.append(made)
    finally:
        if a.grid and finished and finished[0].image is not None:
            save_pictures(finished, name_file(a.out, "grid", method, bool(a.compare)))
    return finished


def save_animation(sides: list[list[Made]], pace: Pace, file: Path) -> None:
    """Save how pictures fill in, those of each method side by side, and print the file's name."""
    frames, durations = draw_animation(sides, pace)
    with replace_whole(file) as temporary:
        frames[0].save(
            temporary, format="WEBP", save_all=True, append_images=frames[1:], duration=durations, loop=0, quality=85
        )
    print(file)


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
    parser.add_argument(
        "--out", type=Path, default=Path("picture.png"), help="a .png, or a folder, which is made (%(default)s)"
    )
    parser.add_argument("--grid", action="store_true", help="one file with all pictures")
    parser.add_argument("--animate", type=Path, metavar="FILE.webp", help="also draw how the pictures fill in")
    parser.add_argument("--pace", choices=("passes", "seconds"), default="passes", help="of --animate (%(default)s)")
    parser.add_argument("--n", type=int, default=1, help="pictures a prompt (%(default)s)")
    parser.add_argument("--batch", type=int, default=8, help="decoded at once (%(default)s)")
    parser.add_argument("--dtype", choices=DTYPES, default="", help="of the transformer (the experiment's)")
    add_own_device(parser)
    parser.add_argument("--seed", type=int, default=0, help="(%(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="(%(default)s)")
    a = parser.parse_args()
    for name in ("n", "batch", "threads"):
        if getattr(a, name) < 1:
            raise ParityError(f"--{name} {getattr(a, name)}: allowed: 1 or more")
    check_seed(a.seed, "--seed")
    pin_threads(a.threads)
    prompts = read_given_prompts(a.prompt)
    generator = load(a.model, a.configfile, a.dtype, a.device)
    if generator.kind != "anysubset":
        check_out(a.out, len(prompts) * a.n, a.grid)
    if a.animate:
        if generator.kind == "anysubset":
            raise ParityError(f"--animate: {generator.case.model} writes texts; allowed: with a model of pictures")
        check_animation(a.animate, len(prompts) * a.n, a.batch)
    chosen = [generator.choose_method(a.method, read_options(a.option))]
    if a.compare:
        chosen.append(generator.choose_method(a.compare, {}))
    if generator.kind != "anysubset" and is_folder(a.out):
        a.out.mkdir(parents=True, exist_ok=True)
    sides = [run_method(generator, prompts, method, given, a) for method, given in chosen]
    for (method, _), finished in zip(chosen, sides, strict=True):
        passes, seconds = average_cost(finished)
        print(f"{method}: {passes:.1f} passes, {seconds:.3g} s each", file=sys.stderr)
    if a.animate:
        save_animation(sides, a.pace, a.animate)


if __name__ == "__main__":
    run_command(main)
