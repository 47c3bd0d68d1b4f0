"""Hooks of mkdocs: README.md as the first page, a page of the API for each stage, links to sources as plain text.

GitHub shows README.md and docs/ as they stand, where a link may lead to any file of the repository; a site has the docs
alone.
"""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src/parity"
LINK = re.compile(r"\[([^\]]+)\]\(([^)#\s]+)(#[^)\s]*)?\)")


def list_modules(stage: Path) -> list[str]:
    """List the public modules of a stage by their dotted names; the package itself first."""
    files = [p for p in sorted(stage.rglob("*.py")) if not p.stem.startswith("_") or p.stem == "__init__"]
    files = [p for p in files if (p.parent / "__init__.py").exists()]
    names = [".".join(p.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__") for p in files]
    return sorted(names, key=lambda n: n.split("."))


def on_config(config: Any) -> Any:
    stages = [p.name for p in sorted(PACKAGE.iterdir()) if (p / "__init__.py").exists()]
    config.nav.append({"API": [{f"parity.{name}": f"api/{name}.md"} for name in stages]})
    return config


def on_files(files: Files, config: Any) -> Files:
    readme = (ROOT / "README.md").read_text(encoding="utf-8").replace("](docs/", "](")
    files.append(File.generated(config, "index.md", content=readme))
    for stage in sorted(p for p in PACKAGE.iterdir() if (p / "__init__.py").exists()):
        body = "\n\n".join(f"::: {name}" for name in list_modules(stage))
        files.append(File.generated(config, f"api/{stage.name}.md", content=f"# parity.{stage.name}\n\n{body}\n"))
    return files


def on_page_markdown(text: str, page: Any, config: Any, files: Files) -> str:
    """Link README to the first page; write a link to another file of the repository as its text and path."""

    def link_within(m: re.Match[str]) -> str:
        text, target, anchor = m[1], m[2], m[3] or ""
        if target.endswith("README.md"):
            return f"[{text}](index.md{anchor})"
        path = (ROOT / "docs" / page.file.src_uri).parent.joinpath(target).resolve()
        is_first = page.file.src_uri == "index.md" and (ROOT / target).exists()
        is_outside = is_first or not path.is_relative_to(ROOT / "docs")
        if "://" in target or not (is_outside or target.endswith(".py")):
            return m[0]
        path = path if path.exists() else ROOT / target
        return text if text.strip("`") == str(path.relative_to(ROOT)) else f"{text} (`{path.relative_to(ROOT)}`)"

    return LINK.sub(link_within, text)
