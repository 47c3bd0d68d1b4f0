"""Token-based rejection sampling over several random orders, without resampling: the control that should fail."""

from collections.abc import Iterator
from itertools import count
from typing import Annotated

import torch
from pydantic import Field

from parity.base.noise import Noise
from parity.decoders.steps import Fill
from parity.decoders.verification import race
from parity.models.anysubset.protocol import AnySubsetModel, Infilling, lattice, write

CLAIM = "lossless"
SOURCE = "Pannatier et al. 2024 as reprinted in Guo & Ermon 2025, Algorithm 3 (appendix I, which says why it is not lossless)"


@torch.inference_mode()
def sigma_gpt(
    model: AnySubsetModel, start: Infilling, *, noise: Noise, orders: Annotated[int, Field(ge=1, le=64)] = 4
) -> Iterator[Fill]:
    """Each loop drafts all that is missing, verifies it under several random orders at once, and keeps what the best order accepts.

    orders  N_o, random orders a loop. Laid side by side in one batch, they are still N_o evaluations of the row, and counted so.

    What is accepted joins the prompt; what is rejected is dropped, not resampled.
    """
    tokens, end = start.tokens, start.end
    B, N = tokens.shape
    known = start.tokens != model.mask
    for step in count():
        order, begin, _ = lattice(known, end)
        if bool((begin >= end).all()):
            return
        rank = begin[:, None] + torch.arange(N - int(begin.min()), device=tokens.device)
        open_ = rank < end[:, None]
        asked, position = torch.where(open_, rank, N), order.gather(1, rank.clamp(max=N - 1))
        index = step * N + position
        p = model.laws(tokens, order, begin, asked, begin[:, None].expand_as(rank))
        draft = race(p, noise.exponential("draft", index, model.vocab))
        own_p = write(
            torch.zeros(B, N, dtype=p.dtype, device=p.device), position, p.gather(-1, draft[..., None])[..., 0], open_
        )
        line = write(tokens, position, draft, open_)

        place = torch.arange(N, device=tokens.device)
        keys = noise.exponential(
            "branch", step * orders + torch.arange(orders, device=tokens.device)[None], N
        )  # [B, orders, N]
        by_rank = torch.where(
            (place < begin[:, None])[:, None],
            place / N - 1,
            torch.where((place < end[:, None])[:, None], keys, torch.inf),
        )
        shuffled = order[:, None].expand(-1, orders, -1).gather(2, by_rank.argsort(2)).flatten(0, 1)

        def rows(x):
            return x.repeat_interleave(orders, 0)

        q = model.laws(rows(line), shuffled, rows(begin), rows(asked), rows(rank))
        where = shuffled.gather(1, rows(rank).clamp(max=N - 1))  # [B orders, W]
        own_q = q.gather(-1, rows(line).gather(1, where)[..., None])[..., 0]
        u = noise.uniform("accept", step * N + place.expand(B, N))
        accepted = (rows(u).gather(1, where) * rows(own_p).gather(1, where) < own_q) & rows(open_)
        run = accepted.long().cumprod(1).sum(1).view(B, orders)
        best = run.argmax(1)
        where = where.view(B, orders, -1)[torch.arange(B, device=tokens.device), best]
        final = (torch.arange(where.shape[1], device=tokens.device) < run.gather(1, best[:, None])) & open_
        new = line.gather(1, where)
        yield Fill(where, new, final, (1 + orders) * (begin < end).long())

        tokens, known = write(tokens, where, new, final), write(known, where, final, final)
