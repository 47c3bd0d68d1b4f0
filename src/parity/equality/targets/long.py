"""Long targets: models whose conditionals are known though their joint cannot be listed, for decoders at their own
options. They set how many sequences are drawn; all their tests are one family.

Small batches. A row's noise is its own (`parity_decoders.noise`), so a correct decoder gives it the same tokens in any
batch, and the tests of the large batch cover small ones. If a token differs in a batch of 1, 3 or 32, more rows are
decoded in batches of that size, and only the test of their distribution decides. The sizes are constants, because a
test here is shared by all experiments that use the decoder with these options. The run's own batches are tested on its
own model (`parity.equality.row_dependence`).

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
from parity.equality.martingale_tests import make_agreement_row, make_sequence_rows
from parity.equality.targets import Decoder, prefix_errors

RUN_BATCH = 32  # number of rows of a batch in a run with default settings
SIZES = ((1, 2), (3, 1), (RUN_BATCH, 1))  # sizes of the small batches that are compared, and how many of each
MORE_ROWS = 96  # number of rows that are decoded in small batches if a token differed in one


class Recorder:
    """The numbers drawn by one batch of rows, and the tokens that each pass made final.

    by_column       whether numbers are read by place, in the order of a pass's places
    """

    def __init__(self, rows: int, by_column: bool):
        self.by_column = by_column
        self.frontier = torch.zeros(rows, dtype=torch.int64)
        self.last_pass = torch.zeros(rows, dtype=torch.int64)  # the last pass that made a token of the row final
        self.widths: list[int] = []  # number of places that each pass looked at
        self.values: list[np.ndarray] = []
        self.labels: list[np.ndarray] = []  # [3, n] each: row, first place and pass of each of `values`

    def add(self, rows: Tensor, values: Tensor) -> None:
        """Record the numbers `values` [B, ...] that rows [B] read in the current pass; if `by_column`, the second axis
        counts places from the row's first open one."""
        if not values.numel():  # nothing is read in a pass in which no row drafts
            return
        values = values.reshape(len(rows), values.shape[1] if values.ndim > 1 else 1, -1)
        flat = values.transpose(1, 2).flatten(1)
        column = torch.arange(flat.shape[1]) % values.shape[1] * self.by_column
        first_place = self.frontier[rows][:, None] + column
        row = rows[:, None].expand_as(flat)
        pass_number = torch.full_like(first_place, len(self.widths))
        self.values.append(flat.flatten().numpy())
        self.labels.append(torch.stack([x.flatten() for x in (row, first_place, pass_number)]).numpy())

    def follow(self, decoder: Decoder) -> Decoder:
        """Make a decoder that decodes likewise and records its random numbers and passes here."""

        def decode(model: Any, start: Any, *, noise: Noise, **options: Any) -> Iterator[Any]:
            for step in decoder(model, start, noise=RecordedNoise(noise, self), **options):
                n_final = step.final.sum(1) if hasattr(step, "final") else step.kept
                self.last_pass[n_final > 0] = len(self.widths)
                self.frontier += n_final
                self.widths.append(step.tokens.shape[1])
                yield step

        return decode

    def compare(self) -> tuple[int, int, str]:
        """Count the numbers compared, and those that were read before in another row or at another place; also name the
        rows and passes of the first of these ("" if none)."""
        if not self.values:
            return 0, 0, ""
        values, labels = np.concatenate(self.values), np.concatenate(self.labels, 1)
        row, place, pass_number = labels
        is_active = pass_number <= self.last_pass.numpy()[row]
        is_active &= place < self.frontier.numpy()[row]  # no token stands past the end of a row
        values, labels = values[is_active], labels[:, is_active]
        order = np.lexsort((labels[2], values))
        values = values[order]
        row, place, pass_number = labels[:, order]
        end = place + (1 if self.by_column else np.array(self.widths)[pass_number])
        is_elsewhere = np.maximum(place[1:], place[:-1]) >= np.minimum(end[1:], end[:-1])
        is_reused = (values[1:] == values[:-1]) & ((row[1:] != row[:-1]) | is_elsewhere)
        if not is_reused.any():
            return len(values), 0, ""
        i = int(np.flatnonzero(is_reused)[0])
        location = " and ".join(f"row {row[j]}, pass {pass_number[j] + 1}" for j in (i, i + 1))
        return len(values), int(is_reused.sum()), location


class RecordedNoise(Noise):
    """Noise that hands the numbers that it gives to a recorder, with their rows."""

    def __init__(self, noise: Noise, recorder: Recorder, rows: Tensor | None = None):
        super().__init__(noise.keys, noise.dtype)
        self.recorder = recorder
        self.rows = torch.arange(len(noise.keys)) if rows is None else rows

    def _draw(self, use: str, index: Tensor, n: int, dtype: torch.dtype, convert: Callable[[Tensor], Tensor]) -> Tensor:
        def record(x: Tensor) -> Tensor:
            """Record the first of the n numbers, before it becomes a uniform, an exponential or a normal."""
            self.recorder.add(self.rows, x[..., 0].clone())
            return convert(x)

        return super()._draw(use, index, n, dtype, record)

    def take(self, rows: Tensor) -> "RecordedNoise":
        return RecordedNoise(super().take(rows), self.recorder, self.rows[rows])


def make_reuse_row(layer: str, recorder: Recorder, **columns: Any) -> Row:
    """Make the row of the test "noise", in which one reused number rejects; "not run" if nothing was recorded."""
    n, n_reused, location = recorder.compare()
    if n == 0:
        needs = "numbers that the decoder reads from the noise it is handed"
        return R.make_not_run_row(layer, "noise", 0, needs, **columns)
    note = f"{n_reused} of {n} numbers used again, first in {location}" if n_reused else f"{n} numbers, none used again"
    limit = 1 - (1 - R.POWER) ** (1 / n)
    values = {"effect": n_reused / n, "minimum_detectable_effect": limit, "note": note, **columns}
    return R.make_row(layer, "noise", n, p_value=R.SMALLEST if n_reused else 1.0, **values)


class Difference(NamedTuple):
    """How tokens of small batches differ from those of the large one."""

    compared: int  # number of tokens that were compared
    size: int  # size of the batches in which a token differed; 0 if none did
    rows: np.ndarray  # [m] rows decoded again in batches of that size, to test their distribution in such batches alone
    share: float  # share of the compared tokens that differ


class Sequences(NamedTuple):
    """Sequences as tests of tokens read them; of vectors, each number's part of its distribution's range is a token."""

    tokens: np.ndarray  # [n, L]
    probs: np.ndarray  # [n, L, V] distribution of each token given those before it
    is_known: np.ndarray  # [n, L] bool: tokens of the prompt, and positions after a row's end
    slot: np.ndarray  # [n, L] place of each token in the run of its pass
    predictable: bool  # whether `slot` is known before the token is drawn, as in decoders that claim to be lossless
    pit: np.ndarray | None = None  # [n, L] for numbers: the value of each one's distribution function at the number
    scores: tuple[np.ndarray, np.ndarray] | None = None  # for numbers: log p less its mean, and its variance, [n, L]
    small: tuple[Difference, "Sequences | None"] | None = None  # how small batches differ, and rows decoded in them
    recorder: Recorder | None = None  # the random numbers that a batch of RUN_BATCH rows read


@dataclass(frozen=True, kw_only=True)
class Long:
    """A long model: how it is drawn from and tested. Each kind fills in the methods."""

    name: str
    length: int
    n: int  # number of sequences that are drawn
    tests_batches: bool = False  # whether small batches and the reuse of noise are tested
    skips_pairs: bool = False  # whether pairs of positions are not tested, because the sequences are the longest
    by_column: ClassVar[bool] = True  # whether a decoder reads numbers by place, see `Recorder`

    @cached_property
    def probs(self) -> np.ndarray | None:
        """Compute the distribution [L, V, L, V] of every two tokens; None where it cannot be computed, or is not
        tested."""
        raise NotImplementedError

    def make_start(self, seed: int) -> Any:
        """Make what n rows are decoded from: a tensor, or a named tuple of tensors."""
        raise NotImplementedError

    def record(self, decoder: Decoder, start: Any, options: dict[str, Any]) -> Any:
        """Decode the rows of `start`; options include the noise. Returns an object with `tokens` and `step`."""
        raise NotImplementedError

    def has_predictable_slots(self, options: dict[str, Any]) -> bool:
        """Tell whether a lossless decoder's slots are known before their tokens are drawn."""
        return True

    def to_drawn(self, start: Any, tokens: Tensor, step: Tensor, predictable: bool) -> Sequences:
        raise NotImplementedError

    def make_token_rows(self, drawn: Sequences, layer: str, is_whole: bool, **columns: Any) -> list[Row]:
        """Make the rows of the tests of tokens; the tests of two positions only if `drawn` is the whole sample."""
        pair_probs = self.probs if is_whole else None
        slot = drawn.slot if drawn.predictable else None
        settings: dict[str, Any] = {"skip_pairs": self.skips_pairs and is_whole, **columns}
        return make_sequence_rows(
            layer, drawn.tokens, drawn.probs, pair_probs, slot, drawn.is_known, drawn.scores, **settings
        )

    def draw(
        self, decoder: Decoder, n: int, seed: int, options: dict[str, Any], threads: int = 1, strict: bool = False
    ) -> Sequences:
        """Draw `self.n` sequences (n and threads are not read), all in one batch, so that its rows are at different
        positions; if `tests_batches`, small batches too. Raises ParityError for an impossible token if `strict`."""
        key = derive_row_key(seed, self.name)
        start = self.make_start(seed)

        def select_start(rows: np.ndarray) -> Any:
            return start[rows] if isinstance(start, Tensor) else type(start)(*(x[rows] for x in start))

        def decode(rows: np.ndarray, decoder: Decoder = decoder) -> Any:
            noise = counted_noise(key, range(self.n)).take(torch.from_numpy(rows))
            with prefix_errors(f"{self.name},"):
                return self.record(decoder, select_start(rows), {"noise": noise, **options})

        decoded = decode(np.arange(self.n))
        predictable = strict and self.has_predictable_slots(options)
        drawn = self.to_drawn(start, decoded.tokens, decoded.step, predictable)
        is_impossible = (np.take_along_axis(drawn.probs, drawn.tokens[..., None], 2)[..., 0] == 0) & ~drawn.is_known
        if strict and is_impossible.any():
            row, i = np.argwhere(is_impossible)[0]
            problem = f"token {drawn.tokens[row, i]} of probability zero was sampled"
            raise ParityError(f"model {self.name}, row {row}, position {i}: {problem}")
        if not self.tests_batches:
            return drawn
        recorder = Recorder(RUN_BATCH, self.by_column)
        decode(np.arange(RUN_BATCH), recorder.follow(decoder))
        difference, tokens = compare_batches(lambda rows: decode(rows).tokens.numpy(), decoded.tokens.numpy())
        small = None
        if tokens is not None:
            step = torch.zeros(tokens.shape[:2], dtype=torch.int64)
            small = self.to_drawn(select_start(difference.rows), torch.from_numpy(tokens), step, False)
        return drawn._replace(recorder=recorder, small=(difference, small))

    def make_rows(self, drawn: Sequences, layer: str, seed: int, draws: int) -> list[Row]:
        """Make the rows of all tests of a sample that `draw` returned; `draws` is not read."""
        columns: dict[str, Any] = {"model": self.name, "seed": seed}
        rows = self.make_token_rows(drawn, layer, True, **columns)
        if drawn.recorder is not None:
            rows.append(make_reuse_row(layer, drawn.recorder, **columns))
            tokens, probs, is_known = (x[:MORE_ROWS] for x in (drawn.tokens, drawn.probs, drawn.is_known))
            rows.append(make_agreement_row(layer, tokens, probs, is_known, RUN_BATCH, **columns))
        if drawn.small is not None:
            difference, small = drawn.small
            tested = self.make_token_rows(small, layer, False, **columns) if small else []
            if small is not None and difference.size > 1:
                tested.append(
                    make_agreement_row(layer, small.tokens, small.probs, small.is_known, difference.size, **columns)
                )
            rows.append(make_batch_row(layer, difference, tested, **columns))
        return rows


def compare_batches(
    decode: Callable[[np.ndarray], np.ndarray], tokens: np.ndarray
) -> tuple[Difference, np.ndarray | None]:
    """Compare the tokens of a large batch [n, L, ...] with decode(rows [b]) -> [b, L, ...], those of a few rows in a
    small batch, for each of SIZES until one differs. Then also returns the tokens of more rows, decoded in batches of
    that size; else None."""
    first, n_compared, n_different = 0, 0, 0
    for size, count in SIZES:
        for _ in range(count):
            rows = np.arange(first, first + size)
            first += size
            differs = np.abs(decode(rows) - tokens[rows]) > 1e-6
            n_compared += differs.size
            n_different += int(differs.sum())
        if n_different:
            rows = np.arange(min(MORE_ROWS, len(tokens)) // size * size)
            small = [decode(batch) for batch in np.split(rows, len(rows) // size)]
            return Difference(n_compared, size, rows, n_different / n_compared), np.concatenate(small)
    return Difference(n_compared, 0, np.arange(0), 0.0), None


def make_batch_row(layer: str, difference: Difference, tested: Sequence[Row], **columns: object) -> Row:
    """Make the row of the test "batches": p is 1 if no token differed, else the smallest one of `tested`, the tests of
    the small batches, times their number. The effect is the share of tokens that differ."""
    limit = 1 - (1 - R.POWER) ** (1 / max(difference.compared, 1))
    values = {"effect": difference.share, "minimum_detectable_effect": limit, **columns}
    if not difference.size:
        note = f"the same tokens in batches of {', '.join(str(size) for size, _ in SIZES)}"
        return R.make_row(layer, "batches", difference.compared, p_value=1.0, note=note, **values)
    run = [r for r in tested if r["p_value"] is not None]
    best = min(run, key=lambda r: r["p_value"])
    note = f"in batches of {difference.size}: {best['test']}" + (f", {best['note']}" if best["note"] else "")
    p = min(1.0, len(run) * best["p_value"])
    return R.make_row(layer, "batches", best["n"], p_value=p, statistic=best["statistic"], note=note, **values)


def draw_probs(shape: tuple[int, ...], scale: float, generator: torch.Generator) -> Tensor:
    """Draw random distributions [*shape], each a softmax of normal logits of deviation `scale`."""
    return (scale * torch.randn(shape, generator=generator, dtype=torch.float64)).softmax(-1)
