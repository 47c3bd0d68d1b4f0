"""The network of CMMD: a CLIP as `stand_ins.clip` writes it."""

from pathlib import Path

from parity.stand_ins import clip


def write(folder: Path) -> dict[str, str]:
    """{"clip_vision": a folder}."""
    return {"clip_vision": f"clip_vision/{clip.write(folder / 'clip_vision')['clip']}"}
