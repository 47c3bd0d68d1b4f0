"""Decoding with discrete decoders: how a batch of prompts begins, and what a run records."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from parity_decoders.noise import Noise
from parity_decoders.protocols.discrete import TokenModel
from parity_decoders.sampling import Sampled
from parity_decoders.sequence_buffer import find_end
from parity_decoders.steps import Step
from torch import Tensor

from parity.base.weights import count_parameters
from parity.decode.output_buffer import Canvas


@dataclass
class Decoded:
    """A batch of decoded prompts and their cost."""

    tokens: Tensor  # [B, L]
    step: Tensor  # [B, L] int16: the pass, from 1, in which a token became final (0: forced before any pass)
    nfe: Tensor  # [B] target passes a row took part in
    nodes: Tensor  # [B] tokens evaluated for a row, over all its passes
    kept: Tensor  # [B, passes] int16: tokens that became final, pass by pass
    passes: int  # passes of the batch: the largest nfe
    seconds: float  # wall time of the batch
    first_seconds: float  # of these, until its first tokens were final


def record(model: TokenModel, start: Tensor, steps: Iterator[Step]) -> Decoded:
    """Run a decoder and record its tokens, those past the end dropped, and their cost. ParityError that names row and
    position if it stops early or draws what is not in the vocabulary."""
    B, L, device = len(start), model.length, start.device
    queue = getattr(model, "queue", None)
    N, every = B if queue is None else len(queue.keys), torch.arange(B, device=device)
    canvas = Canvas(model.forced.clamp(min=0).repeat(N, 1))
    by_step: list[tuple[Tensor, ...]] = []  # [B] each: the rows, tokens that became final, and those evaluated
    i, end = torch.arange(0, device=device), find_end(model.forced)
    for new, kept, positions, evaluated in steps:
        if len(i) != new.shape[1]:
            i = torch.arange(new.shape[1], device=device)
        places = positions if positions.ndim == 2 else torch.where(i < kept[:, None], positions[:, None] + i, L)
        canvas.write(places.clamp(max=L), new, None if queue is None else queue.of)
        if evaluated is None:
            evaluated = (positions < L).sum(1) if positions.ndim == 2 else (end - positions).clamp_(0, new.shape[1])
        by_step.append((every if queue is None else queue.of, kept, evaluated))
    seconds = canvas.finish((model.forced < 0).expand(N, L))
    wrong = (canvas.tokens < 0) | (canvas.tokens >= model.vocab)
    canvas.refuse(wrong, f"the decoder drew token {{token}}; allowed: 0 to {model.vocab - 1}")
    rows, kept, nodes = (torch.stack(x, 1) for x in zip(*by_step, strict=True))
    begun, kept, nodes = by_row(rows, kept, nodes, N)
    step = torch.where(canvas.step > 0, canvas.step - begun[:, None], 0).to(torch.int16)
    nfe = (kept > 0).sum(1)
    return Decoded(canvas.tokens, step, nfe, nodes.sum(1), kept.to(torch.int16), canvas.steps, seconds, canvas.first)


def by_row(rows: Tensor, kept: Tensor, nodes: Tensor, n: int) -> tuple[Tensor, Tensor, Tensor]:
    """Counts of passes by row instead of by place in the batch. rows, kept and nodes [B, passes] are the row in each
    place, its tokens that became final and those evaluated. Returns the batch's passes before each row's first [n], and
    kept and nodes [n, most passes of a row]."""
    place, at = (kept > 0).nonzero(as_tuple=True)
    row, order = (rows[place, at] * kept.shape[1] + at).sort()
    row, place, at = row // kept.shape[1], place[order], at[order]
    nfe = torch.bincount(row, minlength=n)
    first = nfe.cumsum(0) - nfe
    turn = torch.arange(len(row), device=row.device) - first[row]
    own = [x.new_zeros(n, int(nfe.max())).index_put((row, turn), x[place, at]) for x in (kept, nodes)]
    return at[first], own[0], own[1]


def opened(loaded: Any, spec: dict[str, Any]) -> Callable[[dict[str, np.ndarray], Noise], tuple[TokenModel, Tensor]]:
    """A function of encoded prompts and their noise that gives a fresh model and the starts [B] of a decoder."""

    def begin(rows: dict[str, np.ndarray], noise: Noise) -> tuple[TokenModel, Tensor]:
        return loaded.model(rows, spec["sampling"]), torch.zeros_like(noise.keys)

    return begin


def networks(model: Any) -> list[tuple[Any, str, str]]:
    """The target, under its guidance and filters, and its companion."""
    target = model.model if isinstance(model, Sampled) else model
    parts = {"target": target, **{name: getattr(target, name, None) for name in ("drafter", "draft")}}
    calls = ("logits", "tree")
    return [(network, call, part) for part, network in parts.items() if network is not None for call in calls]


def parameters(loaded: Any) -> dict[str, int]:
    """Parameters of the target and of its companion."""
    names = {"net": "target", "drafter": "drafter", "draft": "draft"}
    return {names[part]: count_parameters(net) for part, net in loaded.nets.items() if part in names}


def columns(rows: dict[str, np.ndarray], model: TokenModel, start: Tensor, done: Decoded) -> dict[str, Any]:
    """Columns of a shard."""
    return vars(done) | {"tokens": done.tokens.int(), "captions": rows["captions"]}
