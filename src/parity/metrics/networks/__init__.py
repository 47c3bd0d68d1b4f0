"""Networks that look at pictures: those of the embedded models, and published ones."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

T = TypeVar("T")


def batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Lists of `size`, the last one shorter; no more are made than are asked for."""
    every = iter(items)
    while some := list(islice(every, size)):
        yield some
