"""What a page is made of: sections of blocks, and numbers and words as a reader sees them.

A string is a paragraph; any other block is drawn by the macro of its class in templates/blocks.html.j2. Blocks hold
text, never markup: Jinja escapes all of it. Figures are never blank, never p = 0.00, with as many digits as the error
warrants.
"""

import base64
import gzip
import json
import math
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from numbers import Number
from typing import Any, NamedTuple

import pandas as pd
from parity_certify.verdict import WITHIN

from parity.metrics.estimates import Estimate

NOT_RUN = "not run"
SMALLEST_P = 1e-300  # where p-values from formulas are cut: smaller ones are shown as a bound
SPACE = "\N{NO-BREAK SPACE}"
NOUGHT = 1e-9  # no error: what rounding leaves where all figures are the same


KINDS = {"certified": "good", "consistent": "plain", "lossy": "bad", "inconclusive": "unsure"}  # of verdicts
OUTCOMES = {  # of tests
    NOT_RUN: "none", "identical": "good", WITHIN: "good", "rejected": "bad", "differs by rounding": "bad",
    "differs by more than eps": "bad", "size off": "bad", "size unclear": "unsure", "interval excludes 0": "unsure",
}  # fmt: skip


class Entry(NamedTuple):
    """One place of a table: the figure, a smaller line beneath it, a CSS class, and where the figure leads."""

    text: str
    detail: str = ""
    style: str = ""
    link: str = ""


ABSENT = Entry(NOT_RUN, style="none")


def missing(value: Any) -> bool:
    """None, NaN, NaT or empty text."""
    if value is None or (isinstance(value, str) and not value.strip()):
        return True
    return bool(pd.api.types.is_scalar(value) and pd.isna(value))


LONGEST = 300  # characters of a caption on the page


def visible(text: str) -> str:
    """Text in which characters that control a terminal or a browser (escape, null, direction marks) are shown as
    \\u001b and not passed on."""
    return "".join(
        f"\\u{ord(c):04x}" if unicodedata.category(c) in ("Cc", "Cf", "Cs") and c not in "\n\t" else c for c in text
    )


def excerpt(text: str) -> str:
    """The beginning of a caption, visible."""
    return visible(text if len(text) <= LONGEST else f"{text[:LONGEST]}... ({len(text):,} characters)")


def words(value: Any, absent: str = "") -> str:
    """A value as text; `absent` where there is none."""
    return absent if missing(value) else str(value)


def number(value: Any, digits: int = 4) -> str:
    """A figure without an error: `digits` significant ones, whole numbers in full."""
    if missing(value):
        return NOT_RUN
    if isinstance(value, bool | str):
        return str(value)
    if math.isinf(value):
        return "infinite" if value > 0 else "-infinite"
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}"
    if abs(value) < 1e-3 or abs(value) >= 1e6:
        return f"{value:.{digits - 1}e}"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{decimals}f}"


def p_value(value: Any) -> str:
    """Two significant digits; a value too small to represent is shown as a bound."""
    if missing(value):
        return NOT_RUN
    if value <= SMALLEST_P:
        return f"< {SMALLEST_P:.0e}"
    return f"{value:.1e}" if value < 1e-3 else f"{value:.2g}" if value < 0.1 else f"{value:.2f}"


def decimals_for(error: float) -> int:
    """Decimals that show two significant digits of an error."""
    return min(8, max(0, 1 - math.floor(math.log10(error))))


def estimated(figure: Estimate) -> Entry:
    """A figure, and its interval or else its standard error beneath."""
    value, error, low, high, _ = figure
    if missing(value):
        return ABSENT
    if low is not None and high is not None and not missing(low) and not missing(high):
        decimals = decimals_for((high - low) / 4) if high > low else 2
        return Entry(f"{value:,.{decimals}f}", f"{low:,.{decimals}f} to {high:,.{decimals}f}")
    if error is None or missing(error) or not 0 <= error < math.inf:
        return Entry(number(value))
    if error < NOUGHT:
        return Entry(number(value), f"±{SPACE}0")
    decimals = decimals_for(error)
    return Entry(f"{value:,.{decimals}f}", f"±{SPACE}{error:,.{decimals}f}")


def grey(entry: Entry) -> Entry:
    """A figure that says nothing (`report.collect.too_few`); above its table stands why."""
    return entry._replace(style="few")


def plain(value: Any, digits: int = 4) -> Entry:
    return ABSENT if missing(value) else Entry(number(value, digits))


def percent(share: Estimate) -> Entry:
    """A share, with its standard error beneath."""
    if missing(share.value):
        return ABSENT
    text = f"{100 * share.value:.{0 if share.value >= 0.1 or share.value == 0 else 1}f}%"
    return Entry(text, "" if share.error is None else f"±{SPACE}{100 * share.error:.0f}%")


def times(value: Any) -> Entry:
    """A ratio, as "1.25×"."""
    return ABSENT if missing(value) else Entry(f"{value:.2f}×")


def bound(value: Any) -> Entry:
    """An upper bound to two significant digits, rounded up: it must still hold as shown."""
    if missing(value) or value <= 0:
        return plain(value)
    decimals = decimals_for(value)
    return Entry(f"{math.ceil(round(value * 10**decimals, 6)) / 10**decimals:.{decimals}f}")


def written(value: Any) -> str:
    """A setting as text."""
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if isinstance(value, list):  # a paper that does not say which
        return f"{value[0]} or {len(value) - 1} others"
    return f"{value:g}" if isinstance(value, Number) else str(value)


def pairs(values: dict[str, Any], joint: str = "=") -> str:
    """Settings as text: "window=16, init=random"."""
    return ", ".join(f"{k.removeprefix('sampling.')}{joint}{written(v)}" for k, v in values.items())


def pill(row: Mapping[str, Any], *more: str) -> Entry:
    """A judged row's verdict in a few words, beneath it its note and the columns in `more`."""
    detail = "; ".join(filter(None, (words(row.get(name)) for name in ("note", *more))))
    value = row.get("value")
    style = "none" if missing(value) else KINDS[value.kind]  # type: ignore[union-attr]
    return Entry(words(row.get("pill"), NOT_RUN), detail, f"chip {style}")


def chip(outcome: Any, note: Any = "") -> Entry:
    """What a test came to (`parity_certify.result_rows`) as a coloured label; a figure, such as a bound, is plain."""
    text = words(outcome, NOT_RUN)
    return Entry(text, words(note), f"chip {OUTCOMES.get(text, 'plain')}")


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


class Gallery(NamedTuple):
    """A few pictures of each of some methods, side by side."""

    parts: list[tuple[str, str, list[str]]]  # label, note, URIs
    captions: list[str]  # of the pictures, the same for each part


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
