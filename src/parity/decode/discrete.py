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
from parity.experiment.weights import COMPANIONS


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


def record(model: TokenModel, start: Tensor, steps: Iterator[Step]) -> Decoded:
    """Run a decoder to its end and record its tokens and their cost, of all rows of the model's queue if it has one.
    Raises ParityError that names row and position if it stops early or draws what is not in the vocabulary."""
    B, L, device = len(start), model.length, start.device
    queue = getattr(model, "queue", None)
    N = B if queue is None else len(queue.keys)
    all_rows = torch.arange(B, device=device)
    canvas = TimedCanvas(model.forced.clamp(min=0).repeat(N, 1))
    by_step: list[tuple[Tensor, ...]] = []  # by pass: rows, numbers of final and of evaluated tokens, each [B]
    end = find_end(model.forced)
    for new in steps:
        canvas.write(new.find_places(L), new.tokens, None if queue is None else queue.of)
        by_step.append((all_rows if queue is None else queue.of, new.kept, new.count_nodes(end)))
    seconds = canvas.finish((model.forced < 0).expand(N, L))
    refuse_undefined(model)
    wrong = (canvas.tokens < 0) | (canvas.tokens >= model.vocab)
    canvas.refuse(wrong, f"the decoder drew token {{token}}; allowed: 0 to {model.vocab - 1}")
    rows, n_kept, nodes = (torch.stack(x, 1) for x in zip(*by_step, strict=True))
    passes_before, n_kept, nodes = regroup_by_row(rows, n_kept, nodes, N)
    step = torch.where(canvas.step > 0, canvas.step - passes_before[:, None], 0).to(torch.int16)
    nfe = (n_kept > 0).sum(1)
    return Decoded(canvas.tokens, step, nfe, nodes.sum(1), n_kept.to(torch.int16), canvas.steps, seconds, canvas.first)


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
    """Put timed networks in the place of a model's: the target, without its guidance and filters, and companions."""
    calls = {"heads": ("continue_tree", "logits", "tree")}
    return model.replace_networks(lambda role, net: Timed(net, role, clock, calls.get(role, ("logits", "tree"))))


def parameters(loaded: Any) -> dict[str, int]:
    """Count the parameters of the loaded networks by role: the target and, if there is one, its companion."""
    names = {"net": "target", **{name: name for name in COMPANIONS}}
    return {names[name]: count_parameters(net) for name, net in loaded.nets.items() if name in names}


def columns(rows: dict[str, np.ndarray], model: TokenModel, start: Tensor, decoded: Decoded) -> dict[str, Any]:
    """Make the columns of a shard by name: the fields of `decoded` and the captions of the rows."""
    return vars(decoded) | {"tokens": decoded.tokens.int(), "captions": rows["captions"]}
