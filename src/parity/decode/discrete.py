"""Decoding with discrete decoders: how a batch of prompts begins, and what a run records."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from parity_decoders.engine import Sampled
from parity_decoders.noise import Noise
from parity_decoders.protocols.discrete import TokenModel
from parity_decoders.sequence_buffer import find_end
from parity_decoders.steps import Step
from parity_decoders.undefined import refuse_undefined
from torch import Tensor

from parity.base.weights import count_parameters
from parity.decode.clock import Clock, Timed
from parity.decode.output_buffer import TimedCanvas
from parity.experiment.weights import SPECULATORS


@dataclass
class Decoded:
    """A batch of decoded prompts and their cost."""

    tokens: Tensor  # [B, L] final tokens
    step: Tensor  # [B, L] int16: the row's pass, from 1, in which a token became final (0: forced before any pass)
    nfe: Tensor  # [B] passes of the target a row took part in
    nodes: Tensor  # [B] tokens evaluated for a row, over all its passes
    kept: Tensor  # [B, passes] int16: tokens of the row that became final, pass by pass
    passes: int  # passes of the batch, one after another
    seconds: float  # wall time of the batch
    first_seconds: float  # wall time until the batch's first tokens were final


class Recorder:
    """The tokens of a batch and their cost, written step by step, of all rows of the model's queue if it has one."""

    def __init__(self, model: TokenModel, start: Tensor):
        B, device = len(start), start.device
        self.model = model
        self.queue = getattr(model, "queue", None)
        self.N = B if self.queue is None else len(self.queue.keys)
        self.places = torch.arange(B, device=device)  # the rows in the places of the batch, where none waits
        self.seen, self.begun = self.places.tolist(), B  # rows in the batch, and begun, when `take_ended` last looked
        self.canvas = TimedCanvas(model.forced.clamp(min=0).repeat(self.N, 1))
        self.by_step: list[tuple[Tensor, ...]] = []  # by pass: rows, numbers of final and evaluated tokens, each [B]
        self.end = find_end(model.forced)

    def write(self, new: Step) -> None:
        rows = None if self.queue is None else self.queue.of
        self.canvas.write(new.find_places(self.model.length), new.tokens, rows)
        self.by_step.append((self.places if rows is None else rows, new.kept, new.count_nodes(self.end)))

    def take_ended(self) -> list[int]:
        """List the rows that have ended and left the batch since the last call; those that are in it stay until the
        decoder ends. Waits for the device only after a row has left."""
        if self.queue is None or self.queue.next == self.begun:
            return []
        now = self.queue.of.tolist()
        ended = sorted(set(self.seen) - set(now))
        self.seen, self.begun = now, self.queue.next
        return ended

    def read_rows(self, rows: list[int]) -> dict[str, Tensor]:
        """Read rows that have ended: tokens [n, L], step [n, L] int16 and nfe [n], as `Decoded` has them. Raises
        DecodingError if logits of the batch had no distribution."""
        refuse_undefined(self.model)
        index = torch.tensor(rows, device=self.canvas.step.device)
        tokens, step = self.canvas.tokens[index, :-1], self.canvas.step[index, :-1]
        written = step > 0
        first = step.masked_fill(~written, step.max() + 1).amin(1, keepdim=True)
        own = torch.where(written, step - first + 1, 0)
        nfe = torch.tensor([len(row[row > 0].unique()) for row in own], device=index.device)
        return {"tokens": tokens, "step": own.to(torch.int16), "nfe": nfe}

    def finish(self) -> Decoded:
        """Stop the clock and return the recording. Raises ParityError that names row and position if the decoder
        stopped early or drew what is not in the vocabulary."""
        model, canvas = self.model, self.canvas
        seconds = canvas.finish((model.forced < 0).expand(self.N, model.length))
        refuse_undefined(model)
        wrong = (canvas.tokens < 0) | (canvas.tokens >= model.vocab)
        canvas.refuse(wrong, f"the decoder drew token {{token}}; allowed: 0 to {model.vocab - 1}")
        rows, n_kept, nodes = (torch.stack(x, 1) for x in zip(*self.by_step, strict=True))
        passes_before, n_kept, nodes = regroup_by_row(rows, n_kept, nodes, self.N)
        step = torch.where(canvas.step > 0, canvas.step - passes_before[:, None], 0).to(torch.int16)
        nfe = (n_kept > 0).sum(1)
        kept = n_kept.to(torch.int16)
        return Decoded(canvas.tokens, step, nfe, nodes.sum(1), kept, canvas.steps, seconds, canvas.first)


def record(model: TokenModel, start: Tensor, steps: Iterator[Step]) -> Decoded:
    """Run a decoder to its end and record its tokens and their cost, of all rows of the model's queue if it has one.
    Raises ParityError that names row and position if it stops early or draws what is not in the vocabulary."""
    recorder = Recorder(model, start)
    for new in steps:
        recorder.write(new)
    return recorder.finish()


def regroup_by_row(rows: Tensor, n_kept: Tensor, nodes: Tensor, n: int) -> tuple[Tensor, Tensor, Tensor]:
    """Regroup counts of passes by row instead of by place in the batch. rows, n_kept and nodes [B, passes] are the row
    in each place, and its numbers of tokens that became final and of those evaluated. Returns the number of the batch's
    passes before each row's first [n], and n_kept and nodes [n, most passes of a row], padded with 0. Passes of a row
    in which no token became final are left out."""
    batch_index, pass_index = (n_kept > 0).nonzero(as_tuple=True)
    row, order = (rows[batch_index, pass_index] * n_kept.shape[1] + pass_index).sort()
    row = row // n_kept.shape[1]
    batch_index = batch_index[order]
    pass_index = pass_index[order]
    nfe = torch.bincount(row, minlength=n)
    first = nfe.cumsum(0) - nfe
    turn = torch.arange(len(row), device=row.device) - first[row]
    regrouped = [
        x.new_zeros(n, int(nfe.max())).index_put((row, turn), x[batch_index, pass_index]) for x in (n_kept, nodes)
    ]
    return pass_index[first], regrouped[0], regrouped[1]


def make_starter(loaded: Any, spec: dict[str, Any]) -> Callable[..., tuple[TokenModel, Tensor]]:
    """Make a function of (encoded prompts, noise, queue) that gives a fresh model and starts [B] of a decoder, all
    0."""

    def start(rows: dict[str, np.ndarray], noise: Noise, queue: Any = None) -> tuple[TokenModel, Tensor]:
        return loaded.model(rows, spec["sampling"], queue), torch.zeros_like(noise.keys)

    return start


def count_plain_passes(model: TokenModel, start: Tensor, options: dict[str, Any]) -> int:
    return model.length


def time_networks(model: Sampled, clock: Clock) -> Sampled:
    """Put timed networks in the place of a model's: the target, without its guidance and filters, and speculators."""
    calls = {"heads": ("continue_tree", "logits", "tree")}
    return model.replace_networks(lambda role, net: Timed(net, role, clock, calls.get(role, ("logits", "tree"))))


def parameters(loaded: Any) -> dict[str, int]:
    """Count the parameters of the loaded networks by role: the target and, if there is one, its speculator."""
    names = {"net": "target", **{name: name for name in SPECULATORS}}
    return {names[name]: count_parameters(net) for name, net in loaded.nets.items() if name in names}


def columns(rows: dict[str, np.ndarray], model: TokenModel, start: Tensor, decoded: Decoded) -> dict[str, Any]:
    """Make the columns of a shard by name: the fields of `decoded` and the captions of the rows."""
    return vars(decoded) | {"tokens": decoded.tokens.int(), "captions": rows["captions"]}
