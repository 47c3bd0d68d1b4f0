"""Benchmarks that keep an environment of their own: pictures in the folders they expect, and their results read back.

geneval        <row>/metadata.jsonl and <row>/samples/<repeat>.png (Ghosh et al. 2023; evaluation/evaluate_images.py);
               results: the .jsonl it writes
dpg            <item_id>.png, the pictures of a prompt as a square of four, or one (Hu et al. 2024; dpg_bench); results:
               the .txt it writes
t2i_compbench  samples/<prompt>_<number>.png (Huang et al. 2023); results: vqa_result.json of BLIP-VQA

A layout writes the pictures of one prompt (`WRITE`), and reads a file of results (`READ`) to figures between 0 and 1.
"""

import argparse
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from PIL import Image

from parity.base.errors import ParityError
from parity.base.files import publish, read_json, write_json
from parity.decode.shard_io import read_rows, read_shard
from parity.experiment.prompt_files import every
from parity.experiment.schema import PromptSpec
from parity.experiment.validation import validate

MOST = 200_000_000  # bytes of a file of results
Row = dict[str, Any]
FIGURES = {  # of summaries: label, unit, direction
    "geneval": ("GenEval", "", "higher"),
    "dpg": ("DPG-Bench", "", "higher"),
    "t2i_compbench": ("T2I-CompBench, BLIP-VQA", "", "higher"),
}


def png(path: Path, picture: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(picture).save(path)


def geneval(folder: Path, number: int, row: Row, pictures: Sequence[np.ndarray], before: int) -> None:
    if not isinstance(row.get("tag"), str):
        raise ParityError(
            f"geneval: row {number} of the prompts has no tag; allowed: lines of evaluation_metadata.jsonl"
        )
    publish(folder / f"{number:05d}/metadata.jsonl", json.dumps(row).encode())
    for k, picture in enumerate(pictures):
        png(folder / f"{number:05d}/samples/{k:05d}.png", picture)


def dpg(folder: Path, number: int, row: Row, pictures: Sequence[np.ndarray], before: int) -> None:
    name = str(row.get("item_id", ""))
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,100}", name):
        where = f"dpg: row {number} of the prompts: item_id = {name[:40]!r}"
        raise ParityError(f"{where}; allowed: a name as in dpg_bench.csv (format: dpg)")
    if len(pictures) not in (1, 4):
        raise ParityError(f"dpg: {len(pictures)} pictures of prompt {name}; allowed: 1 or 4 (image.prompts.repeats)")
    one = pictures[0]
    if len(pictures) == 4:
        one = np.concatenate([np.concatenate(list(pictures[k : k + 2]), 1) for k in (0, 2)])
    png(folder / f"{name}.png", one)


def t2i_compbench(folder: Path, number: int, row: Row, pictures: Sequence[np.ndarray], before: int) -> None:
    prompt = row["prompt"]
    if "/" in prompt or "_" in prompt or len(prompt.encode()) > 240:
        problem = f"t2i_compbench: prompt {prompt[:40]!r} is part of a file's name"
        raise ParityError(f"{problem}; allowed: 240 bytes without / and _")
    for k, picture in enumerate(pictures):
        png(folder / "samples" / f"{prompt}_{before + k:06d}.png", picture)


WRITE: dict[str, Callable[[Path, int, Row, Sequence[np.ndarray], int], None]] = {
    "geneval": geneval,
    "dpg": dpg,
    "t2i_compbench": t2i_compbench,
}


def exported(layout: str, rows: Sequence[Row], images: Iterable[tuple[str, str, np.ndarray]], folder: Path) -> int:
    """Write a cell's pictures; how many prompts there were. ParityError for a caption that is no prompt of the file.

    rows    of the prompt file, in its order
    images  (id "<prompt>/<repeat>", caption, pixels uint8 [H, W, 3]), those of a prompt one after the other
    """
    if folder.exists() and any(folder.iterdir()):
        raise ParityError(
            f"--out {folder}: is not empty; allowed: a new folder, for a benchmark takes all that it finds"
        )
    places: dict[str, list[int]] = defaultdict(list)
    for number, row in enumerate(rows):
        places[row["prompt"]].append(number)
    prompts = before = 0
    for caption, pictures in together(images):
        if not places[caption]:
            problem = f"prompt {caption[:40]!r} of the cell is not in the prompt file, or more often than there"
            raise ParityError(f"{layout}: {problem}; allowed: the file that was decoded")
        number = places[caption].pop(0)
        WRITE[layout](folder, number, rows[number], pictures, before)
        prompts, before = prompts + 1, before + len(pictures)
    return prompts


def together(images: Iterable[tuple[str, str, np.ndarray]]) -> Iterator[tuple[str, list[np.ndarray]]]:
    """The pictures of each prompt, with its caption."""
    prompt, caption = "", ""
    held: list[np.ndarray] = []
    for name, said, pixels in images:
        own = name.rsplit("/", 1)[0]
        if own != prompt and held:
            yield caption, held
            held = []
        prompt, caption = own, said
        held.append(pixels)
    if held:
        yield caption, held


# --- results


def text_of(file: Path) -> str:
    try:
        if not file.is_file() or file.stat().st_size > MOST:
            raise OSError(f"no regular file of at most {MOST} bytes")
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ParityError(f"--results {file}: cannot be read ({error})") from None


def of_geneval(text: str) -> dict[str, float]:
    """Share of right pictures by task, and the mean over tasks, as summary_scores.py takes it."""
    tasks: dict[str, list[bool]] = defaultdict(list)
    for line in filter(str.strip, text.splitlines()):
        row = json.loads(line)
        tasks[str(row["tag"])].append(bool(row["correct"]))
    by_task = {f"geneval_{re.sub('[^a-z0-9]+', '_', tag.lower())}": fmean(own) for tag, own in tasks.items()}
    return {"geneval": fmean(by_task.values()), **by_task}


def of_dpg(text: str) -> dict[str, float]:
    """The score at the end, and those of the first level of categories."""
    whole = re.findall(r"^DPG-Bench score: ([0-9.]+)", text, re.M)
    below = re.search(r"^L1 category scores:\n((?:\t.*\n)*)", text, re.M)
    named = re.findall(r"^\t([^:\n]+): ([0-9.]+)$", below[1] if below else "", re.M)
    by = {f"dpg_{re.sub('[^a-z0-9]+', '_', name.strip().lower())}": float(value) / 100 for name, value in named}
    return {"dpg": float(whole[-1]) / 100, **by}


def of_t2i_compbench(text: str) -> dict[str, float]:
    """Mean of the answers: the BLIP-VQA score."""
    return {"t2i_compbench": fmean(float(row["answer"]) for row in json.loads(text))}


READ: dict[str, Callable[[str], dict[str, float]]] = {
    "geneval": of_geneval,
    "dpg": of_dpg,
    "t2i_compbench": of_t2i_compbench,
}


def scores(layout: str, file: Path) -> dict[str, float]:
    """Figures of a benchmark's own file of results; ParityError for a file that is none."""
    text = text_of(file)
    try:
        found = READ[layout](text)
        if not found or not all(0 <= value <= 1 for value in found.values()):
            raise ValueError("figures outside 0 to 1, or none")
        return found
    except (ValueError, KeyError, TypeError, IndexError, RecursionError, ZeroDivisionError) as error:
        cause = f"{type(error).__name__}: {' '.join(str(error).split())[:100]}"
        raise ParityError(f"--results {file}: no results of {layout} ({cause})") from None


def keep(layout: str, file: Path, cell: Path) -> dict[str, float]:
    """Keep a benchmark's figures in a cell's folder, beside those of others; summaries show them."""
    found = scores(layout, file)
    held = cell / "benchmarks.json"
    before = read_json(held) if held.is_file() else {}
    write_json(held, {k: v for k, v in before.items() if not f"{k}_".startswith(f"{layout}_")} | found)
    return found


def images(cell: Path) -> Iterator[tuple[str, str, np.ndarray]]:
    """Id, caption and pixels of a cell's pictures, in order; a file at a time."""
    files = sorted(cell.glob("pictures/*-of-*.npz"), key=lambda f: int(f.name.partition("-")[0]))
    if not files:
        raise ParityError(f"--cell {cell}: holds no pictures; allowed: results/cells/discrete/<model>/<method>-<key>")
    for file in files:
        rows, shard = read_rows(file), read_shard(cell / "shards" / file.name)
        if not np.array_equal(rows["ids"].astype(str), shard.ids.astype(str)):
            raise ParityError(f"{file}: its ids are not those of the shard; delete it and run again")
        yield from zip(rows["ids"].astype(str), shard.captions.astype(str), rows["pixels"], strict=True)


def run(a: argparse.Namespace) -> None:
    if a.results is not None:
        print(f"{a.cell}: {keep(a.layout, a.results, a.cell)}")
        return
    if a.out is None or a.prompts is None:
        raise ParityError("export: --prompts and --out are needed to write, --results to read back")
    spec = validate(PromptSpec, {"file": str(a.prompts), "format": a.format, "limit": 100_000}, "--prompts")
    rows = list(every(spec, Path(), f"--prompts {a.prompts}"))
    print(f"{exported(a.layout, rows, images(a.cell), a.out)} prompts to {a.out}")
