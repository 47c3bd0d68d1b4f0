"""Train speculators of networks of published sizes with random weights, kill each training once, and decode with them.

    python benchmarks/speculator_sizes.py FOLDER [--models llamagen-b janus] [--kinds heads draft drafter]
                                                [--keep speculator-sizes]

Writes the networks to FOLDER (4 GB). Each speculator is trained for 20 steps by `parity train`, whose process is killed
after a checkpoint, and which then goes on; `parity generate --compare ar` draws an image with it. What was asked of
memory and what the process took stand side by side, with the CPU-seconds of all. An image has SIDES x SIDES tokens,
for a pass over them costs a core a second or more. Rows that were measured are kept in FOLDER, and not measured again.
"""

import os
import re
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from common import parse_flags
from docs_figures import keep_benchmark
from PIL import Image

from parity.base.files import publish, read_json, write_json
from parity.stand_ins import make_entry
from parity.train import __main__ as command
from parity.train import loop, speculators
from parity.train.samples import complete_options

ROOT = Path(__file__).parents[1]
SAVED_EVERY = 20.0  # seconds between two checkpoints
HELD_OUT = 4  # rows
FLAGS = ("--steps", "20", "--batch", "2", "--images", "8", "--drawn", "4", "--device", "cpu")
METHODS = {"heads": "mtj_heads", "draft": "mtj_draft", "drafter": "eagle"}
NODES = {"mtj_heads": {"window": 8, "branches": 8}, "mtj_draft": {"window": 8, "branches": 8, "rounds": 1}}
NODES["eagle"] = {"total": 15, "depth": 3, "top_k": 4}
SIDES = {"llamagen-b": 8, "janus": 4}  # of an image, in tokens
CASES: dict[str, tuple[str, str, str, dict[str, Any], tuple[str, ...]]] = {
    # the stand-in, dtype, prompts, sampling, speculators
    "llamagen-b": ("llamagen_c2i", "float32", "classes:1000", {"guidance": 4.0, "top_k": 2000}, tuple(METHODS)),
    "janus": ("janus", "bfloat16", str(ROOT / "prompts/plain.txt"), {"guidance": 5.0}, ("heads", "drafter")),
}


def write_experiment(name: str, folder: Path) -> Path:
    """Write the network of a case, unless that was done, and its experiment; return the experiment's file."""
    stand_in, dtype, prompts, sampling, _ = CASES[name]
    entry = folder / "entry.json"
    if not entry.exists():
        write_json(entry, make_entry(stand_in, folder / "network", published=True, side=SIDES[name]))
    model = {"source": "files", "family": stand_in.partition("_")[0], **read_json(entry)}
    image = {"prompts": {"file": prompts, "limit": 16}, "sampling": sampling, "dtype": dtype, "methods": {"ar": [{}]}}
    file = folder / "experiment.yaml"
    publish(file, yaml.safe_dump({"experiment": name, "models": {"m": model}, "image": image}).encode())
    return file


def run(words: list[str], folder: Path, log: Path, until: Path | None = None) -> tuple[float, int]:
    """Run a command of this project and append its output to a log; kill it as soon as `until` exists. Returns its
    CPU-seconds and the most MiB that it took. Raises SystemExit if it fails."""
    with log.open("a") as stream:
        process = subprocess.Popen([sys.executable, *words], cwd=folder, stdout=stream, stderr=stream)
        while (
            until is not None
            and not until.exists()
            and not os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        ):
            time.sleep(0.5)
        if until is not None:
            process.send_signal(signal.SIGKILL)
        _, status, usage = os.wait4(process.pid, 0)
    if os.waitstatus_to_exitcode(status) != (0 if until is None else -signal.SIGKILL):
        raise SystemExit(f"{' '.join(words)}: see {log}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss // 1024


def measure(name: str, kind: str, folder: Path) -> dict[str, Any]:
    """Train a speculator of a case, killed once, and draw an image with it; return the row of the table."""
    file = write_experiment(name, folder)
    out, log = folder / "speculators", folder / f"{kind}.log"  # of one folder, so they share the rows drawn
    log.unlink(missing_ok=True)
    words = [str(Path(__file__).resolve()), "--train", kind, "--configfile", str(file), "--out", str(out), *FLAGS]
    first = run(words, folder, log, out / f"{kind}.pt")
    second = run(words, folder, log)
    method, prompt = METHODS[kind], "1" if name == "llamagen-b" else "a red ball on a table"
    flags = ["--configfile", str(out / f"{kind}.yaml"), "--method", method, "--compare", "ar", "--out", "made.png"]
    options = [f"{key}={value}" for key, value in NODES[method].items()]
    drawing = run(["-m", "parity.generate", prompt, *flags, "--option", *options], folder, log)
    written = log.read_text()
    passes = {key: float(value) for key, value in re.findall(r"^(\w+): ([\d.]+) passes", written, re.MULTILINE)}
    made, plain = (Image.open(folder / f"made-{m}.png").tobytes() for m in (method, "ar"))
    record = read_json(out / f"{kind}.json")
    asked = re.findall(r"memory: ([\d,]+) MiB", written)[-1].replace(",", "")
    return {
        "model": name, "speculator": kind, "dtype": CASES[name][1], "steps": record["steps"],
        "side": SIDES[name], "share": read_share(out / f"{kind}.md"), "asked": int(asked),
        "taken": max(first[1], second[1]), "seconds": first[0] + second[0], "method": method, "passes": passes[method],
        "plain": passes["ar"], "equal": made == plain, "drawing": drawing[0], "drawing_taken": drawing[1],
    }  # fmt: skip


def read_share(card: Path) -> float:
    """Read from a card the share of the target's parameters, in per cent."""
    return float(re.findall(r"([\d.]+)% of the target's", card.read_text())[0])


def main() -> None:
    """Measure what is asked for, print each row, and keep the table with --keep."""
    if sys.argv[1] == "--train":  # the process that is killed: few held-out rows, frequent checkpoints, small trees
        speculators.HELD_OUT = HELD_OUT
        speculators.complete_options = lambda generator, method, _: complete_options(generator, method, NODES[method])
        loop.fit = partial(loop.fit, saved_every=SAVED_EVERY)  # type: ignore[assignment]
        sys.argv = ["parity train", *sys.argv[2:]]
        command.main()
        return
    a = parse_flags(__doc__, [""], models=list(CASES), kinds=list(METHODS), keep="")
    work = Path(a.variants[0]).resolve()
    rows = []
    for name in a.models:
        for kind in (kind for kind in CASES[name][-1] if kind in a.kinds):
            folder = work / name
            row = folder / f"{kind}-row.json"
            if not row.exists():
                write_json(row, measure(name, kind, folder))
            rows.append(read_json(row))
            print(rows[-1], flush=True)
    if a.keep:
        keep_benchmark(a.keep, rows)


if __name__ == "__main__":
    main()
