"""Models whose law is known, one module for each kind of decoder: what the exact layer draws from.

A module of this folder says of its kind

    targets(which="full")  its targets; `which` is "full" or "small" (the same where a kind has few)
    DRAWS                  of the Monte-Carlo null, where nothing else is asked for
    FAMILY                 what Holm's correction runs over: "targets", each test over all targets, where one test
                           decides; "all", the deciding tests of all targets together

and of each target what `Target` lists.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import numpy as np
import torch
from parity_certify.result_rows import Row

from parity.base.errors import ParityError

Decoder = Callable[..., Iterator[Any]]
CHUNK = 8192  # rows decoded at once: their tensors stay in the processor's cache


class Target(Protocol):
    """A model, and how decoders are run on it."""

    @property
    def name(self) -> str: ...

    @property
    def length(self) -> int:
        """Tokens of a sequence."""
        ...

    @property
    def law(self) -> Any:
        """Its exact law, in the form that its statistics read."""
        ...

    def draw(
        self, decoder: Decoder, n: int, seed: int, options: dict[str, Any], threads: int = 1, strict: bool = False
    ) -> Any:
        """n draws of a decoder, a function of the seed alone. ParityError that names row and place for one that is no
        token; with `strict`, for decoders that claim to be lossless, also for one of probability zero."""
        ...

    def rows_of(self, drawn: Any, layer: str, seed: int, draws: int) -> list[Row]:
        """What `draw` returned under a seed against the law: rows of its name."""
        ...


def in_chunks(name: str, codes: Callable[[range], np.ndarray], n: int, threads: int) -> np.ndarray:
    """Codes [n] of n decoded rows of the target `name`, by a function of a range of them whose errors get the name."""

    def chunk(first: int) -> np.ndarray:
        try:
            return codes(range(first, min(first + CHUNK, n)))
        except ParityError as error:
            raise ParityError(f"model {name}, {f'from {first} on: ' if first else ''}{error}") from error

    torch.set_num_threads(1)  # the tensors are small: whole chunks run side by side instead
    with ThreadPoolExecutor(threads) as pool:
        return np.concatenate(list(pool.map(chunk, range(0, n, CHUNK))))
