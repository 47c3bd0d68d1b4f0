"""Prompts from files, as the papers' data sets come: lines, columns, COCO's captions, PartiPrompts, class labels.

    rows(spec)          -> [{"prompt": ..., and what else its row says}, ...]
    read_prompts(spec)  -> ["a red circle", ...]

What cannot be read is a ConfigError that names file and row. The rules read prompts as they are parsed: this imports no
torch.
"""

import json
import random
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from parity.base import text_files
from parity.base.errors import ConfigError, ParityError
from parity.experiment.schema import CLASSES, PromptSpec

PLACES = 24  # number of caption tokens that the embedded model reads, its end token among them
SHOWN = 5  # an error gives the numbers of this many further prompts
EXAMPLE = "a large striped red circle left of a small blue square on a cloudy green background"
NAMES = ("prompt", "caption", "text")  # names of the prompt's column, if the configuration names none
TABLES = {"parti": "tsv", "dpg": "csv"}  # benchmarks, and the format that their tables are in
NEEDED = {"parti": ("Prompt", "Category"), "dpg": ("text", "item_id")}  # their columns, the prompt's first
FORMATS = {**text_files.FORMATS, ".json": "coco"}  # format by suffix
PromptRow = dict[str, Any]


def source(spec: PromptSpec) -> list[str]:
    """List the file of a prompt set; [] for class labels (`classes:N`), which need none."""
    return [] if spec.file.startswith(CLASSES) else [spec.file]


def join_names(names: Iterable[Any]) -> str:
    return ", ".join(str(name)[:40] for name in names) or "none"


def select_prompt(row: PromptRow, column_name: str, label: str) -> PromptRow:
    """Return a row with its prompt, white space collapsed, under "prompt": the text in the column `column_name`, or in
    one of NAMES if that is "". Raises ValueError, which begins with `label`, if there is no such column or text."""
    lower = {name.lower(): name for name in row if isinstance(name, str)}
    column = (
        column_name
        if column_name and column_name in row
        else next((lower[n] for n in NAMES if n in lower and not column_name), None)
    )
    if column is None:
        raise ValueError(f"{label}: has no {column_name or 'prompt, caption or text'}; its columns: {join_names(row)}")
    if not isinstance(row[column], str) or not row[column].strip():
        raise ValueError(f"{label}: {column} = {str(row[column])[:40]!r}; allowed: text")
    return {**row, "prompt": " ".join(row[column].split())}


def read_lines(text: str, labels: bool) -> Iterator[PromptRow]:
    """Read a prompt from each line that is not blank; if `labels`, a whole number. ValueError for another label."""
    for place, row in text_files.read_rows(text, "lines"):
        line = row["text"].strip()
        if labels and not re.fullmatch(r"[0-9]{1,6}", line):
            raise ValueError(f"{place}: {line[:40]!r} is no label; allowed: a whole number, 0 or more")
        yield {"prompt": str(int(line)) if labels else line}


def read_table(text: str, kind: str, column: str) -> Iterator[PromptRow]:
    """Read the rows of a table or of JSON lines, with their prompts from `column` or, of a benchmark, its own. Of
    DPG-Bench only the first row of each image. Raises ValueError for a missing column or prompt."""
    needed = NEEDED.get(kind, ())
    items = set()
    for place, values in text_files.read_rows(text, TABLES.get(kind, kind)):
        if lacks := [name for name in needed if name not in values]:
            raise ValueError(f"has no column {lacks[0]}; its columns: {join_names(values)}")
        row = select_prompt(values, needed[0] if needed else column, place)
        if kind != "dpg" or row["item_id"] not in items:  # DPG-Bench repeats a prompt for each question
            items.add(row.get("item_id"))
            yield row


def read_captions(text: str) -> tuple[dict[int, list[tuple[int, str]]], int]:
    """Read COCO's captions: by image, in the order of their ids, the id and text of each caption; and how many
    captions are of images that the file does not list. Raises ValueError if it cannot."""
    try:
        content = json.loads(text)
        captions: dict[int, list[tuple[int, str]]] = {k: [] for k in sorted(int(p["id"]) for p in content["images"])}
        unlisted = 0
        for number, one in enumerate(content["annotations"], 1):
            if not isinstance(one["caption"], str) or not one["caption"].strip():
                raise ValueError(f"annotation {number}: caption = {str(one['caption'])[:40]!r}")
            if (image := int(one["image_id"])) in captions:
                captions[image].append((int(one["id"]), one["caption"]))
            else:
                unlisted += 1
    except (RecursionError, KeyError, TypeError, ValueError) as error:
        problem = f"no captions as COCO's ({type(error).__name__}: {' '.join(str(error).split())[:80]})"
        raise ValueError(f"{problem}; allowed: images with id, annotations with image_id, id, caption") from None
    return captions, unlisted


def read_coco(text: str, rule: str) -> Iterator[PromptRow]:
    """Read one caption of each image of captions_val2017.json or a file like it, images in the order of their ids:
    by the rule "first", "longest" or "sjd", that of the SJD repository. Raises ValueError if it cannot."""
    captions, _ = read_captions(text)
    longest = index = 0  # the rule sjd does not reset these from one image to the next
    for image, image_captions in captions.items():
        lengths = [len(caption) for _, caption in image_captions]
        if rule == "sjd":
            for k, length in enumerate(lengths):
                if longest < length:
                    longest, index = length, k
        elif image_captions:
            index = lengths.index(max(lengths)) if rule == "longest" else 0
        if index >= len(image_captions):
            raise ValueError(
                f"image {image} has {len(image_captions)} captions; the rule {rule} takes number {index + 1}"
            )
        yield {
            "prompt": " ".join(image_captions[index][1].split()),
            "image_id": image,
            "id": image_captions[index][0],
        }


def read_classes(spec: PromptSpec) -> Iterator[PromptRow]:
    """Make `spec.limit` labels of the file name `classes:N`: 0 to N - 1, again and again. ValueError for another N."""
    count = spec.file.removeprefix(CLASSES)
    if not (re.fullmatch(r"[0-9]{1,7}", count) and 1 <= int(count) <= 10**6):
        raise ValueError(f"allowed: {CLASSES}1000, the number of classes")
    yield from ({"prompt": str(k % int(count))} for k in range(spec.limit))


def find_format(spec: PromptSpec) -> str:
    """Find the format of a prompt file, by its suffix if the configuration leaves it open ("auto"). Raises ValueError
    for an unknown suffix."""
    if spec.format != "auto":
        return spec.format
    if (suffix := text_files.find_suffix(spec.file)) not in FORMATS:
        raise ValueError(f"unknown suffix; allowed: {', '.join(FORMATS)}, or any with the file's `format` named")
    return FORMATS[suffix]


def read_format(spec: PromptSpec, root: Path) -> Iterator[PromptRow]:
    """Read every row of a prompt set by its format. Raises ValueError for a file or row that cannot be read."""
    if spec.file.startswith(CLASSES):
        return read_classes(spec)
    kind = find_format(spec)
    text = text_files.read_text(root / spec.file)
    if kind == "coco":
        return read_coco(text, spec.caption)
    if kind in ("lines", "labels"):
        return read_lines(text, kind == "labels")
    return read_table(text, kind, spec.column)


def find_flaw(prompt: str) -> str:
    """Say why a prompt cannot be used, whatever the model, and what is allowed; "" if it can."""
    if not any(character.isprintable() and not character.isspace() for character in prompt):
        return "has no visible character; allowed: one or more words"
    return text_files.find_flaw(prompt)


def iter_rows(spec: PromptSpec, root: Path, label: str) -> Iterator[PromptRow]:
    """Yield every row of a prompt set, in the file's order, whatever `limit` and `sample` are; its file is relative to
    `root`. Raises ConfigError, which begins with `label`, for a file, row or prompt that cannot be read."""
    try:
        for number, row in enumerate(read_format(spec, root), 1):
            if flaw := find_flaw(row["prompt"]):
                raise ValueError(f"prompt {number} ({row['prompt'][:40]!r}) {flaw}")
            yield row
    except ValueError as error:
        raise ConfigError(f"{label}: {error}") from None


def describe_left_out(spec: PromptSpec, root: Path = Path()) -> list[str]:
    """Say in a line how many captions of a COCO file are left out, because it does not list their images; [] for
    none, and for other files. Raises ConfigError for a file that cannot be read."""
    try:
        if spec.file.startswith(CLASSES) or find_format(spec) != "coco":
            return []
        _, unlisted = read_captions(text_files.read_text(root / spec.file))
    except ValueError as error:
        raise ConfigError(f"{spec.file}: {error}") from None
    return [f"{unlisted:,} captions of {spec.file} are left out: `images` does not list their images"] * bool(unlisted)


def read_rows(spec: PromptSpec, root: Path = Path()) -> list[PromptRow]:
    """Read the rows of a prompt set, `limit` at most: from the top of the file, or a random subset of seed `sample` in
    the file's order. Raises ConfigError for a file that is missing, empty or not what its format says, or that holds
    fewer than an explicit limit or the number of shards."""
    label = f"image.prompts.file = {spec.file!r}"
    source = iter_rows(spec, root, label)
    chosen = list(islice(source, spec.limit) if spec.sample is None else source)
    n_rows = len(chosen)
    if spec.sample is not None:
        subset = random.Random(spec.sample).sample(range(n_rows), min(spec.limit, n_rows))
        chosen = [chosen[k] for k in sorted(subset)]
    if not chosen:
        raise ConfigError(f"{label}: holds no prompt; allowed: one prompt a line")
    if len(chosen) < spec.limit and "limit" in spec.model_fields_set:
        problem = f"image.prompts.limit = {spec.limit}: {spec.file!r} holds {n_rows} prompts"
        raise ConfigError(f"{problem}; allowed: at most that")
    if len(chosen) * spec.repeats < spec.shards:
        problem = f"image.prompts.shards = {spec.shards}: more than the {len(chosen) * spec.repeats} images"
        raise ConfigError(f"{problem}; allowed: at most that")
    return chosen


def read_prompts(spec: PromptSpec, root: Path = Path(), max_words: int | None = None) -> list[str]:
    """Read the prompts of a set (see `read_rows`). Raises ConfigError also for one of more than `max_words` words."""
    prompts = [row["prompt"] for row in read_rows(spec, root)]

    def find_length(prompt: str) -> str:
        """Say that a prompt has too many words; "" if it does not."""
        if max_words is None or (words := len(prompt.split())) <= max_words:
            return ""
        return f"has {words} words; allowed: at most {max_words}"

    refuse_prompts(prompts, find_length, f"image.prompts.file = {spec.file!r}: ")
    return prompts


def refuse_prompts(prompts: Iterable[str], find: Callable[[str], str], label: str = "") -> None:
    """Raise ConfigError, which begins with `label`, if `find` finds a flaw in prompts: it gives number, text and flaw
    of the first, and the numbers of the next SHOWN."""
    flaws = [(number, prompt, flaw) for number, prompt in enumerate(prompts, 1) if (flaw := find(prompt))]
    if not flaws:
        return
    (number, prompt, flaw), *others = flaws
    more = f" and {len(others) - SHOWN:,} more" if len(others) > SHOWN else ""
    numbers = ", ".join(str(number) for number, *_ in others[:SHOWN])
    also = f"; {len(flaws):,} prompts in all: also {numbers}{more}" if others else ""
    raise ConfigError(f"{label}prompt {number} ({prompt[:40]!r}) {flaw}{also}")


def check_embedded(prompts: list[str], spec: PromptSpec, drawn: bool) -> None:
    """Raise ConfigError for prompts that the embedded model cannot read: more tokens than it has positions, no word
    that it knows or, if its reference images are `drawn` from the prompts, no sentence of its grammar."""
    from parity.embedded.scenes import WORDS, parse

    def find_unread(prompt: str) -> str:
        """Say why the model cannot read a prompt; "" if it can."""
        tokens = re.findall(r"\w+|[^\w\s]+", prompt.lower())
        if len(tokens) >= PLACES:
            return f"has {len(tokens)} tokens; allowed with source embedded: at most {PLACES - 1}"
        if not any(token in WORDS for token in tokens):
            return f"has no word that the model knows; allowed with source embedded: such as {EXAMPLE!r}"
        try:
            _ = drawn and parse(prompt)
        except ParityError as error:
            return f"is no sentence of its grammar ({error}); allowed with source embedded: such as {EXAMPLE!r}"
        return ""

    refuse_prompts(prompts, find_unread, f"image.prompts.file = {spec.file!r}: ")
