"""The passes of a decoder as an object: whoever iterates it decodes, and whoever holds it can capture a pass."""

from collections.abc import Callable, Iterator

import torch

from parity_decoders.sequence_buffer import SequenceBuffer
from parity_decoders.steps import Step


class Passes(Iterator[Step]):
    """The passes of a decoder over a batch, one after another until all rows are done.

    line   the tokens of the rows, and how far each row has come
    run    makes a pass, given the open positions of the row that has the most, and returns its step
    alike  whether `run` makes the same calls on the same buffers in every pass but a row's first three, if the model is
           `static`: all that lives from pass to pass is changed in place, and no Python value that changes decides
    """

    def __init__(self, line: SequenceBuffer, run: Callable[[int], Step], alike: bool = True):
        """Set the rows and the function that makes a pass."""
        self.line = line
        self.run = run
        self.alike = alike

    @torch.inference_mode()
    def __next__(self) -> Step:
        """Make a pass; before it, rows that are done are replaced by waiting ones."""
        if not (remaining := self.line.count_remaining()):
            raise StopIteration
        return self.run(remaining)

    def repeats(self) -> bool:
        """Return whether the next pass makes the same calls on the same buffers as the one before it."""
        return self.alike and self.line.static and self.line.newest > FIRST


FIRST = 2  # passes of a row that differ from its later ones: they have no tokens, laws or branches to begin with
