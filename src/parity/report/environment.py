"""Templates to pages."""

from pathlib import Path

import jinja2


def environment() -> jinja2.Environment:
    """The templates of a folder and those here, which they extend. What came from a user or a model reaches a page escaped."""
    loader = jinja2.FileSystemLoader(Path(__file__).parent / "templates")
    return jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
