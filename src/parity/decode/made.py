"""Take the tokens of images that were made elsewhere, in place of decoding: check them, and write them as a shard.

python -m parity.decode.made --spec JSON --sizes '{"vocab": 16384, "rows": 16, "columns": 16}' \
    --tokens tokens.npz --inputs 0.npz 1.npz --part 0 2 --out 0-of-2.npz

The file of tokens has a row an image, in the order of the experiment's images.

    tokens   [n, rows x columns] or [n, rows, columns] whole numbers: codes from 0, row by row, without line tokens
    prompts  [n] text
    passes   [n] whole numbers: passes of the target that a row took part in; may be missing
    step     as tokens: the pass, from 1, in which a code became final; may be missing

Columns of the shard that the file cannot tell are NaN or 0, and `lacks` of the provenance names what it does not have.
Seconds are those that were reported; the report never compares them with measured ones.
"""

import argparse
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from parity.base.command import add_arguments, run_command
from parity.base.errors import ParityError
from parity.base.text_files import read_table, read_text
from parity.decode.shard_io import join, read_rows, write_shard

OPTIONAL = ("passes", "step")
LARGEST = np.iinfo(np.int16).max  # of passes, as shards hold them


def read_columns(file: Path) -> dict[str, np.ndarray]:
    """Read the columns of a file of tokens. Raises ParityError for one that lacks tokens or prompts, or is no .npz of
    plain arrays."""
    try:
        with np.load(file, allow_pickle=False) as stored:
            columns = {name: stored[name] for name in ("tokens", "prompts", *OPTIONAL) if name in stored}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        reason = str(error).splitlines()[0][:120]
        raise ParityError(f"{file}: {reason}; allowed: an .npz of numbers and text, without Python objects") from None
    for name in ("tokens", "prompts"):
        if name not in columns:
            raise ParityError(f"{file}: no column {name}; allowed: tokens, prompts, and if known {', '.join(OPTIONAL)}")
    return columns


def check_numbers(file: Path, name: str, values: np.ndarray, shape: tuple[int, ...], limits: tuple[int, int]) -> None:
    """Check that a column has a shape and whole numbers within limits. Raises ParityError that names file and column,
    and of numbers the first row."""
    if values.shape != shape:
        raise ParityError(f"{file}: {name} has shape {values.shape}; allowed: {shape}")
    if values.dtype.kind not in "iu":
        raise ParityError(f"{file}: {name} has dtype {values.dtype}; allowed: whole numbers, as int32")
    low, high = limits
    if (bad := (values < low) | (values > high)).any():
        row = int(np.argwhere(bad)[0][0])
        value = int(values[bad][0])
        raise ParityError(f"{file}: {name} = {value} in row {row}; allowed: {low} to {high}")


def check_prompts(file: Path, prompts: np.ndarray, captions: list[str]) -> None:
    """Check that a file's prompts are the experiment's, in its order, and as many. Raises ParityError that names the
    first row that is not."""
    if prompts.ndim != 1 or prompts.dtype.kind != "U":
        raise ParityError(f"{file}: prompts has dtype {prompts.dtype} and {prompts.ndim} axes; allowed: a list of text")
    for row, (theirs, ours) in enumerate(zip(prompts.tolist(), captions, strict=False)):
        if theirs != ours:
            raise ParityError(
                f"{file}: prompts = {theirs[:60]!r} in row {row}; allowed: the experiment's {ours[:60]!r}"
            )
    if len(prompts) != len(captions):
        raise ParityError(f"{file}: prompts has {len(prompts)} rows; allowed: the experiment's {len(captions)} images")


def read_tokens(file: Path, captions: list[str], sizes: Mapping[str, int]) -> dict[str, np.ndarray]:
    """Read a file of tokens, checked against the experiment's captions and the model's sizes: vocab, rows, columns.
    Returns tokens and step [n, rows x columns] and passes [n], those that it has. Raises ParityError in one line."""
    columns = read_columns(file)
    check_prompts(file, columns.pop("prompts"), captions)
    n, rows, across = len(captions), sizes["rows"], sizes["columns"]
    for name in {"tokens", "step"} & set(columns):
        shape = (n, rows, across) if columns[name].ndim == 3 else (n, rows * across)
        check_numbers(file, name, columns[name], shape, (0, sizes["vocab"] - 1) if name == "tokens" else (1, LARGEST))
        columns[name] = columns[name].reshape(n, rows * across)
    if "passes" in columns:
        check_numbers(file, "passes", columns["passes"], (n,), (1, LARGEST))
    if "step" in columns and "passes" in columns and (columns["step"].max(1) > columns["passes"]).any():
        row = int((columns["step"].max(1) > columns["passes"]).argmax())
        raise ParityError(f"{file}: step = {columns['step'][row].max()} in row {row}; allowed: at most its passes")
    return columns


def read_seconds(file: Path, n: int = 0) -> list[tuple[float, int]]:
    """Read the seconds and the number of images of each batch. Raises ParityError that names the row for one that is
    not positive, or unless there are n images in all, if n is not 0."""
    batches = []
    try:
        names, rows = read_table(read_text(file), ",")
        if "seconds" not in names:
            raise ParityError(f"{file}: no column seconds; allowed: seconds, and images of a batch")
        for number, row in enumerate(rows, 1):
            try:
                seconds, images = float(row["seconds"]), int(row.get("images", "1"))
            except ValueError:
                seconds, images = 0.0, 0
            if not (0 < seconds < float("inf") and images > 0):
                shown = ", ".join(f"{name} = {row[name]!r}" for name in ("seconds", "images") if name in row)
                raise ParityError(f"{file}: {shown} in row {number}; allowed: numbers above 0, images whole")
            batches.append((seconds, images))
    except ValueError as error:
        raise ParityError(f"{file}: {error}") from None
    total = sum(images for _, images in batches)
    if not batches or (n and total != n):
        raise ParityError(f"{file}: images are {total} in all; allowed: {n or 'one or more'}")
    return batches


def lay_codes(values: np.ndarray, sizes: Mapping[str, int], forced: bool = False) -> np.ndarray:
    """Lay values [n, rows x columns] of codes out as an image's tokens [n, L], with the model's line tokens after each
    row and those of its end; forced: with the numbers of these tokens, else with 0."""
    n, rows, across = len(values), sizes["rows"], sizes["columns"]
    line, end = sizes.get("line", 0), sizes.get("end", 0)
    added = np.arange(sizes["vocab"], sizes["vocab"] + line + end) * forced
    lines = np.broadcast_to(added[:line], (n, rows, line))
    body = np.concatenate([values.reshape(n, rows, across), lines], 2).reshape(n, -1)
    return np.concatenate([body, np.broadcast_to(added[line:], (n, end))], 1)


def make_columns(
    images: Mapping[str, np.ndarray],
    made: Mapping[str, np.ndarray],
    sizes: Mapping[str, int],
    batches: list[tuple[float, int]],
) -> dict[str, np.ndarray]:
    """Make the columns of a shard of all images. images: their ids and captions; made: of `read_tokens`; batches:
    seconds and images of each, [] if they are not known."""
    n = len(images["ids"])
    nothing, none = np.full(n, np.nan), np.zeros(n, int)
    step = made.get("step", np.ones_like(made["tokens"]))
    nfe = made.get("passes", step.max(1) if "step" in made else nothing)
    counts = [np.bincount(row, minlength=int(nfe.max()) + 1)[1:] for row in step] if "step" in made else [[0]] * n
    took, of = np.array(batches or [(np.nan, 1)] * n).T
    size = of.astype(int)
    passes = np.maximum.reduceat(nfe, size.cumsum() - size)
    return {
        **images, "nfe": nfe, "nodes": nothing, "kept": np.array(counts, np.int16),
        "tokens": lay_codes(made["tokens"], sizes, forced=True).astype(np.int32),
        "step": lay_codes(step, sizes).astype(np.int16),
        "seconds": np.repeat(took, size), "network_seconds": nothing, "first_seconds": nothing,
        "batch": np.repeat(size, size), "at_once": np.repeat(size, size), "passes": np.repeat(passes, size),
        "draft_calls": none, "draft_tokens": none,
    }  # fmt: skip


def main() -> None:
    """Check the file --tokens against all of the experiment's images, and write those of one part to --out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spec", type=json.loads, required=True, help="JSON: the cell's specification")
    parser.add_argument("--sizes", type=json.loads, required=True, help="JSON: the model's sizes")
    parser.add_argument(
        "--part", type=int, nargs=2, default=(0, 1), metavar=("K", "N"), help="write part K of N, from 0"
    )
    add_arguments(parser, "tokens", "inputs+", "out", "seconds?", "plain-seconds?")
    a = parser.parse_args()
    parts = [read_rows(file) for file in a.inputs]
    images = join([{name: rows[name] for name in ("ids", "captions")} for rows in parts])
    made = read_tokens(a.tokens, images["captions"].astype(str).tolist(), a.sizes)
    batches = read_seconds(a.seconds, len(images["ids"])) if a.seconds else []
    columns = make_columns(images, made, a.sizes, batches)
    first = sum(len(rows["ids"]) for rows in parts[: a.part[0]])
    own = slice(first, first + len(parts[a.part[0]]["ids"]))
    plain = read_seconds(a.plain_seconds) if a.plain_seconds else []
    options = a.spec["options"]
    about = {name: options[name] for name in ("name", "command", "by", "device", "claim")} | {"plain": plain}
    known = {*made, *(["seconds"] if batches else [])}
    lacks = [name for name in (*OPTIONAL, "seconds") if name not in known]
    origin = {"device": options["device"] or "not said", "spec": a.spec, "made": about, "lacks": lacks}
    write_shard(a.out, {name: values[own] for name, values in columns.items()}, origin)


if __name__ == "__main__":
    run_command(main)
