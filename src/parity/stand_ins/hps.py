"""A network in the place of HPSv2's: published as one pickle of ViT-H-14, which has no small form; so it is a folder of
open_clip's, which is read by the same code."""

from pathlib import Path

from parity.stand_ins import clip


def write(folder: Path) -> dict[str, str]:
    """{"hps": a folder}."""
    return {"hps": f"hps/{clip.write(folder / 'hps')['clip']}"}
