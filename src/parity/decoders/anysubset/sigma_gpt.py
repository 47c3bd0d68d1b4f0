"""Token-based rejection sampling over several random orders, without resampling: the control that should fail."""

from collections.abc import Iterator
from itertools import count
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from parity.base.counts import Counts
from parity.base.noise import Noise
from parity.decoders.steps import Fill
from parity.decoders.verification import count_leading, probability, race
from parity.models.anysubset.protocol import AnySubsetModel, Infilling, Ranks, lattice, ranks, write

CLAIM = "lossless"
CONTROL = True
SOURCE = "Pannatier et al. 2024 as in Guo & Ermon 2025, Algorithm 3 (appendix I, which says why it is not lossless)"


def shuffle_orders(start: Infilling, keys: Tensor) -> Tensor:
    """N_o orders of each row [B N_o, N]: the row's own, with its missing ranks sorted by keys [B, N_o, N]."""
    N, orders = keys.shape[2], keys.shape[1]
    rank = torch.arange(N, device=keys.device)
    given, missing = (rank < end[:, None] for end in (start.begin, start.end))
    by = torch.where(given[:, None], rank / N - 1, torch.where(missing[:, None], keys, torch.inf))
    return start.order[:, None].expand(-1, orders, -1).gather(2, by.argsort(2)).flatten(0, 1)


def count_accepted(
    model: AnySubsetModel, start: Infilling, here: Ranks, order: Tensor, own_p: Tensor, u: Tensor
) -> tuple[Tensor, Tensor]:
    """Places [B, N_o, W] of the ranks in each order, and how many drafts [B, N_o] it accepts before it rejects one.

    start.tokens hold the drafts; order [B N_o, N]; by position own_p [B, N] the probability a draft was drawn with, u
    [B, N] uniform.
    """
    B, orders = len(u), len(order) // len(u)

    def rows(x: Tensor) -> Tensor:
        return x.repeat_interleave(orders, 0)

    line = rows(start.tokens)
    q = model.laws(line, order, rows(start.begin), rows(here.asked), rows(here.rank))
    where = order.gather(1, rows(here.rank).clamp(max=order.shape[1] - 1))  # [B N_o, W]
    own_q = probability(q, line.gather(1, where))
    accepted = (rows(u).gather(1, where) * rows(own_p).gather(1, where) < own_q) & rows(here.open)
    return where.view(B, orders, -1), count_leading(accepted).view(B, orders)


@torch.inference_mode()
def sigma_gpt(
    model: AnySubsetModel,
    start: Infilling,
    *,
    noise: Noise,
    orders: Annotated[int, Field(ge=1, le=64), Counts("passes", small=4)] = 4,
) -> Iterator[Fill]:
    """Each loop drafts all that is missing, verifies it under several random orders at once, and keeps what the best
    order accepts.

    orders  N_o, random orders a loop. Laid side by side in one batch, they are still N_o evaluations of the row, and
            counted so.

    What is accepted joins the prompt; what is rejected is dropped, not resampled.
    """
    tokens, (B, N), device = start.tokens, start.tokens.shape, start.tokens.device
    known, place = tokens != model.mask, torch.arange(N, device=device)
    for step in count():
        order, begin, end = lattice(known, start.end)
        first, most = torch.stack([begin.min(), (end - begin).max()]).tolist()
        if most <= 0:
            return
        now = Infilling(tokens, order, begin, end)
        here = ranks(now, begin, N - first)
        index = step * N + here.position
        p = model.laws(tokens, order, begin, here.asked, begin[:, None].expand_as(here.rank))
        draft = race(p, noise.exponential("draft", index, model.vocab))
        line = write(tokens, here.position, draft, here.open)
        own_p = write(p.new_zeros(B, N), here.position, probability(p, draft), here.open)

        keys = noise.exponential("branch", step * orders + torch.arange(orders, device=device)[None], N)
        u = noise.uniform("accept", step * N + place.expand(B, N))
        places, accepted = count_accepted(model, now._replace(tokens=line), here, shuffle_orders(now, keys), own_p, u)
        best = accepted.argmax(1, keepdim=True)
        where = places.gather(1, best[..., None].expand(-1, 1, places.shape[2]))[:, 0]
        final = (place[: where.shape[1]] < accepted.gather(1, best)) & here.open
        new = line.gather(1, where)
        yield Fill(where, new, final, (1 + orders) * (begin < end).long(), accepted_drafts=final.sum(1))
        tokens, known = write(tokens, where, new, final), write(known, where, final, final)
