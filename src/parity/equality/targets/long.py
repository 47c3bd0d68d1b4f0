"""Long targets: models whose conditionals are known though their joint cannot be listed, for decoders at their own
options. They set how many sequences are drawn; all their tests are one family.

Small batches. A row's noise is its own (`parity_decoders.noise`), so a correct decoder gives it the same tokens in any
batch, and the tests of the large batch cover small ones. If a token differs in a batch of 1, 3 or 32, more rows are
decoded in batches of that size, and only the test of their law decides. The sizes are constants, because a test here is
shared by all experiments that use the decoder with these options. The run's own batches are tested on its own model
(`parity.equality.alike`).

Reuse of noise. A number that a decoder reads belongs to one row and one place in it. It may be read again in a later
pass at the same place (coupled decoders do); in another row, or at another place, it makes draws dependent. Shared
numbers are found with certainty, whatever the size of the sample; statistical tests are left to find those of a decoder
that makes numbers of its own.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from parity_certify import result_rows as R
from parity_certify.result_rows import Row
from parity_certify.seeding import derive_row_key
from parity_decoders.noise import Noise, counted_noise
from torch import Tensor

from parity.base.errors import ParityError
from parity.equality.martingale_tests import by_agreement, score_rows
from parity.equality.targets import Decoder, named

LONGEST = 256
OWN = 32  # rows of a batch, as in the default run
SIZES = ((1, 2), (3, 1), (OWN, 1))  # rows of a batch, and how many batches
MORE = 96  # rows, where one differs


class Recorder:
    """The numbers drawn by one batch of rows, and the tokens that each pass made final.

    columns  whether numbers are read by place, in the order of a pass's places
    padded   whether numbers are read behind a row's end too
    """

    def __init__(self, rows: int, columns: bool, padded: bool):
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
        """Numbers compared, how many of them were read before at another place, and where the first of these was."""
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
        elsewhere = np.maximum(place[1:], place[:-1]) >= np.minimum((place + width)[1:], (place + width)[:-1])
        moved = (values[1:] == values[:-1]) & ((row[1:] != row[:-1]) | elsewhere)
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
    """The row of the test; one reused number rejects."""
    n, again, where = recorder.compare()
    if n == 0:
        return R.make_not_run_row(
            layer, "noise", 0, "numbers that the decoder reads from the noise it is handed", **place
        )
    note = f"{again} of {n} numbers used again, first in {where}" if again else f"{n} numbers, none used again"
    least = 1 - (1 - R.POWER) ** (1 / n)
    values = {"effect": again / n, "minimum_detectable_effect": least, "note": note, **place}
    return R.make_row(layer, "noise", n, p_value=R.SMALLEST if again else 1.0, **values)


class Difference(NamedTuple):
    """How tokens of small batches differ from those of the large one."""

    compared: int  # tokens
    size: int  # of the batches in which a token differed; 0 if none did
    rows: np.ndarray  # [m] decoded again, in batches of that size: in such a batch alone their law is tested
    share: float  # of the compared tokens that differ


class Drawn(NamedTuple):
    """Sequences as tests of tokens read them; of vectors, each number's part of its law's range is a token."""

    tokens: np.ndarray  # [n, L]
    laws: np.ndarray  # [n, L, V] of each token given those before it
    known: np.ndarray  # [n, L] bool: what the prompt says, and places behind a row's end
    slot: np.ndarray  # [n, L] place of each token in the run of its pass
    ordered: bool  # whether that is known before the token is drawn, as in decoders that claim to be lossless
    pit: np.ndarray | None = None  # [n, L] of numbers: each at its law's distribution function
    scores: tuple[np.ndarray, np.ndarray] | None = None  # of numbers: log p less its mean, and its variance, [n, L]
    small: tuple[Difference, "Drawn | None"] | None = None  # in small batches
    recorder: Recorder | None = None  # the numbers of a batch of a run's size


@dataclass(frozen=True, kw_only=True)
class Long:
    """A long model: how it is drawn from and tested. Each kind fills in the methods."""

    name: str
    length: int
    n: int  # sequences that are drawn
    alone: bool = False  # whether small batches are looked at
    far: bool = False  # as long as the longest, and not every two places are looked at
    columns: ClassVar[bool] = True  # see `Recorder`
    padded: ClassVar[bool] = False

    @cached_property
    def law(self) -> np.ndarray | None:
        """[L, V, L, V] of every two tokens; None where it is not known, or not looked at."""
        raise NotImplementedError

    def start(self, seed: int) -> Any:
        """What n rows are decoded from: a tensor, or a named tuple of tensors."""
        raise NotImplementedError

    def record(self, decoder: Decoder, start: Any, options: dict[str, Any]) -> Any:
        """Decoded rows: an object with `tokens` and `step`."""
        raise NotImplementedError

    def is_ordered(self, options: dict[str, Any]) -> bool:
        """Whether a lossless decoder's slots are known before their tokens are drawn."""
        return True

    def to_drawn(self, start: Any, tokens: Tensor, step: Tensor, ordered: bool) -> Drawn:
        raise NotImplementedError

    def scored(self, drawn: Drawn, layer: str, whole: bool, **place: Any) -> list[Row]:
        """Rows of the tests; of those of two places only where it is the `whole` sample."""
        two, slot = self.law if whole else None, drawn.slot if drawn.ordered else None
        settings: dict[str, Any] = {"known": drawn.known, "scores": drawn.scores, "far": self.far and whole}
        return score_rows(layer, drawn.tokens, drawn.laws, two, slot, **settings, **place)

    def draw(
        self, decoder: Decoder, n: int, seed: int, options: dict[str, Any], threads: int = 1, strict: bool = False
    ) -> Drawn:
        """The target's own n sequences, all in one batch, so that its rows are at very different positions."""
        key, start = derive_row_key(seed, self.name), self.start(seed)

        def start_of(rows: np.ndarray) -> Any:
            return start[rows] if isinstance(start, Tensor) else type(start)(*(x[rows] for x in start))

        def decoded(rows: np.ndarray, decoder: Decoder = decoder) -> Any:
            noise = counted_noise(key, range(self.n)).take(torch.from_numpy(rows))
            with named(f"{self.name},"):
                return self.record(decoder, start_of(rows), {"noise": noise, **options})

        done = decoded(np.arange(self.n))
        drawn = self.to_drawn(start, done.tokens, done.step, strict and self.is_ordered(options))
        zero = (np.take_along_axis(drawn.laws, drawn.tokens[..., None], 2)[..., 0] == 0) & ~drawn.known
        if strict and zero.any():
            row, i = np.argwhere(zero)[0]
            what = f"token {drawn.tokens[row, i]} of probability zero was sampled"
            raise ParityError(f"model {self.name}, row {row}, position {i}: {what}")
        if not self.alone:
            return drawn
        recorder = Recorder(OWN, self.columns, self.padded)
        decoded(np.arange(OWN), recorder.follow(decoder))
        difference, again = compare_batches(lambda rows: decoded(rows).tokens.numpy(), done.tokens.numpy())
        small = None
        if again is not None:
            step = torch.zeros(again.shape[:2], dtype=torch.int64)
            small = self.to_drawn(start_of(difference.rows), torch.from_numpy(again), step, False)
        return drawn._replace(recorder=recorder, small=(difference, small))

    def rows_of(self, drawn: Drawn, layer: str, seed: int, draws: int) -> list[Row]:
        place: dict[str, Any] = {"model": self.name, "seed": seed}
        rows = self.scored(drawn, layer, True, **place)
        if drawn.recorder is not None:
            rows.append(reuse_row(layer, drawn.recorder, **place))
            tokens, laws, known = (x[:MORE] for x in (drawn.tokens, drawn.laws, drawn.known))
            rows.append(by_agreement(layer, tokens, laws, known, OWN, **place))
        if drawn.small is not None:
            difference, again = drawn.small
            tested = self.scored(again, layer, False, **place) if again else []
            if again is not None and difference.size > 1:
                tested.append(by_agreement(layer, again.tokens, again.laws, again.known, difference.size, **place))
            rows.append(batch_row(layer, difference, tested, **place))
        return rows


def compare_batches(
    decode: Callable[[np.ndarray], np.ndarray], whole: np.ndarray
) -> tuple[Difference, np.ndarray | None]:
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
            return Difference(compared, size, rows, differ / compared), np.concatenate(again)
    return Difference(compared, 0, np.arange(0), 0.0), None


def batch_row(layer: str, difference: Difference, tested: Sequence[Row], **place: object) -> Row:
    """The row of the test: of the small batches' own tests, where there had to be some, the smallest p times their
    number. The effect is the share of tokens that differ."""
    least = 1 - (1 - R.POWER) ** (1 / max(difference.compared, 1))
    values = {"effect": difference.share, "minimum_detectable_effect": least, **place}
    if not difference.size:
        note = f"the same tokens in batches of {', '.join(str(size) for size, _ in SIZES)}"
        return R.make_row(layer, "batches", difference.compared, p_value=1.0, note=note, **values)
    run = [r for r in tested if r["p_value"] is not None]
    best = min(run, key=lambda r: r["p_value"])
    note = f"in batches of {difference.size}: {best['test']}" + (f", {best['note']}" if best["note"] else "")
    p = min(1.0, len(run) * best["p_value"])
    return R.make_row(layer, "batches", best["n"], p_value=p, statistic=best["statistic"], note=note, **values)


def softmax(shape: tuple[int, ...], scale: float, generator: torch.Generator) -> Tensor:
    """Random laws."""
    return (scale * torch.randn(shape, generator=generator, dtype=torch.float64)).softmax(-1)
