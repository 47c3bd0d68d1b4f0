"""The page of what `parity.gpu` found: docs/gpu.md."""

from typing import Any

# seconds an image that papers print, and on what (the seeds' tables)
PAPERS = """| paper | seconds an image |
|---|---|
| SJD, Lumina-mGPT 768, A100: plain / SJD | 87.23 / 42.73 |
| SJD, Lumina-mGPT 768, RTX 4090: plain / SJD | 100.69 / 47.52 |
| SJD, Anole 512, A100: plain / SJD with a spatial prior | 48.96 / 26.18 |
| SJD, Anole 512, RTX 4090: plain / SJD with a spatial prior | 48.24 / 25.12 |
"""


def table(rows: list[dict[str, Any]]) -> str:
    """A table of rows that have the same keys."""
    if not rows:
        return "none\n"
    names = list(rows[0])
    lines = [names, ["---"] * len(names), *([shown(row.get(name, "")) for name in names] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def shown(value: Any) -> str:
    if value is None:
        return "not known"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def page(found: dict[str, Any]) -> str:
    """Markdown of what the command wrote."""
    how, measured = found["how"], found["measured"]
    head = "# On a GPU\n\nWritten by `python -m parity.gpu --page docs/gpu.md`, "
    head += "on a machine with a GPU in at most 9 minutes.\n\n"
    if not measured:
        head += (
            "**Not measured**: no GPU was at hand. The command ran its small networks and options on a CPU, to show"
            " that it runs; there is nothing to compare tokens with, and the figures say nothing about any GPU.\n\n"
        )
    head += f"{how['device_name']}, torch {how['versions']['torch']}, {how['dtype']};"
    head += f" a copy reads and writes {found['bandwidth GB/s']:.0f} GB/s.\n"
    head += "No network of the sizes of Emu3 (fewer keys than queries) and xAR-H (its depth is not printed) is here.\n"
    if found["left out"]:
        head += f"Left out: {'; '.join(found['left out'])}.\n"
    parts = {
        "Tokens against the CPU's, float64, embedded model 8x8": table(found["tokens"]),
        "A forward, both guidance rows": table(found["forwards"]) if measured else "not measured\n",
        "Every decoder, batch 1": table(found["decoders"]) if measured else "not measured\n",
        "Continuous models and text, batch 1": table(found["others"]) if measured else "not measured\n",
        "What papers print": PAPERS,
    }
    return head + "".join(f"\n## {title}\n\n{body}" for title, body in parts.items())
