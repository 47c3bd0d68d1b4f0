"""The page: a list of sections as one self-contained HTML file, and the data behind each of its figures.

Prompts and options are other people's text: everything reaches the page through Jinja's autoescape or as packed data
that its one script shows as text. The page's own policy (CSP) names that script by its digest, and forbids every other
script, markup made by scripts, and everything from elsewhere.
"""

import base64
import hashlib
from importlib import import_module
from pathlib import Path
from typing import Any

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
    """The templates beside this module. `draw(block)` is the macro of a block's class: what is in it is escaped."""
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
    """Every section of an experiment, what decides first: verdicts, the figures it was made for, then each kind of
    model, and what is looked up last."""
    own = [section for kind in gathered.kinds for section in import_module(f"parity.report.{kind}").sections(gathered)]
    study, closing = shared_sections.study(gathered), shared_sections.closing(gathered)
    return [summary_page.verdicts(gathered), *study, *own, *closing, summary_page.files(gathered)]


def build(
    experiment: str, parts: list[Section], elsewhere: str = "", banner: str = ""
) -> tuple[str, dict[str, pd.DataFrame]]:
    """The page's HTML, and the data of each figure by name.

    elsewhere   the file with all sections, if this page is the front page
    banner      shown above everything; marks every table and figure
    """
    blocks = walk([block for section in parts for block in section.body])
    data = {block.name: block.data for block in blocks if isinstance(block, Plot | Grid)}
    here = [section for section in parts if not elsewhere or section.id in FRONT]
    contents = [(f"{'' if section in here else elsewhere}#{section.id}", section.title) for section in parts]
    names = [*summary_page.TABLES, *(f"figures/{name}.csv" for name in sorted(data))]
    script = (TEMPLATES / "page.js").read_text()
    digest = f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}"
    context: dict[str, Any] = {"title": f"Parity: {experiment}", "sections": here, "contents": contents}
    context |= {"files": names, "banner": banner, "script": Markup(script), "digest": digest}
    return environment().get_template("page.html.j2").render(context), data


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
