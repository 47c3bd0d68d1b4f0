"""What an any-subset decoder yields, and the caller that runs one and counts."""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from parity.decoders.steps import Fill
from parity.models.anysubset.protocol import Infilling


@dataclass
class Filled:
    tokens: Tensor  # [B, N] complete
    loop: Tensor  # [B, N] int16: the loop, from 1, in which a token became final; 0 for the prompt
    nfe: Tensor  # [B] evaluations of the model
    aux: Tensor  # [B] passes of the auxiliary drafter
    loops: Tensor  # [B] loops the row took part in
    passes: int  # evaluations of the model one after another, whichever row needed them
    seconds: float  # wall time of the batch


def fill(start: Infilling, steps: Iterator[Fill]) -> Filled:
    """Write the final tokens of every loop in their place. ValueError if a decoder stops before a row is complete."""
    B, N = start.tokens.shape
    device = start.tokens.device
    tokens = torch.cat([start.tokens, start.tokens.new_zeros(B, 1)], 1)  # the last column takes what is not final
    loop = torch.zeros_like(tokens)
    nfe, aux, loops = (torch.zeros(B, dtype=torch.int64, device=device) for _ in range(3))
    passes = torch.zeros((), dtype=torch.int64, device=device)
    begin = time.perf_counter()
    for number, (positions, new, final, calls, drafts) in enumerate(steps, 1):
        where = torch.where(final, positions, N)
        tokens.scatter_(1, where, new)
        loop.scatter_(1, where, number)
        nfe += calls
        passes += calls.max()
        aux += 0 if drafts is None else drafts
        loops += calls > 0
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    seconds = time.perf_counter() - begin
    ranks = torch.arange(N, device=device)
    asked = torch.zeros_like(start.tokens).scatter_(
        1, start.order, ((ranks >= start.begin[:, None]) & (ranks < start.end[:, None])).long()
    )
    left = (asked > 0) & (loop[:, :N] == 0)
    if left.any():
        row, position = left.nonzero()[0].tolist()
        raise ValueError(f"row {row}, position {position}: the decoder stopped before it was filled in")
    return Filled(tokens[:, :N], loop[:, :N].to(torch.int16), nfe, aux, loops, int(passes), seconds)
