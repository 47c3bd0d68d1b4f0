"""The queue of rows: where a row of a batch is done, the next begins while the others go on (iteration-level
scheduling, Yu et al. 2022, Orca, sec. 3; "continuous batching").

A decoder that can begin a row among others declares REFILLS = True. Its state between passes is in
`parity.decoders.sequence_buffer` or `window`, which reset a row, or depends on the row's `age`. Noise is keyed by a
row's id and its own passes, so its tokens are the same in any batch.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from parity.base.noise import Noise

PART = 8  # of a batch: as many of its rows, at most, begin at once, as each has a cache of its own until it has joined


class Queue:
    """The rows of a shard, of which a batch holds some.

    of    [B] the row in each place of the batch
    next  the first row that waits
    """

    def __init__(self, model: Any, noise: Noise, keys: Tensor, begin: Callable[[slice], Any]):
        """model, noise: of the batch, whose places hold the first rows; keys [N] of all rows' noise; begin(rows): a
        model that has read the prompts of these, as for a batch of their own."""
        self.model, self.noise, self.keys, self.begin = model, noise, keys, begin
        self.next = len(noise.keys)
        self.of = torch.arange(self.next, device=keys.device)

    def waits(self) -> bool:
        """Whether any row does."""
        return self.next < len(self.keys)

    def fill(self, done: Tensor) -> Tensor | None:
        """Rows that wait begin in places that are `done`, [B] bool on the CPU. In which, [B] bool; None: in none."""
        places = done.nonzero()[: len(self.keys) - self.next, 0]
        if not len(places):
            return None
        for some in places.split(max(1, len(done) // PART)):
            rows, to = slice(self.next, self.next + len(some)), some.to(self.of.device)
            self.next = rows.stop
            self.model.join(torch.zeros_like(done).index_fill_(0, some, True), self.begin(rows))
            self.noise.replace(to, self.keys[rows])
            self.of = self.of.index_copy(0, to, torch.arange(rows.start, rows.stop, device=to.device))
        return torch.zeros_like(done).index_fill_(0, places, True).to(self.of.device)
