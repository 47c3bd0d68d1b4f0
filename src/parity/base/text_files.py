"""Lines and tables of text files that a user brings: prompts, stories, results of benchmarks.

A ValueError says which line or row cannot be read, and what is allowed; the caller adds the file's name.
"""

import csv
import io
import re
from collections import Counter
from collections.abc import Iterator

QUOTING = {  # error messages quote how a field may hold the delimiter or a line end
    ",": 'a field that holds a comma or a line end stands in double quotes: "a red car, photorealistic, 4k"',
    "\t": "a tab ends a field, a line end a row; quotes are characters like others",
}


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

    Raises ValueError if a quote is not closed, or a field goes on behind its closing quote.
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
    iterator of the rows below it, each a value by column.

    Raises ValueError if two columns have one name; the iterator does if a row has more or fewer fields than the header.
    """
    lines = (read_tab_separated if delimiter == "\t" else read_comma_separated)(text)
    _, names = next(lines, (0, []))
    if twice := [name for name, count in Counter(names).items() if name and count > 1]:
        raise ValueError(f"has two columns {twice[0][:40]!r}; allowed: one of a name")

    def rows() -> Iterator[dict[str, str]]:
        """Yield each row below the header as a value by column."""
        for row, (line, fields) in enumerate(lines, 1):
            if len(fields) != len(names):
                problem = f"row {row} (line {line}) has {len(fields)} fields, the header {len(names)}"
                raise ValueError(f"{problem}; allowed: as many. In this format {QUOTING[delimiter]}")
            yield dict(zip(names, fields, strict=True))

    return names, rows()
