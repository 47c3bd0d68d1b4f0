"""The page: a list of sections as one self-contained HTML file, and the data behind each of its figures.

Prompts and options are other people's text: everything reaches the page through Jinja's autoescape or as packed data
that its one script shows as text. The page's own policy (CSP) names that script by its digest, and forbids every other
script, markup made by scripts, and everything from elsewhere.
"""

import base64
import hashlib
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import pandas as pd
from markupsafe import Markup

from parity.base.files import publish
from parity.experiment.stand_in import BANNER
from parity.report import shared_sections, summary_page
from parity.report.blocks import Grid, Plot, Section, visible, walk
from parity.report.collect import Gathered

FRONT = ("verdicts", "files")  # sections of the front page
TEMPLATES = Path(__file__).parent / "templates"


class Script(NamedTuple):
    text: Markup
    digest: str  # as a policy names it


def script() -> Script:
    """The page's one script. ValueError if its text would end the element that holds it."""
    text = (TEMPLATES / "page.js").read_text()
    if "</script" in text.lower() or "<!--" in text:
        raise ValueError("page.js: '</script' or '<!--' in it")
    return Script(Markup(text), "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode())


def environment() -> jinja2.Environment:
    """The templates beside this module. `draw(block)` is the macro of a block's class: what is in it is escaped."""
    loader = jinja2.FileSystemLoader(TEMPLATES)
    templates = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        finalize=lambda value: visible(value) if type(value) is str else value,
    )  # fmt: skip

    def draw(block: Any) -> str:
        macros = templates.get_template("blocks.html.j2").module
        return getattr(macros, type(block).__name__.lower())(block)

    templates.globals["draw"] = draw
    return templates


def sections(gathered: Gathered) -> list[Section]:
    """Every section of an experiment, what decides first: verdicts, the figures it was made for, then each kind of
    model, and what is looked up last."""
    leaves: list[Callable[[Gathered], Iterable[Section]]] = [
        import_module(f"parity.report.{kind}").sections for kind in gathered.kinds
    ]
    own = [section for leaf in leaves for section in leaf(gathered)]
    return [
        summary_page.verdicts(gathered),
        *shared_sections.study(gathered),
        *own,
        *shared_sections.closing(gathered),
        summary_page.files(gathered),
    ]


def figure_data(parts: list[Section]) -> dict[str, pd.DataFrame]:
    """The data of each figure by name. ValueError for two figures or sections of one name."""
    data: dict[str, pd.DataFrame] = {}
    for block in walk([b for section in parts for b in section.body]):
        if isinstance(block, Plot | Grid):
            if block.name in data:
                raise ValueError(f"two figures are called {block.name!r}")
            data[block.name] = block.data
    if len({section.id for section in parts}) < len(parts):
        raise ValueError(f"two sections of one id: {[section.id for section in parts]}")
    return data


def build(
    experiment: str, parts: list[Section], elsewhere: str = "", banner: str = ""
) -> tuple[str, dict[str, pd.DataFrame]]:
    """The page's HTML, and the data of each figure by name.

    elsewhere   the file with all sections, if this page is the front page
    banner      shown above everything; marks every table and figure
    """
    data = figure_data(parts)
    here = [section for section in parts if not elsewhere or section.id in FRONT]
    contents = [(f"{'' if section in here else elsewhere}#{section.id}", section.title) for section in parts]
    names = [*summary_page.TABLES, *(f"figures/{name}.csv" for name in sorted(data))]
    context: dict[str, Any] = {"title": f"Parity: {experiment}", "sections": here, "files": names, "script": script()}
    context["banner"] = banner
    return environment().get_template("page.html.j2").render(context | {"contents": contents}), data


def write(gathered: Gathered, page: Path) -> None:
    """The page, the front page `index.html` that leads to its parts, and `figures/<name>.csv` beside them, each file
    published whole."""
    parts, name = sections(gathered), gathered.settings.experiment
    banner = BANNER if gathered.settings.stand_in else ""
    html, data = build(name, parts, banner=banner)
    for figure, frame in data.items():
        publish(page.parent / "figures" / f"{figure}.csv", frame.to_csv(index=False).encode())
    publish(page.parent / "index.html", build(name, parts, page.name, banner)[0].encode())
    publish(page, html.encode())
