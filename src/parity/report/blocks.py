"""What a page is made of: sections of blocks. A string is a paragraph; any other block is drawn by the macro of its
class in templates/blocks.html.j2. Blocks hold text, never markup: Jinja escapes all of it."""

import base64
import gzip
import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pandas as pd

from parity.report.format import Entry


class Words(NamedTuple):
    text: str
    form: str  # "heading", "code", "warning", or "empty": what this experiment has not is said, never left out


class Table(NamedTuple):
    columns: list[tuple[str, str]]  # heading, and what it means
    rows: list[list[Entry]]
    caption: str = ""
    marks: Sequence[str] = ()  # CSS class of each row
    methods: Sequence[str] = ()  # of each row: what the page's choice of methods hides it by
    style: str = ""  # CSS class of the table


class Plot(NamedTuple):
    """A figure, and the data that it shows: figures/<name>.csv."""

    name: str
    title: str
    uri: str
    caption: str
    data: pd.DataFrame
    heading: str = ""  # a title above it


class Terms(NamedTuple):
    pairs: list[tuple[str, str]]  # names with their values or texts


class Strip(NamedTuple):
    label: str
    uris: list[str]  # pictures side by side


class Grid(NamedTuple):
    """Rows of pictures under common headings, and the data that chose the rows."""

    name: str
    headings: list[tuple[str, str]]  # label and method of each column
    rows: list[tuple[str, str, list[tuple[str, str, str]]]]  # caption, note, and of each picture URI, label and note
    data: pd.DataFrame


class Packed(NamedTuple):
    """Data that the page's script shows in a view of its own, as compressed JSON; without scripts `instead` is read."""

    view: str  # "tests" or "pictures": the function of templates/page.js
    instead: str
    data: str  # base64 of gzip of JSON


def packed(view: str, instead: str, data: Any) -> Packed:
    """The same data are the same bytes."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return Packed(view, instead, base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode())


class Details(NamedTuple):
    summary: str
    body: list[Any]  # blocks that open on request


class Sides(NamedTuple):
    parts: list[list[Any]]  # blocks side by side where the screen is wide


class Section:
    """A part of the page with a place in its contents: Section(id, title, block, ...)."""

    def __init__(self, id: str, title: str, *body: Any):
        self.id, self.title, self.body = id, title, list(body)


def walk(body: Sequence[Any]) -> Iterator[Any]:
    """Blocks, and those inside them, in the order of the page."""
    for block in body:
        yield block
        inner = [block.body] if isinstance(block, Details) else block.parts if isinstance(block, Sides) else []
        yield from (b for part in inner for b in walk(part))
