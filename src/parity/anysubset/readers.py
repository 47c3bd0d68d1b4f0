"""Text data from files: plain text, CSV, JSON lines (also gzipped), or a data set that the user's own `datasets` library has.

    rows("stories.csv", ("sentence1", ...)) -> dicts with these columns

A path `datasets:NAME:SPLIT` (or NAME/CONFIG:SPLIT for a configuration) reads from the Hugging Face library instead, if it is installed.
What is missing or cannot be decoded is a ConfigError that names the file, the place, and what is allowed.
"""

import csv
import gzip
import io
import json
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from parity.config import ConfigError

COLUMNS: dict[str, tuple[str, ...]] = {  # of each task's data; "a|b" is a column with one of two names
    "infilling": ("text",),
    "stories": (*(f"sentence{k}|InputSentence{k}" for k in range(1, 5)), "sentence5|AnswerRightEnding"),
    "code": ("prompt", "suffix", "canonical_solution", "test", "entry_point"),
    "last_word": ("text",),
    "choice": ("ctx", "endings", "label"),
}


def check(kind: str, settings: dict[str, Any]) -> None:
    """ConfigError for a data file that the task cannot read; a data set of the library is looked at when it is loaded."""
    if settings["data"] and not settings["data"].startswith("datasets:"):
        rows(settings["data"], COLUMNS[kind], settings["rows"] if kind != "infilling" else 1)


def read_text(path: Path) -> str:
    """The whole of a UTF-8 file, unpacked if its name ends in .gz."""
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except FileNotFoundError:
        raise ConfigError(f"data = {str(path)!r}: no such file") from None
    except (OSError, EOFError) as error:
        raise ConfigError(f"data = {str(path)!r}: cannot be read ({error})") from None
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"data = {str(path)!r}: not UTF-8 at byte {error.start}; allowed: UTF-8 text") from None


def json_lines(path: Path) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(read_text(path).splitlines(), 1):
        if line.strip():
            try:
                yield json.loads(line)
            except json.JSONDecodeError as error:
                raise ConfigError(f"data = {str(path)!r}: line {number} is not JSON ({error.msg}); allowed: one object a line") from None


def hub_rows(name: str) -> Iterator[dict[str, Any]]:
    """Rows of `datasets:NAME[/CONFIG]:SPLIT`, from the user's library and its cache."""
    try:
        import datasets
    except ImportError:
        raise ConfigError(f"data = {name!r}: the package `datasets` is not installed; allowed: a file, or install it") from None
    where, split = [*name.split(":")[1:], "test"][:2]
    parts = where.split("/")
    config = parts[2] if len(parts) > 2 else None
    yield from datasets.load_dataset("/".join(parts[:2]), config, split=split)


def rows(name: str, columns: Sequence[str], limit: int) -> list[dict[str, Any]]:
    """The first `limit` rows, each with `columns`. "a|b" is a column that has one of two names, and is returned as "a"."""
    if name.startswith("datasets:"):
        found = hub_rows(name)
    elif name.removesuffix(".gz").endswith((".jsonl", ".json")):
        found = json_lines(Path(name))
    elif name.endswith(".csv"):
        found = iter(csv.DictReader(io.StringIO(read_text(Path(name)))))
    else:
        found = ({"text": line} for line in read_text(Path(name)).splitlines() if line.strip())
    kept = []
    for number, row in enumerate(islice(found, limit), 1):
        out = {}
        for column in columns:
            have = next((c for c in column.split("|") if row.get(c) is not None), None)
            if have is None:
                raise ConfigError(
                    f"data = {name!r}: row {number} has no {column.replace('|', ' or ')}; its columns: {', '.join(map(str, row)) or 'none'}"
                )
            out[column.split("|")[0]] = row[have]
        kept.append(out)
    if not kept:
        raise ConfigError(f"data = {name!r}: holds no row")
    return kept
