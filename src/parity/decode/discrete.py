"""Run a decoder and count: the tokens and one record per row, from the steps it yields."""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from parity.decoders.steps import Step
from parity.models.discrete.protocol import TokenModel


@dataclass
class Decoded:
    tokens: Tensor  # [B, L]
    step: Tensor  # [B, L] int16: the pass, from 1, in which a token became final (0: forced by the grammar before any pass)
    nfe: Tensor  # [B] target passes a row took part in
    nodes: Tensor  # [B] tokens evaluated for a row, over all its passes
    kept: Tensor  # [B, passes] int16: tokens that became final, pass by pass
    passes: int  # passes of the batch: the largest nfe
    seconds: float  # wall time of the batch


def decode(model: TokenModel, steps: Iterator[Step], rows: int) -> Decoded:
    """Write the final tokens of every step in their place; positions past the end are dropped."""
    device, L = model.forced.device, model.length
    tokens = model.forced.clamp(min=0).repeat(rows, 1)
    tokens = torch.cat([tokens, tokens.new_zeros(rows, 1)], 1)  # the last column takes what is not kept
    written = torch.zeros_like(tokens)
    nfe, nodes, kept_by_step = (
        torch.zeros(rows, dtype=torch.int64, device=device),
        torch.zeros(rows, dtype=torch.int64, device=device),
        [],
    )
    begin = time.perf_counter()
    for number, (new, kept, positions, evaluated) in enumerate(steps, 1):
        i = torch.arange(new.shape[1], device=device)
        places = positions if positions.ndim == 2 else torch.where(i < kept[:, None], positions[:, None] + i, L)
        where = places.clamp(max=L)
        tokens.scatter_(1, where, new)
        written.scatter_(1, where, number)
        active = kept > 0
        nfe += active
        if evaluated is None:
            evaluated = (positions < L).sum(1) if positions.ndim == 2 else (L - positions).clamp(max=new.shape[1])
        nodes += torch.where(active, evaluated, 0)
        kept_by_step.append(kept)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    seconds = time.perf_counter() - begin
    kept = torch.stack(kept_by_step, 1).to(torch.int16)
    return Decoded(tokens[:, :L], written[:, :L].to(torch.int16), nfe, nodes, kept, len(kept_by_step), seconds)
