"""Text data from files: plain text, CSV, TSV, JSON lines (also gzipped), or a data set of the library `datasets`.

    read_rows("stories.csv", ("sentence1", ...), 100) -> the first 100 rows as dicts with these columns

A path `datasets:NAME:SPLIT` (or NAME/CONFIG:SPLIT for a configuration) reads from the Hugging Face library, if it is
installed. A ConfigError names file and place, and what is allowed. The rules check files while they are parsed, so this
imports no torch.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from parity.base import text_files
from parity.base.errors import ConfigError
from parity.embedded import stories

COLUMNS: dict[str, tuple[str, ...]] = {  # a task reads these columns of its data; "a|b" is one that has either name
    "infilling": ("text",),
    "stories": (*(f"sentence{k}|InputSentence{k}" for k in range(1, 5)), "sentence5|AnswerRightEnding"),
    "code": ("prompt", "suffix", "canonical_solution", "test", "entry_point"),
    "last_word": ("text",),
    "choice": ("ctx", "endings", "label"),
}
FORMATS = {**text_files.FORMATS, ".json": "jsonl"}
SENTENCES = tuple(f"sentence{k}" for k in range(1, 6))
KNOWN = set(stories.list_words())  # the embedded model has no other words
READ = ("text", *SENTENCES, "prompt", "suffix", "canonical_solution", "ctx", "endings")  # models read these columns


def check(task_kind: str, settings: dict[str, Any], embedded: bool = False) -> None:
    """Raise ConfigError if the data file of a text task cannot be read, or one of its rows cannot be used; a data set
    of the library is checked when it is loaded.

    settings  as configured: "data", the file ("" for embedded texts), and "rows", how many to read
    embedded  whether the embedded model reads it, which knows few words
    """
    name = settings["data"]
    limit = settings["rows"] if task_kind != "infilling" else 10**7
    if not name or name.startswith("datasets:"):
        return
    for number, row in enumerate(read_rows(name, COLUMNS[task_kind], limit), 1):
        label = f"data = {name!r}: row {number}"
        if task_kind == "last_word" and len(row["text"].split()) < 2:
            raise ConfigError(f"{label}: text = {row['text'][:40]!r}: a single word; allowed: two words or more")
        values = [value for column, value in row.items() if column in READ]
        texts = [text for value in values for text in (value if isinstance(value, list) else [value])]
        unknown = next((word for text in texts for word in text.split() if word not in KNOWN), None)
        if embedded and unknown is not None:
            problem = f"the embedded model does not know {unknown[:40]!r}"
            raise ConfigError(f"{label}: {problem}; allowed: its words, or a model of your own in `models`")


def describe_unread(task_kind: str, settings: dict[str, Any]) -> list[str]:
    """Say in a line how many rows of its data file a task leaves out, [] for none. Infilling reads tokens, not rows."""
    name, limit = settings["data"], settings["rows"]
    if not name or name.startswith("datasets:") or task_kind == "infilling":
        return []
    number = sum(1 for _ in read_file_rows(name))
    used = f"{limit:,} of the {number:,} rows of {name} are used; text.tasks.{task_kind}: rows takes more"
    return [used] if number > limit else []


def find_flaw(row: dict[str, Any]) -> str:
    """Return in words what is wrong with the values of a row, by column; "" if nothing is."""
    for column, value in row.items():
        if column == "endings":
            texts = value if isinstance(value, list) else []
            if len(texts) < 2 or not all(isinstance(v, str) and v.strip() for v in texts):
                return f"endings = {str(value)[:40]!r}; allowed: a list of two texts or more"
        elif column == "label":
            if str(value) not in map(str, range(n := len(row["endings"]))):
                return f"label = {str(value)[:40]!r}; allowed: 0 to {n - 1}, the number of the right ending"
        elif not isinstance(value, str):
            return f"{column} = {str(value)[:40]}; allowed: text"
        elif not value.strip() and column not in ("text", "prompt", "suffix"):
            return f"{column} is empty; allowed: text"
    if "prompt" in row and not (row["prompt"] + row["suffix"]).strip():
        return "prompt and suffix are empty; allowed: text in one of them"
    return ""


def read_file_rows(name: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a data file, columns to values, in the format that its suffix says, before .gz. Raises
    ConfigError for a file of another suffix, or not in this format."""
    kind = FORMATS.get(text_files.find_suffix(name))
    try:
        if kind is None:
            raise ValueError(f"unknown suffix; allowed: {', '.join(FORMATS)}, perhaps with .gz after it")
        yield from (row for _, row in text_files.read_rows(text_files.read_text(Path(name)), kind))
    except ValueError as error:
        raise ConfigError(f"data = {name!r}: {error}") from None


def read_texts(name: str, keep_blank: bool) -> list[str]:
    """Read the texts of a file or data set, of plain text the lines, if `keep_blank` the blank ones, too, as data sets
    of lines have them. Raises ConfigError as `read_rows` does."""
    texts = [row["text"] for row in read_rows(name, COLUMNS["infilling"], 10**7)]
    is_plain = not name.startswith("datasets:") and FORMATS.get(text_files.find_suffix(name)) == "lines"
    if not (keep_blank and is_plain):
        return texts
    *lines, rest = text_files.split_lines(text_files.read_text(Path(name)))
    return [*lines, rest] if rest else lines  # nothing follows the end of the last line


def read_hub_rows(name: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of the data set `datasets:NAME[/CONFIG]:SPLIT`, by default "test", which the library `datasets`
    loads or downloads. Raises ConfigError if the library is not installed."""
    try:
        import datasets
    except ImportError:
        problem = "the package `datasets` is not installed; allowed: a file, or install it"
        raise ConfigError(f"data = {name!r}: {problem}") from None
    path, split = [*name.split(":")[1:], "test"][:2]
    owner, data, config = [*path.split("/"), None, None][:3]
    yield from datasets.load_dataset(f"{owner}/{data}" if data else owner, config, split=split)


def read_rows(name: str, columns: Sequence[str], limit: int) -> list[dict[str, Any]]:
    """Read the first `limit` rows of a file or data set, each with `columns` only; "a|b" is a column with one of two
    names, and is returned as "a". Raises ConfigError for a missing column, a value that cannot be used, or no rows."""
    source = read_hub_rows(name) if name.startswith("datasets:") else read_file_rows(name)
    result = []
    for number, row in enumerate(islice(source, limit), 1):
        values = {}
        for column in columns:
            present = [name for name in column.split("|") if row.get(name) is not None]
            if not present:
                missing = column.replace("|", " or ")
                columns_found = ", ".join(map(str, row)) or "none"
                raise ConfigError(f"data = {name!r}: row {number} has no {missing}; its columns: {columns_found}")
            values[column.split("|")[0]] = row[present[0]]
        if problem := find_flaw(values):
            raise ConfigError(f"data = {name!r}: row {number}: {problem}")
        result.append(values)
    if not result:
        raise ConfigError(f"data = {name!r}: holds no row")
    return result
