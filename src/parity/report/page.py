"""The page: a list of sections as one self-contained HTML file, and the data behind each of its figures.

Prompts and options are other people's text: everything reaches the page through Jinja's autoescape or as packed data
that its one script shows as text. The page's own policy (CSP) names that script by its digest, and forbids every other
script, markup made by scripts, and everything from elsewhere.
"""

import base64
import hashlib
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import pandas as pd
from markupsafe import Markup
from parity_certify.page import COLOURS

from parity.base.files import publish
from parity.experiment.stand_in import BANNER
from parity.report import shared_sections, summary_page
from parity.report.blocks import Grid, Plot, Section, visible, walk
from parity.report.collect import Gathered

FRONT = ("verdicts", "files")  # sections of the front page
TEMPLATES = Path(__file__).parent / "templates"


def environment() -> jinja2.Environment:
    """Load the templates beside this module. `draw(block)` is the macro of a block's class: what is in it is
    escaped."""
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=True, undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
        finalize=lambda value: visible(value) if type(value) is str else value,
    )  # fmt: skip

    def draw(block: Any) -> str:
        macros = templates.get_template("blocks.html.j2").module
        return getattr(macros, type(block).__name__.lower())(block)

    templates.globals |= {"draw": draw, "colours": COLOURS}
    return templates


def sections(gathered: Gathered) -> list[Section]:
    """List every section of an experiment, what decides first: verdicts, the figures it was made for, then each kind of
    model, and what is looked up last."""
    own = [section for kind in gathered.kinds for section in import_module(f"parity.report.{kind}").sections(gathered)]
    study, closing = shared_sections.study(gathered), shared_sections.closing(gathered)
    return [summary_page.verdicts(gathered), *study, *own, *closing, summary_page.files(gathered)]


class Group(NamedTuple):
    """An entry of the contents: sections whose titles begin alike, such as "Images: passes and time"."""

    title: str
    links: list[tuple[str, str]]  # address and title of each section


def contents_of(parts: list[Section], here: list[Section], elsewhere: str) -> list[Group]:
    """List the contents: of sections on this page their place, of others the file with them."""
    groups: dict[str, Group] = {}
    for section in parts:
        title, _, part = section.title.partition(": ")
        file = "" if section in here else f"{section.id}.html" if section.apart else elsewhere
        groups.setdefault(title, Group(title, [])).links.append((f"{file}#{section.id}", part.capitalize() or title))
    return list(groups.values())


def build(
    experiment: str, parts: list[Section], elsewhere: str = "", banner: str = "", only: Sequence[str] = ()
) -> tuple[str, dict[str, pd.DataFrame]]:
    """Build the page's HTML, and the data of each figure by name.

    elsewhere   the file with all sections but those apart, if this page has not all
    banner      shown above everything; marks every table and figure
    only        ids of the sections that this page has; all but those apart, if empty
    """
    blocks = walk([block for section in parts for block in section.body])
    data = {block.name: block.data for block in blocks if isinstance(block, Plot | Grid)}
    here = [section for section in parts if (section.id in only if only else not section.apart)]
    contents = contents_of(parts, here, elsewhere)
    names = [*summary_page.TABLES, *(f"figures/{name}.csv" for name in sorted(data))]
    script = (TEMPLATES / "page.js").read_text()
    digest = f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}"
    first = {group.links[0][0]: group.links for group in contents if len(group.links) > 1}
    context: dict[str, Any] = {"title": f"Parity: {experiment}", "sections": here, "contents": contents, "first": first}
    context |= {"files": names, "banner": banner, "script": Markup(script), "digest": digest}
    return environment().get_template("page.html.j2").render(context), data


def write(gathered: Gathered, page: Path) -> None:
    """Write the page, the front page `index.html` that leads to its parts, a file for each section apart, and
    `figures/<name>.csv` beside them, each file published whole."""
    parts, name = sections(gathered), gathered.settings.experiment
    banner = BANNER if gathered.settings.stand_in else ""
    html, data = build(name, parts, banner=banner)
    for figure, frame in data.items():
        publish(page.parent / "figures" / f"{figure}.csv", frame.to_csv(index=False).encode())
    fronts = {"index": FRONT} | {section.id: (section.id,) for section in parts if section.apart}
    for file, only in fronts.items():
        publish(page.with_name(f"{file}.html"), build(name, parts, page.name, banner, only)[0].encode())
    publish(page, html.encode())
