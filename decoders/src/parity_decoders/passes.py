"""The passes of a decoder as an object: whoever iterates it decodes, and whoever holds it can capture a pass."""

from collections.abc import Callable, Iterator

import torch

from parity_decoders.sequence_buffer import SequenceBuffer
from parity_decoders.steps import Step


class Passes(Iterator[Step]):
    """The passes of a decoder over a batch, one after another until all rows are done.

    line   the tokens of the rows, and how far each row has come
    run    makes a pass and returns its step
    is_captured  whether a recording makes the passes (`parity_decoders.captured`)

    If the model is `static`, `run` makes the same calls on the same buffers in every pass: all that lives from pass to
    pass is changed in place, and no Python value that changes decides.
    """

    def __init__(self, line: SequenceBuffer, run: Callable[[], Step]):
        """Set the rows and the function that makes a pass."""
        self.line = line
        self.run = run
        self.is_captured = False

    @torch.inference_mode()
    def __next__(self) -> Step:
        """Let waiting rows begin in the places of those that are done, or let the model drop these, and make a pass."""
        self.line.take_waiting_rows()
        if self.line.is_done():
            raise StopIteration
        self.line.release_done_rows()
        return self.run()
