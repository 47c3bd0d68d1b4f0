"""What a page is made of: sections of blocks, and text as a reader sees it.

A string is a paragraph; the macro of its class in templates/blocks.html.j2 draws any other block. Blocks hold text,
never markup: Jinja escapes all of it."""

import base64
import gzip
import json
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from numbers import Number
from typing import Any, NamedTuple

import pandas as pd

LONGEST = 300  # a caption on the page is cut to this many characters


# --- how values are written as text


def list_records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(name): value for name, value in row.items()} for row in frame.to_dict("records")]


def is_missing(value: Any) -> bool:
    """Return whether a value is None, NaN, NaT or blank text."""
    if value is None or (isinstance(value, str) and not value.strip()):
        return True
    return bool(pd.api.types.is_scalar(value) and pd.isna(value))


def format_text(value: Any, absent: str = "") -> str:
    """Write a value as text; `absent` where there is none."""
    return absent if is_missing(value) else str(value)


def format_setting(value: Any) -> str:
    """Write a setting as text: true and none in lower case, a list of alternatives as "16 or 2 others"."""
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if isinstance(value, list):  # the paper's number is of one of these, it does not say which
        return f"{value[0]} or {len(value) - 1} others"
    return f"{value:g}" if isinstance(value, Number) else str(value)


def format_settings(values: Mapping[str, Any], joint: str = "=") -> str:
    """Write settings as text, "window=16, init=random" ("=" is `joint`), without the prefix "sampling."."""
    return ", ".join(f"{k.removeprefix('sampling.')}{joint}{format_setting(v)}" for k, v in values.items())


def escape_controls(text: str) -> str:
    r"""Replace characters that control a terminal or a browser (escape, null, direction marks) by text like \u001b."""
    return "".join(
        f"\\u{ord(c):04x}" if unicodedata.category(c) in ("Cc", "Cf", "Cs") and c not in "\n\t" else c for c in text
    )


def cut_caption(text: str) -> str:
    """Cut a caption to LONGEST characters, with control characters escaped."""
    return escape_controls(text if len(text) <= LONGEST else f"{text[:LONGEST]}... ({len(text):,} characters)")


# --- the blocks that a page is made of


class Words(NamedTuple):
    text: str
    form: str  # "heading", "code", "warning", or "empty": what this experiment lacks


class Entry(NamedTuple):
    """One place of a table: the figure, a smaller line beneath it, a CSS class, what hovering shows, a mark beside."""

    text: str
    detail: str = ""
    style: str = ""
    hint: str = ""
    mark: str = ""


class Table(NamedTuple):
    columns: list[tuple[str, str]]  # each column's heading, and what it means
    rows: list[list[Entry]]
    caption: str = ""
    marks: Sequence[str] = ()  # the CSS class of each row
    methods: Sequence[str] = ()  # each row's method, by which the page's filter hides rows
    style: str = ""  # the CSS class of the table


class Plot(NamedTuple):
    """A figure, and the data that it shows: figures/<name>.csv."""

    name: str
    title: str
    uri: str
    caption: str
    data: pd.DataFrame
    heading: str = ""  # a title above the figure


class Terms(NamedTuple):
    pairs: list[tuple[str, str]]  # pairs of a name and its value or text


class Links(NamedTuple):
    """Files beside the page, in one line."""

    pairs: list[tuple[str, str]]  # each text, and its address relative to the page; "" for text without a link


class Strip(NamedTuple):
    label: str
    uris: list[str]  # images side by side


class Gallery(NamedTuple):
    """A few images of each of several methods, side by side."""

    strips: list[tuple[str, str, list[str]]]  # each method's label, note and the URIs of its images
    captions: list[str]  # captions of the images, the same in each strip


class Grid(NamedTuple):
    """Rows of images under common headings, and the data by which the rows were chosen."""

    name: str
    headings: list[tuple[str, str]]  # each column's label and method
    rows: list[tuple[str, str, list[tuple[str, str, str]]]]  # caption, note, and of each image URI, label and note
    data: pd.DataFrame


class Packed(NamedTuple):
    """Data that the page's script shows in a view of its own, as compressed JSON; without scripts `instead` is read."""

    view: str  # "tests" or "images": the function of templates/page.js that shows it
    instead: str
    data: str  # base64 of gzip of JSON


def pack(view: str, instead: str, data: Any) -> Packed:
    """Compress data to a `Packed` block: the same data are the same bytes."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return Packed(view, instead, base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode())


class Details(NamedTuple):
    summary: str
    body: list[Any]  # blocks that open on request


class Sides(NamedTuple):
    columns: list[list[Any]]  # blocks side by side where the screen is wide


class Section:
    """A part of the page: `shows` says what it shows, a folded one opens on request, a `separate` one is
    `<id>.html`."""

    def __init__(self, id: str, title: str, shows: str, *body: Any, folded: bool = False, separate: bool = False):
        self.id, self.title, self.shows, self.body = id, title, shows, list(body)
        self.folded, self.separate = folded, separate


def walk_blocks(body: Sequence[Any]) -> Iterator[Any]:
    for block in body:
        yield block
        if isinstance(block, Details):
            yield from walk_blocks(block.body)
        elif isinstance(block, Sides):
            yield from (inner for column in block.columns for inner in walk_blocks(column))
