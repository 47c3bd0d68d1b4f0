"""Make an image from a caption, or fill in a text, with any decoder.

    parity generate "a large red circle on a blue background" --model scenes --method mtj --out circle.png
    parity generate captions.txt --n 4 --out images
    parity generate "a large red circle on a blue background" --method mtj --compare ar --animate circle.webp
    parity generate "one morning anna could not find the ___ ." --model xlnet

A prompt file (.txt, .tsv, .csv, .jsonl, COCO's .json) stands for its prompts. Of a model of classes a prompt is a
class, of a text model a text whose blanks are `___`.
--option gives a method's options as NAME=VALUE: window=16. --compare ar makes the same with another method beside it.
--out names a .png, or a folder, which is made if it is not there. A stopped command goes on when it is called again: an
image is done if its file is there; a folder with images of other settings is refused. --shard 2/8 makes the second of
eight parts, for as many GPUs. --animate draws how the images fill in, a frame a pass, with open slots grey. --device is
a GPU by default, if there is one.
"""

import argparse
import contextlib
import json
import math
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import fmean
from typing import Any

from parity.base import machine
from parity.base.command import run_command
from parity.base.errors import ParityError
from parity.base.files import publish, replace_whole
from parity.generate import Generator, Made
from parity.generate.animation import Pace, draw_animation
from parity.generate.arguments import (
    CHOICES,
    add_decoding,
    add_prompts,
    load_generator,
    read_given_prompts,
    read_options,
)
from parity.generate.folder import find_done, save_image


def is_folder(out: Path) -> bool:
    return out.is_dir() or not out.suffix


def check_animation(file: Path, count: int, batch: int) -> None:
    """Raise ParityError for a file that no animation can be saved to, or for more images than are decoded at once."""
    if file.suffix != ".webp" or file.is_dir():
        raise ParityError(f"--animate {file}: allowed: a name that ends in .webp")
    if not file.parent.is_dir():
        raise ParityError(f"--animate {file}: no folder {file.parent}; allowed: one that exists")
    if count > batch:
        raise ParityError(f"--animate: {count} images; allowed: --batch, {batch}, which are decoded together")


def check_out(out: Path, count: int, grid: bool) -> None:
    """Raise ParityError for a path that `count` images cannot be saved to, before a network is loaded."""
    if is_folder(out):
        if blocked := next((path for path in (out, *out.parents) if path.exists() and not path.is_dir()), None):
            raise ParityError(f"--out {out}: {blocked} is a file; allowed: a folder, or a name that ends in .png")
        return
    if not out.parent.is_dir():
        raise ParityError(f"--out {out}: no folder {out.parent}; allowed: one that exists")
    if out.suffix != ".png":
        raise ParityError(f"--out {out}: allowed: a name that ends in .png, or a folder")
    if count > 1 and not grid:
        raise ParityError(f"--out {out}: one file for {count} images; allowed: a folder, or --grid")


def name_file(out: Path, name: str, method: str, several_methods: bool) -> Path:
    """Name the file of an image: `out`, or `name` in that folder; with the method if there are several."""
    file = out / f"{name}.png" if is_folder(out) else out
    return file.with_stem(f"{file.stem}-{method}") if several_methods else file


def save_made(images: list[Made], file: Path) -> None:
    """Save an image, or a square grid of several, as PNG with the facts of how it was made in its metadata, and print
    its name."""
    passes = fmean(made.passes for made in images)
    facts = {**images[0].facts, "passes": int(passes) if len(images) == 1 else round(passes, 2)}
    image = images[0].image if len(images) == 1 else make_grid_image(images)
    save_image(image, file, facts, "\n".join(made.prompt for made in images))
    print(file)


def make_grid_image(images: list[Made]) -> Any:
    """Put images in a square grid, one image."""
    from torchvision.transforms.functional import pil_to_tensor, to_pil_image
    from torchvision.utils import make_grid

    tensors = [pil_to_tensor(made.image) for made in images]
    return to_pil_image(make_grid(tensors, math.ceil(math.sqrt(len(tensors))), padding=1))


def choose_missing(numbers: list[int], done: Mapping[int, int], batch: int, refill: bool) -> list[int]:
    """Choose which images are decoded: those that are not done. Where batches are not refilled, a batch of which some
    are done is decoded as a whole, so that each image is computed beside the same ones, whenever a run was stopped."""
    if refill:
        return [number for number in numbers if number not in done]
    batches = [numbers[first : first + batch] for first in range(0, len(numbers), batch)]
    return [number for some in batches if not done.keys() >= set(some) for number in some]


@dataclass
class Result:
    """What a method made in this run, and what was there before it."""

    method: str
    made: list[Made]  # in order; without those that were there
    passes: list[int]  # of all images
    seconds: float  # of this run, without the loading of networks

    def describe(self) -> str:
        """Describe passes and speed in a line."""
        passes = f"{fmean(self.passes):.1f} passes"
        if not self.made:
            return f"{self.method}: all {len(self.passes)} were there, {passes}"
        there = len(self.passes) - len(self.made)
        before = f"; {there} of {len(self.passes)} were there before" if there else ""
        kind = "images" if self.made[0].image is not None else "texts"
        decoding = f"{fmean(made.seconds for made in self.made):.3g} s each to decode"
        return f"{self.method}: {passes}, {decoding}, {self.an_hour:,.0f} {kind} an hour in all{before}"

    @property
    def an_hour(self) -> float:
        return 3600 * len(self.made) / self.seconds


def show_progress(batches: Iterator[list[Made]], total: int, label: str) -> Iterator[list[Made]]:
    """Yield the batches, and show on stderr how many of `total` images are done, how many an hour, and the time that is
    left: on a terminal as a bar, else a line per tenth."""
    start, n_done = time.monotonic(), 0
    bar = make_bar() if sys.stderr.isatty() else None
    with bar or contextlib.nullcontext():
        task = bar.add_task(label, total=total, rate="") if bar else None
        for made in batches:
            yield made
            before, n_done = n_done, min(total, n_done + len(made))
            rate = n_done / max(time.monotonic() - start, 1e-9)
            if bar:
                bar.update(task, completed=n_done, rate=f"{3600 * rate:,.0f} an hour")
            elif n_done * 10 // total != before * 10 // total:
                left = timedelta(seconds=round((total - n_done) / rate))
                line = f"{label}: {n_done} of {total}, {3600 * rate:,.0f} an hour, {left} left"
                print(line, file=sys.stderr, flush=True)


def make_bar() -> Any:
    """Make a bar with what is done, images an hour and the time that is left."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    text = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}")
    return Progress(*text, TimeRemainingColumn(), console=Console(stderr=True))


def run_method(
    generator: Generator, prompts: list[str], method: str, given: dict[str, Any], a: argparse.Namespace
) -> Result:
    """Generate, and save or print, what `a` asks for by one method. What is done is saved even if the rest is not; in a
    folder, images that are there already are not made again."""
    k, n_shards = a.shard
    numbers = list(range(k - 1, len(prompts) * a.n, n_shards))
    several = bool(a.compare)
    refill = choose_refill(generator, a.refill)
    done: dict[int, int] = {}
    files = {number: name_file(a.out, f"{number:05d}", method, several) for number in numbers}
    in_folder = generator.kind != "anysubset" and is_folder(a.out) and not a.grid
    if in_folder:
        facts = generator.list_facts(*generator.choose_method(method, given), a.seed)
        found = find_done([*files.values()], facts, [prompts[number // a.n] for number in numbers])
        done = {numbers[place]: passes for place, passes in found.items()}
    missing = choose_missing(numbers, done, a.batch, refill)
    made: dict[int, Made] = {}
    start, loaded_before = time.monotonic(), generator.loading_seconds
    if missing:
        options = {"n": a.n, "batch": a.batch, "refill": refill, "numbers": missing}
        batches = generator.make_batches(prompts, method, a.seed, **options, **given)
        try:
            for batch in show_progress(batches, len(missing), method):
                for one in batch:
                    if one.number in done:
                        continue
                    if one.image is None:
                        print(one.text)
                    elif not a.grid:
                        save_made([one], files[one.number])
                    made[one.number] = one
        finally:
            if a.grid and made and generator.kind != "anysubset":
                save_made([made[n] for n in sorted(made)], name_file(a.out, "grid", method, several))
    passes = [*done.values(), *(one.passes for one in made.values())]
    # loading is left out: of two methods the first would bear it alone
    seconds = time.monotonic() - start - (generator.loading_seconds - loaded_before)
    result = Result(method, [made[n] for n in sorted(made)], passes, seconds)
    if in_folder and made:
        save_summary(generator, result, facts, refill, a)
    return result


def choose_refill(generator: Generator, refill: str) -> bool:
    """Choose whether a place in the batch goes to the next row as soon as one is done: by the flag, else as the
    configuration says, else on CUDA, where a pass costs the same with fewer images."""
    refill = refill or generator.config.refill
    return refill == "on" or (refill == "auto" and generator.device.startswith("cuda"))


def save_summary(
    generator: Generator, result: Result, facts: dict[str, Any], refill: bool, a: argparse.Namespace
) -> None:
    """Save passes and speed of a run beside its images, as JSON."""
    k, n = a.shard
    name = "images" + (f"-{result.method}" if a.compare else "") + (f"-{k}-of-{n}" if n > 1 else "")
    summary = {
        **facts,
        "images": len(result.passes),
        "made_in_this_run": len(result.made),
        "passes": round(fmean(result.passes), 3),
        "seconds": round(result.seconds, 2),
        "images_an_hour": round(result.an_hour, 1),
        "batch": a.batch,
        "refill": refill,
        "compiled": generator.is_compiled,
        "device": generator.device,
        "machine": machine.identify_machine(),
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
    }
    publish(a.out / f"{name}.json", (json.dumps(summary, indent=1) + "\n").encode())


def read_shard(text: str) -> tuple[int, int]:
    """Read which part of the images is made, K/N. Raises ArgumentTypeError for another form."""
    k, _, n = text.partition("/")
    if not (k.isdecimal() and n.isdecimal() and 1 <= int(k) <= int(n)):
        raise argparse.ArgumentTypeError(f"{text!r}: allowed: K/N, such as 2/8, with K from 1 to N")
    return int(k), int(n)


def save_animation(sides: list[list[Made]], pace: Pace, file: Path) -> None:
    """Save how images fill in, those of each method side by side, and print the file's name."""
    frames, durations = draw_animation(sides, pace)
    with replace_whole(file) as temporary:
        frames[0].save(
            temporary, format="WEBP", save_all=True, append_images=frames[1:], duration=durations, loop=0, quality=85
        )
    print(file)


def make_parser() -> argparse.ArgumentParser:
    """Make the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="parity generate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_prompts(parser)
    add_decoding(parser)
    parser.add_argument("--compare", default="", metavar="METHOD", help="make the same with another method, too")
    parser.add_argument(
        "--out", type=Path, default=Path("image.png"), help="a .png, or a folder, which is made (%(default)s)"
    )
    parser.add_argument("--grid", action="store_true", help="one file with all images")
    parser.add_argument("--animate", type=Path, metavar="FILE.webp", help="also draw how the images fill in")
    parser.add_argument("--pace", choices=("passes", "seconds"), default="passes", help="of --animate (%(default)s)")
    parser.add_argument("--n", type=int, default=1, help="images a prompt (%(default)s)")
    parser.add_argument("--batch", type=int, default=8, help="decoded at once (%(default)s)")
    parser.add_argument("--shard", type=read_shard, default=(1, 1), metavar="K/N", help="make the K-th of N parts")
    parser.add_argument(
        "--refill", choices=CHOICES, default="", help="whether the next image takes the place of a done one (auto)"
    )
    return parser


def main() -> None:
    """Check the arguments, then generate with `--method`, and with `--compare`; means go to standard error."""
    a = make_parser().parse_args()
    prompts = read_given_prompts(a.prompt)
    generator = load_generator(a)
    count = len(prompts) * a.n
    if a.shard[1] > count:
        raise ParityError(f"--shard {a.shard[0]}/{a.shard[1]}: {count} to make; allowed: at most {count} parts")
    if generator.kind != "anysubset":
        check_out(a.out, count, a.grid)
    if a.animate:
        if generator.kind == "anysubset":
            raise ParityError(f"--animate: {generator.case.model} writes texts; allowed: with a model of images")
        check_animation(a.animate, count, a.batch)
        if is_folder(a.out) and not a.grid and (there := next(a.out.glob("*.png"), None)):
            raise ParityError(f"--animate: {there} is there already; allowed: an empty folder as --out, or --grid")
    chosen = [generator.choose_method(a.method, read_options(a.option))]
    if a.compare:
        chosen.append(generator.choose_method(a.compare, {}))
    if generator.kind != "anysubset" and is_folder(a.out):
        a.out.mkdir(parents=True, exist_ok=True)
    results = [run_method(generator, prompts, method, given, a) for method, given in chosen]
    for result in results:
        print(result.describe(), file=sys.stderr)
    if a.animate:
        save_animation([result.made for result in results], a.pace, a.animate)


if __name__ == "__main__":
    run_command(main)
