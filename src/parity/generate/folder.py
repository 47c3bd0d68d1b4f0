"""A folder of images that a stopped command goes on with: which are there, and what they were made with."""

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from parity.base.errors import ParityError
from parity.base.files import replace_whole

KEY, PROMPT = "parity", "prompt"  # keys of an image's metadata


def read_facts(file: Path) -> dict[str, Any]:
    """Read how an image was made from its metadata, its prompt as "prompt". Raises ParityError for a file that is no
    image of `parity generate`."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(file) as image:
            facts = json.loads(image.info[KEY])
            return {**facts, "prompt": image.info[PROMPT]}
    except (UnidentifiedImageError, OSError, KeyError, ValueError, TypeError):
        raise ParityError(f"{file}: not an image of `parity generate`; allowed: another folder as --out") from None


def save_image(image: Any, file: Path, facts: Mapping[str, Any], prompt: str) -> None:
    """Save an image as PNG, whole or not at all, with the facts of how it was made and its prompt in its metadata."""
    with replace_whole(file) as temporary:
        temporary.write_bytes(make_png(image, facts, prompt))


def make_png(image: Any, facts: Mapping[str, Any], prompt: str) -> bytes:
    """Make the bytes of a PNG, with the facts of how the image was made and its prompt in its metadata."""
    from PIL.PngImagePlugin import PngInfo

    info = PngInfo()
    info.add_text(KEY, json.dumps(facts))
    info.add_itxt(PROMPT, prompt)
    memory = io.BytesIO()
    image.save(memory, format="PNG", pnginfo=info)
    return memory.getvalue()


def find_done(files: Sequence[Path], facts: Mapping[str, Any], prompts: Sequence[str]) -> dict[int, int]:
    """Find which of the images that are asked for are there: their places among `files`, and the passes of each.

    facts    what all of them are made with (`Made.facts`)
    prompts  of each file

    Raises ParityError for a file that was made with something else, or of another prompt: one folder holds one set.
    """
    done = {}
    wanted = json.loads(json.dumps(facts))
    for number, (file, prompt) in enumerate(zip(files, prompts, strict=True)):
        if not file.exists():
            continue
        found = read_facts(file)
        for name, value in {**wanted, "prompt": prompt}.items():
            if found.get(name) != value:
                problem = f"was made with {name} {found.get(name)!r:.80}, not {value!r:.80}"
                raise ParityError(f"{file}: {problem}; allowed: another folder as --out, or to delete these images")
        done[number] = int(found["passes"])
    return done
