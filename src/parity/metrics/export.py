"""Benchmarks that keep an environment of their own: images in the folders they expect, and their results read back.

geneval        <row>/metadata.jsonl and <row>/samples/<repeat>.png (Ghosh et al. 2023; evaluation/evaluate_images.py);
               results: the .jsonl it writes
dpg            <item_id>.png, the images of a prompt as a square of four, or one (Hu et al. 2024; dpg_bench); results:
               the .txt it writes
t2i_compbench  samples/<prompt>_<number>.png (Huang et al. 2023); results: vqa_result.json of BLIP-VQA

LAYOUTS has for each a function that names the images of one prompt, and one that reads results: figures between 0 and
1, and how many images they are of (of dpg: prompts). Figures of a part of the cell's images say so."""

import argparse
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from statistics import fmean

import numpy as np
from PIL import Image

from parity.base.errors import ParityError
from parity.base.files import publish, read_json, replace_whole, write_json
from parity.base.text_files import split_lines
from parity.decode.shard_io import read_rows, read_shard
from parity.experiment.prompt_files import PromptRow, iter_rows
from parity.experiment.schema import PromptSpec, validate

Results = tuple[dict[str, float], int]  # figures by name, and the number of images that they are of
Images = Sequence[np.ndarray]  # the images of one prompt, uint8 [H, W, 3]
FIGURES = {  # for each benchmark's main figure its label, unit and better direction
    "geneval": ("GenEval", "", "higher"),
    "dpg": ("DPG-Bench", "", "higher"),
    "t2i_compbench": ("T2I-CompBench, BLIP-VQA", "", "higher"),
}


def name_score(layout: str, category: str) -> str:
    """Name the score of a benchmark's category: geneval_two_object."""
    return f"{layout}_{re.sub('[^a-z0-9]+', '_', category.strip().lower())}"


def count_distinct(names: Sequence[str]) -> int:
    """Count names of images. Raises ValueError if there is none, or one occurs twice."""
    if not names or len(set(names)) < len(names):
        raise ValueError(f"{len(names)} results of {len(set(names))} images; allowed: one of each")
    return len(names)


def name_geneval(number: int, row: PromptRow, images: Images, first: int) -> dict[str, np.ndarray | PromptRow]:
    """List GenEval's files of a prompt, images and row, by name. Raises ParityError for a row without a tag."""
    if not isinstance(row.get("tag"), str):
        allowed = "lines of evaluation_metadata.jsonl"
        raise ParityError(f"geneval: row {number} of the prompts has no tag; allowed: {allowed}")
    files = {f"{number:05d}/samples/{k:05d}.png": image for k, image in enumerate(images)}
    return {f"{number:05d}/metadata.jsonl": row, **files}


def read_geneval(text: str) -> Results:
    """Read GenEval's results: the share of right images by task, and the mean over tasks (summary_scores.py)."""
    tasks: dict[str, list[bool]] = defaultdict(list)
    rows = [json.loads(line) for line in split_lines(text) if line.strip()]
    for row in rows:
        tasks[name_score("geneval", str(row["tag"]))].append(bool(row["correct"]))
    by_task = {name: fmean(answers) for name, answers in tasks.items()}
    return {"geneval": fmean(by_task.values()), **by_task}, count_distinct([str(row["filename"]) for row in rows])


def name_dpg(number: int, row: PromptRow, images: Images, first: int) -> dict[str, np.ndarray | PromptRow]:
    """List DPG-Bench's file of a prompt by name: its image, or its four joined to a square. Raises ParityError for an
    item_id that names no file, or for another number of images."""
    name = str(row.get("item_id", ""))
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,100}", name):
        key = f"dpg: row {number} of the prompts: item_id = {name[:40]!r}"
        raise ParityError(f"{key}; allowed: a name as in dpg_bench.csv (format: dpg)")
    if len(images) not in (1, 4):
        raise ParityError(f"dpg: {len(images)} images of prompt {name}; allowed: 1 or 4 (image.prompts.repeats)")
    pairs = [np.concatenate(list(images[k : k + 2]), 1) for k in range(0, len(images), 2)]
    return {f"{name}.png": np.concatenate(pairs)}


def read_dpg(text: str) -> Results:
    """Read DPG-Bench's log: the score and those of the first level of categories, 0 to 1; and its number of files."""
    files = re.findall(r"^(.*\.png), [0-9.]", text, re.M)
    score = re.findall(r"^DPG-Bench score: ([0-9.]+)", text, re.M)[-1]
    categories = re.search(r"^L1 category scores:\n((?:\t.*\n)*)", text, re.M)
    each = re.findall(r"^\t([^:\n]+): ([0-9.]+)$", categories[1] if categories else "", re.M)
    figures = {"dpg": float(score) / 100, **{name_score("dpg", name): float(value) / 100 for name, value in each}}
    return figures, count_distinct(files)


def name_t2i_compbench(number: int, row: PromptRow, images: Images, first: int) -> dict[str, np.ndarray | PromptRow]:
    """List T2I-CompBench's files of a prompt by name: its images, numbered from `first` over all prompts. Raises
    ParityError for a prompt that no file can be named after."""
    prompt = row["prompt"]
    if "/" in prompt or "_" in prompt or len(prompt.encode()) > 240:
        problem = f"t2i_compbench: prompt {prompt[:40]!r} is part of a file's name"
        raise ParityError(f"{problem}; allowed: 240 bytes without / and _")
    return {f"samples/{prompt}_{first + k:06d}.png": image for k, image in enumerate(images)}


def read_t2i_compbench(text: str) -> Results:
    """Read T2I-CompBench's answers: their mean, the BLIP-VQA score, and their number."""
    answers = [float(row["answer"]) for row in json.loads(text)]
    return {"t2i_compbench": fmean(answers)}, len(answers)


Name = Callable[[int, PromptRow, Images, int], dict[str, np.ndarray | PromptRow]]
LAYOUTS: dict[str, tuple[Name, Callable[[str], Results]]] = {
    "geneval": (name_geneval, read_geneval),
    "dpg": (name_dpg, read_dpg),
    "t2i_compbench": (name_t2i_compbench, read_t2i_compbench),
}


def export(layout: str, rows: Sequence[PromptRow], images: Iterable[tuple[str, str, np.ndarray]], folder: Path) -> int:
    """Write a cell's images, and what else a benchmark needs, as its layout says, to a folder that is new or empty;
    returns the number of prompts. Raises ParityError for a full folder, or a caption that is not in the prompt file.

    rows    of the prompt file, in its order
    images  (id "<prompt>/<repeat>", caption, pixels uint8 [H, W, 3]), those of a prompt one after the other
    """
    if folder.exists() and any(folder.iterdir()):
        allowed = "a new folder, for a benchmark takes all that it finds"
        raise ParityError(f"--out {folder}: is not empty; allowed: {allowed}")
    numbers: dict[str, list[int]] = defaultdict(list)
    for number, row in enumerate(rows):
        numbers[row["prompt"]].append(number)
    prompts = first = 0
    for _, group in groupby(images, key=lambda image: image[0].rsplit("/", 1)[0]):
        _, captions, pixels = zip(*group, strict=True)
        if not numbers[captions[0]]:
            problem = f"prompt {captions[0][:40]!r} of the cell is not in the prompt file, or more often than there"
            raise ParityError(f"{layout}: {problem}; allowed: the file that was decoded")
        number = numbers[captions[0]].pop(0)
        for name, content in LAYOUTS[layout][0](number, rows[number], pixels, first).items():
            if isinstance(content, dict):
                publish(folder / name, json.dumps(content).encode())
            else:
                with replace_whole(folder / name) as temporary:
                    Image.fromarray(content).save(temporary, format="PNG")
        prompts, first = prompts + 1, first + len(pixels)
    return prompts


def read_results(layout: str, file: Path) -> Results:
    """Read a benchmark's figures, and of how many images they are. Raises ParityError for a wrong file."""
    try:
        figures, number = LAYOUTS[layout][1](file.read_text(encoding="utf-8"))
        if not all(0 <= value <= 1 for value in figures.values()):
            raise ValueError("figures outside 0 to 1")
        return figures, number
    except (OSError, ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        cause = f"{type(error).__name__}: {' '.join(str(error).split())[:100]}"
        raise ParityError(f"--results {file}: no results of {layout} ({cause})") from None


def store_results(layout: str, file: Path, cell: Path) -> dict[str, float | str]:
    """Add a benchmark's figures to benchmarks.json in a cell's folder, in place of its former ones, and return them;
    summaries show them. `<figure>_why` says of how many of the cell's images a figure is, if not of all.

    Raises ParityError if there are results of more images than the cell has.
    """
    figures, number = read_results(layout, file)
    ids = {name for shard in shard_files(cell) for name in read_shard(shard).ids.astype(str)}
    unit = "prompts" if layout == "dpg" else "images"
    total = len({name.rsplit("/", 1)[0] for name in ids} if layout == "dpg" else ids)
    if number > total:
        raise ParityError(f"--results {file}: of {number} {unit}; allowed: results of this cell, which has {total}")
    partial = {f"{name}_why": f"{number} of {total} {unit}" for name in figures if number < total}
    path = cell / "benchmarks.json"
    saved = read_json(path) if path.is_file() else {}
    whole_file = {k: v for k, v in saved.items() if not f"{k}_".startswith(f"{layout}_")} | figures | partial
    write_json(path, whole_file)
    return {**figures, **partial}


def shard_files(cell: Path) -> list[Path]:
    """List the shards of a cell in order. Raises ParityError for a folder without any."""
    files = sorted(cell.glob("shards/*-of-*.npz"), key=lambda f: int(f.name.partition("-")[0]))
    if not files:
        raise ParityError(f"--cell {cell}: holds no images; allowed: results/cells/discrete/<model>/<method>-<key>")
    return files


def read_images(cell: Path) -> Iterator[tuple[str, str, np.ndarray]]:
    """Yield id, caption and pixels of each of a cell's images, in order, reading a file at a time."""
    for file in shard_files(cell):
        rows, shard = read_rows(cell / "images" / file.name), read_shard(file)
        yield from zip(shard.ids.astype(str), shard.captions.astype(str), rows["pixels"], strict=True)


def run(a: argparse.Namespace) -> None:
    """Run `export`: add a benchmark's `--results` to a cell if they are given, else write the cell's images."""
    if a.results is not None:
        print(f"{a.cell}: {store_results(a.layout, a.results, a.cell)}")
        return
    if a.out is None or a.prompts is None:
        raise ParityError("export: --prompts and --out are needed to write, --results to read back")
    spec = validate(PromptSpec, {"file": str(a.prompts), "format": a.format, "limit": 100_000}, "--prompts")
    rows = list(iter_rows(spec, Path(), f"--prompts {a.prompts}"))
    print(f"{export(a.layout, rows, read_images(a.cell), a.out)} prompts to {a.out}")
