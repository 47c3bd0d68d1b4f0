"""The page: a list of sections as one self-contained HTML file, and the data behind each of its figures.

Prompts and options are other people's text: everything reaches the page through Jinja's autoescape, and the page's own
policy (CSP) forbids scripts and everything from elsewhere.
"""

from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd

from parity.base.files import publish
from parity.report import common
from parity.report.blocks import Grid, Plot, Section, walk
from parity.report.collect import Gathered

TABLES = ("summary.csv", "equality.csv", "published.csv", "records.parquet")  # beside the page


def environment() -> jinja2.Environment:
    """The templates beside this module. `draw(block)` is the macro of a block's class: what is in it is escaped."""
    loader = jinja2.FileSystemLoader(Path(__file__).parent / "templates")
    templates = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )

    def draw(block: Any) -> str:
        macros = templates.get_template("blocks.html.j2").module
        return getattr(macros, type(block).__name__.lower())(block)

    templates.globals["draw"] = draw
    return templates


def sections(gathered: Gathered) -> list[Section]:
    """Every section of an experiment: what kinds of model share around what each has of its own."""
    leaves: list[Callable[[Gathered], Iterable[Section]]] = [
        import_module(f"parity.report.{kind}").sections for kind in gathered.kinds
    ]
    own = [section for leaf in leaves for section in leaf(gathered)]
    return [common.verdicts(gathered), common.study(gathered), *own, *common.closing(gathered)]


def build(experiment: str, parts: list[Section]) -> tuple[str, dict[str, pd.DataFrame]]:
    """The page's HTML, and the data of each figure by name. ValueError for two figures or sections of one name."""
    data: dict[str, pd.DataFrame] = {}
    for block in walk([b for section in parts for b in section.body]):
        if isinstance(block, Plot | Grid):
            if block.name in data:
                raise ValueError(f"two figures are called {block.name!r}")
            data[block.name] = block.data
    if len({section.id for section in parts}) < len(parts):
        raise ValueError(f"two sections of one id: {[section.id for section in parts]}")
    files = [*TABLES, *(f"figures/{name}.csv" for name in sorted(data))]
    context: dict[str, Any] = {"experiment": experiment, "sections": parts, "files": files}
    return environment().get_template("page.html.j2").render(context), data


def write(gathered: Gathered, page: Path) -> None:
    """The page, and beside it `figures/<name>.csv`, each file published whole."""
    html, data = build(gathered.settings.experiment, sections(gathered))
    for name, frame in data.items():
        publish(page.parent / "figures" / f"{name}.csv", frame.to_csv(index=False).encode())
    publish(page, html.encode())
