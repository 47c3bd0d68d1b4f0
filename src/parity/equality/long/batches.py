"""Small batches: whether a decoder does in a batch of 1, of 3 and of 32 what it does in a large one.

A row's numbers are its own (`parity.base.noise`), so a correct decoder gives it the same tokens in any batch; then the
tests of the large batch speak of small ones too. Where a token differs, more rows are decoded in batches of that size,
and their law is tested: only that decides.

The sizes are constants, not the run's own `batch`: a test here is shared by all experiments that use the decoder with
these options. The run's own batches are looked at on its own model (`parity.equality.alike`).
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from parity_certify import result_rows as R
from parity_certify.result_rows import Row

OWN = 32  # rows of a batch, as in the default run
SIZES = ((1, 2), (3, 1), (OWN, 1))  # rows of a batch, and how many batches
MORE = 96  # rows, where one differs


class Apart(NamedTuple):
    compared: int  # tokens
    size: int  # of the batches in which a token differed; 0 if none did
    rows: np.ndarray  # [m] decoded again, in batches of that size: in such a batch alone their law is tested
    share: float  # of the compared tokens that differ


def compare_batches(decode: Callable[[np.ndarray], np.ndarray], whole: np.ndarray) -> tuple[Apart, np.ndarray | None]:
    """decode(rows [b]) -> their tokens [b, L, ...] in a batch of their own; `whole` [n, L, ...] in the large one. With
    a difference, the tokens of rows decoded in small batches too."""
    first, compared, differ = 0, 0, 0
    for size, count in SIZES:
        for _ in range(count):
            rows = np.arange(first, first + size)
            first += size
            off = np.abs(decode(rows) - whole[rows]) > 1e-6
            compared += off.size
            differ += int(off.sum())
        if differ:
            rows = np.arange(min(MORE, len(whole)) // size * size)
            again = [decode(some) for some in np.split(rows, len(rows) // size)]
            return Apart(compared, size, rows, differ / compared), np.concatenate(again)
    return Apart(compared, 0, np.arange(0), 0.0), None


def batch_row(layer: str, found: Apart, tested: Sequence[Row], **place: object) -> Row:
    """The row of the test: of the small batches' own tests, where there had to be some, the smallest p times their
    number. The effect is the share of tokens that differ."""
    least = 1 - (1 - R.POWER) ** (1 / max(found.compared, 1))
    values = {"effect": found.share, "minimum_detectable_effect": least, **place}
    sizes = ", ".join(str(size) for size, _ in SIZES)
    if not found.size:
        note = f"the same tokens in batches of {sizes}"
        return R.row(layer, "batches", found.compared, p_value=1.0, note=note, **values)
    run = [r for r in tested if r["p_value"] is not None]
    best = min(run, key=lambda r: r["p_value"])
    note = f"in batches of {found.size}: {best['test']}" + (f", {best['note']}" if best["note"] else "")
    p = min(1.0, len(run) * best["p_value"])
    return R.row(layer, "batches", best["n"], p_value=p, statistic=best["statistic"], note=note, **values)
