"""The page: a list of sections as one self-contained HTML file, and the data after each of its figures.

Prompts and options are other people's text: everything reaches the page through Jinja's autoescape or as packed data
that its one script shows as text. The page's own policy (CSP) names that script by its digest, and forbids every other
script, markup made by scripts, and everything from elsewhere."""

import base64
import hashlib
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
from markupsafe import Markup
from parity_certify.page import COLOURS

from parity.base.files import publish
from parity.experiment.stand_in import BANNER
from parity.report import anysubset, shared_sections, summary_page
from parity.report.blocks import Grid, Plot, Section, escape_controls, walk_blocks
from parity.report.collect import Gathered

FRONT = ("verdicts", "files")  # the sections of the front page, index.html
TEMPLATES = Path(__file__).parent / "templates"


def load_templates() -> jinja2.Environment:
    """Load the Jinja templates. They escape all text, make control characters visible, and have the global
    `draw(block)`."""
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=True, undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
        finalize=lambda value: escape_controls(value) if type(value) is str else value,
    )  # fmt: skip

    def draw(block: Any) -> str:
        """Draw a block as HTML by the macro of its class's name."""
        macros = templates.get_template("blocks.html.j2").module
        return getattr(macros, type(block).__name__.lower())(block)

    templates.globals |= {"draw": draw, "colours": COLOURS}
    return templates


def list_sections(gathered: Gathered) -> list[Section]:
    sections = [summary_page.make_verdicts_section(gathered), *shared_sections.make_study_sections(gathered)]
    for kind in gathered.kinds:
        sections += import_module(f"parity.report.{kind}").make_sections(gathered)
    sections += anysubset.make_accuracy_sections(gathered)
    return [
        *sections, shared_sections.make_published_section(gathered), shared_sections.make_equality_section(gathered),
        *shared_sections.make_observations_sections(gathered), shared_sections.make_environment_section(gathered),
        summary_page.make_files_section(gathered),
    ]  # fmt: skip


def list_contents(sections: list[Section], on_page: list[Section], elsewhere: str) -> dict[str, list[tuple[str, str]]]:
    """List the contents: by the beginning of sections' titles, such as "Images", each one's address and title. A
    section that is neither on the page nor separate is in the file `elsewhere`."""
    contents: dict[str, list[tuple[str, str]]] = {}
    for section in sections:
        title, _, subtitle = section.title.partition(": ")
        file = "" if section in on_page else f"{section.id}.html" if section.separate else elsewhere
        contents.setdefault(title, []).append((f"{file}#{section.id}", subtitle.capitalize() or title))
    return contents


def build_page(
    experiment: str, sections: list[Section], elsewhere: str = "", banner: str = "", only: Sequence[str] = (),
    tables: Sequence[str] = summary_page.TABLES,
) -> tuple[str, dict[str, pd.DataFrame]]:  # fmt: skip
    """Build the HTML of a page with some of the sections, and the data of the figures of all sections, by figure name.

    elsewhere   the file with all sections but the separate ones, if this page has not all
    banner      shown above everything; marks every table and figure
    only        ids of the sections that this page has; all but the separate ones, if empty
    tables      files beside the page that its footer names
    """
    blocks = walk_blocks([block for section in sections for block in section.body])
    data = {block.name: block.data for block in blocks if isinstance(block, Plot | Grid)}
    on_page = [section for section in sections if (section.id in only if only else not section.separate)]
    contents = list_contents(sections, on_page, elsewhere)
    names = [*tables, *(f"figures/{name}.csv" for name in sorted(data))]
    script = (TEMPLATES / "page.js").read_text()
    digest = f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}"
    first = {links[0][0]: links for links in contents.values() if len(links) > 1}
    html = load_templates().get_template("page.html.j2").render(
        title=f"Parity: {experiment}", sections=on_page, contents=contents, first=first, files=names, banner=banner,
        script=Markup(script), digest=digest,
    )  # fmt: skip
    return html, data


def write_page(gathered: Gathered, page: Path) -> None:
    """Write the report to the file `page`, beside it the front page `index.html`, a file for each separate section, and
    the data of each figure."""
    sections = list_sections(gathered)
    name = gathered.settings.experiment
    banner = BANNER if gathered.settings.stand_in else ""
    html, data = build_page(name, sections, banner=banner)
    for figure, frame in data.items():
        publish(page.parent / "figures" / f"{figure}.csv", frame.to_csv(index=False).encode())
    fronts = {"index": FRONT} | {section.id: (section.id,) for section in sections if section.separate}
    for file, only in fronts.items():
        publish(page.with_name(f"{file}.html"), build_page(name, sections, page.name, banner, only)[0].encode())
    publish(page, html.encode())
