"""A folder of images by `parity generate`: killed again and again, and its speed beside the workflow's decode jobs.

    export PYTHONPATH=.
    python benchmarks/generate_folder.py [--method sjd_coupled] [--images 1000] [--batch 32] [--kills 5] [--keep yes]

The same captions are made into images twice: by one command, and by one that is killed after equal shares of them and
called again. All bytes must be equal; a kill loses the batch that is being decoded. Then parts of the captions, two
batches each, are decoded in turns by `parity generate`, pixels drawn and files written, and by what a decode job runs,
tokens stored. The figure is the ratio of images an hour, without the loading of networks.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from common import parse_flags
from docs_figures import keep_benchmark

import parity
from parity.decode import loop
from parity.decode.shard_io import write_shard
from parity.generate import __main__ as command
from parity.generate.arguments import read_given_prompts

PARTS = 6  # of two batches each, decoded in turns


def start(prompts: Path, out: Path, a: Any) -> "subprocess.Popen[bytes]":
    """Start `parity generate` of a prompt file into a folder."""
    words = ["--method", a.method, "--batch", str(a.batch), "--device", "cpu", "--threads", str(a.threads)]
    return subprocess.Popen([sys.executable, "-m", "parity.generate", str(prompts), *words, "--out", str(out)])


def make_killed(prompts: Path, out: Path, a: Any) -> None:
    """Make the images by a command that is killed `a.kills` times, and called again."""
    for kill in range(1, a.kills + 1):
        target, process = a.images * kill // (a.kills + 1), start(prompts, out, a)
        while process.poll() is None and len(list(out.glob("*.png"))) < target:
            time.sleep(0.1)
        process.kill()
        process.wait()
        print(f"killed at {len(list(out.glob('*.png')))} of {a.images}", file=sys.stderr)
    if start(prompts, out, a).wait():
        raise SystemExit("error: the last command failed")


def compare_speed(captions: list[str], folder: Path, a: Any) -> list[tuple[float, float]]:
    """Return images an hour of `parity generate` and of a decode job, for each part of the captions, in turns."""
    generator = parity.load("scenes", device="cpu")
    loaded = generator.load_networks(a.method)
    method, options = generator.choose_method(a.method, {})
    spec = {**generator.case.setting, "seed": 0, "method": method, "options": options, "dtype": generator.dtype}
    speeds = []
    for part in range(PARTS):
        some = captions[2 * part * a.batch : 2 * (part + 1) * a.batch]
        words = ["--method", a.method, "--batch", str(a.batch), "--device", "cpu", "--out", str(folder / str(part))]
        arguments = command.make_parser().parse_args([*some, *words])
        arguments.out.mkdir()
        seconds = {}
        for side in ("generate", "decode") if part % 2 else ("decode", "generate"):
            begun = time.monotonic()
            if side == "generate":
                command.run_method(generator, some, method, {}, arguments)
            else:
                rows = generator.make_rows(some, 1)
                shard = loop.decode("discrete", loaded, spec, rows, a.batch)
                write_shard(folder / f"{part}.npz", shard.columns, {"spec": spec})
            seconds[side] = time.monotonic() - begun
        speeds.append((3600 * len(some) / seconds["generate"], 3600 * len(some) / seconds["decode"]))
    return speeds


def main() -> None:
    """Make the images, compare the bytes and the speeds, print the figures, and keep them if asked."""
    a = parse_flags(__doc__, method="sjd_coupled", images=1000, batch=32, kills=5, keep="")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prompts = folder / "prompts.txt"
        captions = read_given_prompts(["prompts/scenes.txt"])[: a.images]
        prompts.write_text("\n".join(captions) + "\n")
        begun = time.monotonic()
        if start(prompts, folder / "whole", a).wait():
            raise SystemExit("error: the command failed")
        whole = time.monotonic() - begun
        make_killed(prompts, folder / "killed", a)
        made = {file.name: file.read_bytes() for file in (folder / "whole").glob("*.png")}
        again = {file.name: file.read_bytes() for file in (folder / "killed").glob("*.png")}
        summary = json.loads((folder / "whole/images.json").read_text())
        speeds = compare_speed(captions, folder, a)
    row = {
        "method": a.method,
        "images": len(made),
        "batch": a.batch,
        "kills": a.kills,
        "equal": sum(made[name] == again.get(name) for name in made),
        "seconds": round(whole, 1),
        "passes": summary["passes"],
        "images_an_hour": summary["images_an_hour"],
        "ratio": round(median(ours / job for ours, job in speeds), 3),
        "lowest": round(min(ours / job for ours, job in speeds), 3),
        "highest": round(max(ours / job for ours, job in speeds), 3),
    }
    print(json.dumps(row, indent=1))
    if a.keep:
        keep_benchmark("generate-folder", [row])
    raise SystemExit(row["equal"] != a.images or len(again) != len(made))


if __name__ == "__main__":
    main()
