"""What was found in texts, by the digest of each text, kept from one run to the next."""

import atexit
import contextlib
from pathlib import Path
from typing import Any

from parity.base.files import read_json, write_result

Kept = dict[str, list[Any]]  # by the digest of a text; JSON


def remember(file: Path, known: Kept) -> None:
    """Read what earlier runs found into `known`, and write it back at the end: the parsing of a hundred files was half
    of a dry run's time. A file that is not whole, or cannot be written, costs that time again. What is found of a text
    in another way needs a file of another name."""
    with contextlib.suppress(OSError, ValueError, TypeError):
        known.update(read_json(file))
    before = len(known)

    def keep() -> None:
        if len(known) > before:
            with contextlib.suppress(OSError):
                write_result(file, known)

    atexit.register(keep)
