"""Reuse of noise: the numbers that a decoder reads, recorded and compared.

A number belongs to one row and one place in it. A decoder may read it again in a later pass at the same place (coupled
decoders do); in another row, or at another place, it makes draws dependent. Shared numbers are found with certainty,
whatever the size of the sample; a decoder that makes numbers of its own is left to the statistical tests.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from parity_certify import result_rows as R
from parity_certify.result_rows import Row
from torch import Tensor

from parity.base.noise import Noise
from parity.equality.targets import Decoder


class Recorder:
    """The numbers drawn by one batch of rows, and the tokens that each pass made final.

    columns  whether numbers are read by place, in the order of a pass's places
    padded   whether numbers are read behind a row's end too
    """

    def __init__(self, rows: int, columns: bool = True, padded: bool = False):
        self.columns, self.padded = columns, padded
        self.first = torch.zeros(rows, dtype=torch.int64)  # tokens that are final
        self.ended = torch.zeros(rows, dtype=torch.int64)  # the last pass that made one final
        self.widths: list[int] = []  # places that each pass looked at
        self.values: list[np.ndarray] = []
        self.labels: list[np.ndarray] = []  # [3, n]: row, first place, pass

    def add(self, rows: Tensor, values: Tensor) -> None:
        """values [B, ...] of rows [B]; with `columns`, the second axis counts places from the row's first open one."""
        if not values.numel():  # a pass in which no row drafts
            return
        values = values.reshape(len(rows), values.shape[1] if values.ndim > 1 else 1, -1)
        columns = values.transpose(1, 2).flatten(1)
        column = torch.arange(columns.shape[1]) % values.shape[1] * self.columns
        place = self.first[rows][:, None] + column
        row, turn = rows[:, None].expand_as(columns), torch.full_like(place, len(self.widths))
        self.values.append(columns.flatten().numpy())
        self.labels.append(torch.stack([x.flatten() for x in (row, place, turn)]).numpy())

    def follow(self, decoder: Decoder) -> Decoder:
        """The decoder, its numbers recorded and its passes counted."""

        def followed(model: Any, start: Any, *, noise: Noise, **options: Any) -> Iterator[Any]:
            for step in decoder(model, start, noise=RecordedNoise(noise, self), **options):
                new = step.final.sum(1) if hasattr(step, "final") else step.kept
                self.ended[new > 0] = len(self.widths)
                self.first += new
                self.widths.append(step.tokens.shape[1])
                yield step

        return followed

    def compare(self) -> tuple[int, int, str]:
        """Numbers compared, those read in another row or at another place before, and where the first of these was."""
        if not self.values:
            return 0, 0, ""
        values, labels = np.concatenate(self.values), np.concatenate(self.labels, 1)
        row, place, turn = labels
        active = turn <= self.ended.numpy()[row]
        if self.padded:
            active &= place < self.first.numpy()[row]
        values, labels = values[active], labels[:, active]
        order = np.lexsort((labels[2], values))
        values, labels = values[order], labels[:, order]
        (row, place, turn), width = labels, 1 if self.columns else np.array(self.widths)[labels[2]]
        apart = np.maximum(place[1:], place[:-1]) >= np.minimum((place + width)[1:], (place + width)[:-1])
        moved = (values[1:] == values[:-1]) & ((row[1:] != row[:-1]) | apart)
        if not moved.any():
            return len(values), 0, ""
        i = int(np.flatnonzero(moved)[0])
        where = " and ".join(f"row {row[j]}, pass {turn[j] + 1}" for j in (i, i + 1))
        return len(values), int(moved.sum()), where


class RecordedNoise(Noise):
    def __init__(self, noise: Noise, recorder: Recorder, rows: Tensor | None = None):
        super().__init__(noise.keys, noise.dtype)
        self.recorder, self.rows = recorder, torch.arange(len(noise.keys)) if rows is None else rows

    def _uniform(self, use: str, index: Tensor, n: int) -> Tensor:
        values = super()._uniform(use, index, n)
        self.recorder.add(self.rows, values[..., 0].clone())
        return values

    def take(self, rows: Tensor) -> "RecordedNoise":
        return RecordedNoise(super().take(rows), self.recorder, self.rows[rows])


def reuse_row(layer: str, recorder: Recorder, **place: Any) -> Row:
    """The row of the test, certain rather than statistical: one number used again rejects."""
    n, again, where = recorder.compare()
    if n == 0:
        return R.not_run(layer, "noise", 0, "numbers that the decoder reads from the noise it is handed", **place)
    note = f"{again} of {n} numbers used again, first in {where}" if again else f"{n} numbers, none used again"
    least = 1 - (1 - R.POWER) ** (1 / n)
    values = {"effect": again / n, "minimum_detectable_effect": least, "note": note, **place}
    return R.row(layer, "noise", n, p_value=R.SMALLEST if again else 1.0, **values)
