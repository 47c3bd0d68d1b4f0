"""Text files that a user brings: prompts, stories, results of benchmarks.

A ValueError says which line or row cannot be read, and what is allowed; the caller adds the file's name.
"""

import csv
import gzip
import io
import json
import re
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MOST = 200_000_000  # a text file of more bytes, unpacked, is not read
FORMATS = {".txt": "lines", ".tsv": "tsv", ".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl"}  # format by suffix
DELIMITERS = {"csv": ",", "tsv": "\t"}

QUOTING = {  # error messages quote how a field may hold the delimiter or a line end
    ",": 'a field that holds a comma or a line end stands in double quotes: "a red car, photorealistic, 4k"',
    "\t": "a tab ends a field, a line end a row; quotes are characters like others",
}


def describe_missing(path: Path) -> str:
    """Describe why a path leads to no file: a link, the path itself or a folder of it, leads nowhere, as git-annex's do
    before the content is there; or there is no such file."""
    for link in (path, *path.parents):
        if link.is_symlink() and not link.exists():
            return f"a link to {str(link.readlink())!r}, which is not there; get the file (git annex get {link})"
    return "no such file"


def read_text(path: Path) -> str:
    """Read a UTF-8 file, unpacked if its name ends in .gz, without its byte-order mark.

    Raises ValueError if it is missing, unreadable, longer than MOST bytes, or no UTF-8 text: UTF-16 without a mark is
    known by its NUL characters.
    """
    try:
        if path.exists() and not path.is_file():
            raise ValueError("no regular file; allowed: a file")
        with gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb") as stream:
            raw = stream.read(MOST + 1)
    except FileNotFoundError:
        raise ValueError(describe_missing(path)) from None
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"cannot be read ({getattr(error, 'strerror', None) or error})") from None
    if len(raw) > MOST:
        raise ValueError(f"more than {MOST} bytes, unpacked; allowed: at most that")
    if (nul := raw.find(0)) >= 0:
        raise ValueError(f"a NUL at byte {nul}, as in UTF-16; allowed: UTF-8 text")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start}; allowed: UTF-8 text") from None


def find_flaw(text: str) -> str:
    """Say which character of a text cannot be kept in files, and what is allowed; "" if there is none."""
    if "\0" in text:
        return "holds a NUL character; allowed: text without it"
    if half := re.search("[\ud800-\udfff]", text):
        return f"holds U+{ord(half[0]):04X}, half of a character; allowed: whole characters"
    return ""


def list_texts(value: Any) -> Iterator[str]:
    """Yield every text in a value of JSON, names of objects among them."""
    rest = [value]
    while rest:
        value = rest.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            rest += [*value, *value.values()]
        elif isinstance(value, list):
            rest += value


def find_suffix(name: str) -> str:
    """Find the suffix of a file's name that says its format: the last one before .gz, in lower case."""
    return Path(name.lower().removesuffix(".gz")).suffix


def read_rows(text: str, kind: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each row of a text in the format `kind` with its place ("row 3", "line 7"): of lines that are not blank
    {"text": line}, of a table or of JSON lines its values by column. Raises ValueError for a row in another format."""
    if kind in DELIMITERS:
        yield from ((f"row {k}", row) for k, row in enumerate(read_table(text, DELIMITERS[kind])[1], 1))
        return
    for number, line in enumerate(split_lines(text), 1):
        if line.strip():
            place = f"line {number}"
            yield place, {"text": line} if kind == "lines" else read_json_object(line, place)


def read_json_object(line: str, place: str) -> dict[str, Any]:
    """Read a line that holds a JSON object. Raises ValueError, which begins with `place`, for any other line, and for a
    character that cannot be kept (`find_flaw`)."""
    try:
        row = json.loads(line)
    except (json.JSONDecodeError, RecursionError) as error:
        problem = getattr(error, "msg", "nested too deep")
        raise ValueError(f"{place} is not JSON ({problem}); allowed: one object a line") from None
    if not isinstance(row, dict):
        raise ValueError(f"{place} is no JSON object; allowed: one object a line")
    for text in list_texts(row):
        if flaw := find_flaw(text):
            raise ValueError(f"{place}: {text[:40]!r} {flaw}")
    return row


def split_lines(text: str) -> list[str]:
    """Return the lines of a text, which end at a line feed, or at a carriage return and a line feed. No other character
    ends a line: U+2028, U+0085 or a form feed may stand in a sentence.

    Raises ValueError if a carriage return stands alone, which may be meant as either.
    """
    if single := re.search(r"\r(?!\n)", text):
        line = text.count("\n", 0, single.start()) + 1
        raise ValueError(f"line {line}: holds a carriage return; allowed: lines that end with LF, or CR and LF")
    return text.replace("\r\n", "\n").split("\n")


def read_tab_separated(text: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the line number, from 1, and the fields of every line of a tab-separated text that is not empty."""
    yield from ((number, line.split("\t")) for number, line in enumerate(split_lines(text), 1) if line)


def read_comma_separated(text: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the number of the first line, and the fields, of every row of a CSV text (RFC 4180) that is not empty.

    Raises ValueError if a quote is not closed, or a field goes on after its closing quote.
    """
    reader = csv.reader(io.StringIO(text, newline="\n"), strict=True)
    while True:
        number = reader.line_num + 1
        try:
            fields = next(reader, None)
        except csv.Error as error:
            problem = str(error).partition(" - ")[0]
            raise ValueError(f"line {number}: is not CSV ({problem}); allowed: {QUOTING[',']}") from None
        if fields is None:
            return
        if fields:
            yield number, fields


def read_table(text: str, delimiter: str) -> tuple[list[str], Iterator[dict[str, str]]]:
    r"""Return the columns of a CSV (`delimiter` ",") or tab-separated ("\t") text, which its first row names, and an
    iterator of the rows below it, each a value by column. Columns without a name, such as the index that pandas
    writes, are left out, and so is a line `sep=,` above the header, which Excel reads.

    Raises ValueError if two columns have one name; the iterator does if a row has more or fewer fields than the header.
    """
    lines = (read_tab_separated if delimiter == "\t" else read_comma_separated)(text)
    _, names = next(lines, (0, []))
    if names and names[0].lower().startswith("sep="):
        if delimiter.join(names) != f"{names[0][:4]}{delimiter}":
            raise ValueError(f"line 1: {names[0]!r}: fields end at another character; allowed: {delimiter!r}")
        _, names = next(lines, (0, []))
    if twice := [name for name, count in Counter(names).items() if name and count > 1]:
        raise ValueError(f"has two columns {twice[0][:40]!r}; allowed: one of a name")

    def rows() -> Iterator[dict[str, str]]:
        """Yield each row below the header as a value by column."""
        for row, (line, fields) in enumerate(lines, 1):
            if len(fields) != len(names):
                problem = f"row {row} (line {line}) has {len(fields)} fields, the header {len(names)}"
                raise ValueError(f"{problem}; allowed: as many. In this format {QUOTING[delimiter]}")
            yield {name: field for name, field in zip(names, fields, strict=True) if name}

    return names, rows()
