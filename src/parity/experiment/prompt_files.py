"""Prompts from files, as the papers' data sets come: lines, columns, COCO's captions, PartiPrompts, class labels.

    rows(spec)          -> [{"prompt": ..., and what else its row says}, ...]
    read_prompts(spec)  -> ["a red circle", ...]

What cannot be read is a ConfigError that names file and row. A file is read whole, if it is a regular one of at most
MOST bytes. The rules read prompts as they are parsed: this imports no torch.
"""

import csv
import io
import json
import random
import re
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from parity.base.errors import ConfigError, ParityError
from parity.experiment.schema import CLASSES, PromptSpec

PLACES = 24  # tokens that the embedded model reads, its end token among them
EXAMPLE = "a large striped red circle left of a small blue square on a cloudy green background"
MOST = 100_000_000  # bytes of a prompt file
NAMES = ("prompt", "caption", "text")  # of the column, where none is named
ENDS = {".tsv": "tsv", ".csv": "csv", ".jsonl": "jsonl", ".json": "coco"}  # of other names: lines
Row = dict[str, Any]


def source(spec: PromptSpec) -> list[str]:
    """The file of a prompt set; None for labels that need none."""
    return [] if spec.file.startswith(CLASSES) else [spec.file]


def text_of(spec: PromptSpec, root: Path, where: str) -> str:
    path = root / spec.file
    try:
        if path.exists() and not path.is_file():
            raise ConfigError(f"{where}: no regular file; allowed: a file, one prompt a line")
        if (size := path.stat().st_size) > MOST:
            raise ConfigError(f"{where}: {size} bytes; allowed: at most {MOST}")
        return path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(f"{where}: no such file") from None
    except OSError as error:
        raise ConfigError(f"{where}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError as error:
        problem = f"not UTF-8 at byte {error.start}; allowed: UTF-8 text, one prompt a line"
        raise ConfigError(f"{where}: {problem}") from None


def with_prompt(row: Row, wanted: str, where: str) -> Row:
    """A row with its prompt under "prompt"; `wanted` names its column, or one of NAMES is taken."""
    lower = {str(name).lower(): name for name in row if isinstance(name, str)}
    column = wanted if wanted in row else next((lower[n] for n in NAMES if n in lower), None) if not wanted else None
    if column is None:
        given = ", ".join(str(name)[:40] for name in row) or "none"
        raise ConfigError(f"{where}: has no {wanted or 'prompt, caption or text'}; its columns: {given}")
    if not isinstance(row[column], str) or not row[column].strip():
        raise ConfigError(f"{where}: {column} = {str(row[column])[:40]!r}; allowed: text")
    return {**row, "prompt": " ".join(row[column].split())}


def of_lines(text: str, spec: PromptSpec, where: str) -> Iterator[Row]:
    return ({"prompt": line.strip()} for line in text.splitlines() if line.strip())


def of_labels(text: str, spec: PromptSpec, where: str) -> Iterator[Row]:
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            if not line.strip().isascii() or not line.strip().isdigit() or len(line.strip()) > 6:
                problem = f"{line.strip()[:40]!r} is no label; allowed: a whole number, 0 or more"
                raise ConfigError(f"{where}: line {number}: {problem}")
            yield {"prompt": str(int(line))}


def of_columns(delimiter: str, needed: tuple[str, ...] = ()) -> Callable[[str, PromptSpec, str], Iterator[Row]]:
    def read(text: str, spec: PromptSpec, where: str) -> Iterator[Row]:
        table = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter)
        try:
            if lacks := [name for name in needed if name not in (table.fieldnames or ())]:
                given = ", ".join(str(name)[:40] for name in table.fieldnames or ()) or "none"
                raise ConfigError(f"{where}: has no column {lacks[0]}; its columns: {given}")
            for number, row in enumerate(table, 1):
                yield with_prompt(row, needed[0] if needed else spec.column, f"{where}: row {number}")
        except csv.Error as error:
            raise ConfigError(f"{where}: line {table.line_num} cannot be parsed ({error})") from None

    return read


def of_json_lines(text: str, spec: PromptSpec, where: str) -> Iterator[Row]:
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (json.JSONDecodeError, RecursionError) as error:
            problem = getattr(error, "msg", "nested too deep")
            raise ConfigError(f"{where}: line {number} is not JSON ({problem}); allowed: one object a line") from None
        if not isinstance(row, dict):
            raise ConfigError(f"{where}: line {number} is no JSON object; allowed: one object a line")
        yield with_prompt(row, spec.column, f"{where}: line {number}")


def of_coco(text: str, spec: PromptSpec, where: str) -> Iterator[Row]:
    """A caption of every picture of captions_val2017.json or one like it, pictures in the order of their ids."""
    try:
        held = json.loads(text)
        pictures = sorted({int(picture["id"]) for picture in held["images"]})
        captions: dict[int, list[tuple[int, str]]] = {picture: [] for picture in pictures}
        for number, one in enumerate(held["annotations"], 1):
            if not isinstance(one["caption"], str) or not one["caption"].strip():
                raise ConfigError(
                    f"{where}: annotation {number}: caption = {str(one['caption'])[:40]!r}; allowed: text"
                )
            captions[int(one["image_id"])].append((int(one["id"]), one["caption"]))
    except (json.JSONDecodeError, RecursionError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        problem = f"no captions as COCO's ({type(error).__name__}: {' '.join(str(error).split())[:80]})"
        raise ConfigError(
            f"{where}: {problem}; allowed: images with id, annotations with image_id, id, caption"
        ) from None
    longest = place = 0  # of the rule sjd: kept from one picture to the next
    for picture in pictures:
        own = captions[picture]
        lengths = [len(caption) for _, caption in own]
        if spec.caption == "sjd":
            for k, length in enumerate(lengths):
                if longest < length:
                    longest, place = length, k
        elif own:
            place = lengths.index(max(lengths)) if spec.caption == "longest" else 0
        if place >= len(own):
            problem = f"has {len(own)} captions; the rule {spec.caption} takes number {place + 1}"
            raise ConfigError(f"{where}: picture {picture} {problem}")
        yield {"prompt": " ".join(own[place][1].split()), "image_id": picture, "id": own[place][0]}


def of_dpg(text: str, spec: PromptSpec, where: str) -> Iterator[Row]:
    """The prompts of DPG-Bench, whose file has a row for each question about a picture."""
    seen: set[str] = set()
    for row in of_columns(",", ("text", "item_id"))(text, spec, where):
        if str(row["item_id"]) not in seen:
            seen.add(str(row["item_id"]))
            yield row


READERS: dict[str, Callable[[str, PromptSpec, str], Iterator[Row]]] = {
    "lines": of_lines,
    "tsv": of_columns("\t"),
    "csv": of_columns(","),
    "jsonl": of_json_lines,
    "coco": of_coco,
    "parti": of_columns("\t", ("Prompt", "Category")),
    "dpg": of_dpg,
    "labels": of_labels,
}


def every(spec: PromptSpec, root: Path, where: str) -> Iterator[Row]:
    """Every row of a set, in the file's order."""
    if spec.file.startswith(CLASSES):
        count = spec.file.removeprefix(CLASSES)
        if not (count.isascii() and count.isdigit() and 1 <= int(count[:7]) <= 10**6):
            raise ConfigError(f"{where}: allowed: {CLASSES}1000, the number of classes")
        yield from ({"prompt": str(k % int(count))} for k in range(spec.limit))
        return
    text = text_of(spec, root, where)
    kind = ENDS.get(Path(spec.file).suffix.lower(), "lines") if spec.format == "auto" else spec.format
    yield from READERS[kind](text, spec, where)


def rows(spec: PromptSpec, root: Path = Path()) -> list[Row]:
    """The rows of a set, `limit` at most: from the top of the file, or `sample`'s subset in the file's order.

    ConfigError for a file that is missing, empty or not what its format says, or that holds fewer than are asked for.
    """
    where = f"image.prompts.file = {spec.file!r}"
    source = every(spec, root, where)
    if spec.sample is None:
        chosen = list(islice(source, spec.limit))
        whole = len(chosen)
    else:
        held = list(source)
        whole, size = len(held), min(spec.limit, len(held))
        chosen = [held[k] for k in sorted(random.Random(spec.sample).sample(range(whole), size))]
    if not chosen:
        raise ConfigError(f"{where}: holds no prompt; allowed: one prompt a line")
    if len(chosen) < spec.limit and "limit" in spec.model_fields_set:
        problem = f"image.prompts.limit = {spec.limit}: {spec.file!r} holds {whole} prompts"
        raise ConfigError(f"{problem}; allowed: at most that")
    if len(chosen) * spec.repeats < spec.shards:
        problem = f"image.prompts.shards = {spec.shards}: more than the {len(chosen) * spec.repeats} images"
        raise ConfigError(f"{problem}; allowed: at most that")
    return chosen


def read_prompts(spec: PromptSpec, root: Path = Path(), most: int | None = None) -> list[str]:
    """The prompts of a set; ConfigError for one of more than `most` words."""
    prompts = [row["prompt"] for row in rows(spec, root)]
    for number, prompt in enumerate(prompts, 1):
        if most is not None and (words := len(prompt.split())) > most:
            problem = f"prompt {number} ({prompt[:40]!r}...) has {words} words"
            raise ConfigError(f"image.prompts.file = {spec.file!r}: {problem}; allowed: at most {most}")
    return prompts


def check_embedded(prompts: list[str], spec: PromptSpec, drawn: bool) -> None:
    """ConfigError for the first prompt that the embedded model cannot read: more tokens than it has places or, where
    its reference pictures are `drawn` from the prompts, no sentence of its grammar."""
    from parity.embedded.scenes import parse

    for number, prompt in enumerate(prompts, 1):
        where = f"image.prompts.file = {spec.file!r}: prompt {number} ({prompt[:40]!r})"
        if (tokens := len(re.findall(r"\w+|[^\w\s]+", prompt))) >= PLACES:
            raise ConfigError(f"{where}: {tokens} tokens; allowed with source embedded: at most {PLACES - 1}")
        try:
            _ = drawn and parse(prompt)
        except ParityError as error:
            raise ConfigError(f"{where}: {error}; allowed with source embedded: such as {EXAMPLE!r}") from None
