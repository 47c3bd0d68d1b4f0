"""Token-based rejection sampling over several random orders, without resampling: the control that should fail."""

from collections.abc import Iterator
from itertools import count
from typing import Annotated

import torch
from annotated_types import Interval
from torch import Tensor

from parity_decoders.counts import Counts
from parity_decoders.noise import Noise
from parity_decoders.protocols.anysubset import AnySubsetModel, Infilling, Ranks, make_lattice, next_ranks, write
from parity_decoders.steps import Fill
from parity_decoders.verification import count_leading, probability, sample_token

CLAIM = "lossless"
CONTROL = True
SOURCE = "Pannatier et al. 2024 as in Guo & Ermon 2025, Algorithm 3 (appendix I, which says why it is not lossless)"


def shuffle_orders(start: Infilling, keys: Tensor) -> Tensor:
    """Make N_o orders of each row, [B N_o, N]: its own order with the missing ranks sorted by random keys [B, N_o,
    N]."""
    N, orders = keys.shape[2], keys.shape[1]
    rank = torch.arange(N, device=keys.device)
    is_prompt, is_missing = (rank < end[:, None] for end in (start.begin, start.end))
    sort_keys = torch.where(
        is_prompt[:, None], rank.to(keys.dtype) / N - 1, torch.where(is_missing[:, None], keys, torch.inf)
    )
    return start.order[:, None].expand(-1, orders, -1).gather(2, sort_keys.argsort(2)).flatten(0, 1)


def count_accepted(
    model: AnySubsetModel, start: Infilling, slots: Ranks, order: Tensor, p_drafts: Tensor, u: Tensor
) -> tuple[Tensor, Tensor]:
    """Count how many drafts [B, N_o] each order accepts before it rejects one; also returns the positions [B, N_o, W]
    of the ranks in each order.

    start.tokens hold the drafts; order [B N_o, N]; p_drafts [B, N], by position, the probability that a draft was drawn
    with; u [B, N] uniform.
    """
    B = len(u)
    orders = len(order) // len(u)

    def repeat_orders(x: Tensor) -> Tensor:
        """Repeat each row of x [B, ...] for its orders, [B N_o, ...]."""
        return x.repeat_interleave(orders, 0)

    line = repeat_orders(start.tokens)
    q = model.probs(line, order, repeat_orders(start.begin), repeat_orders(slots.asked), repeat_orders(slots.rank))
    positions = order.gather(1, repeat_orders(slots.rank).clamp(max=order.shape[1] - 1))  # [B N_o, W]
    q_drafts = probability(q, line.gather(1, positions))
    accepted = (
        repeat_orders(u).gather(1, positions) * repeat_orders(p_drafts).gather(1, positions) < q_drafts
    ) & repeat_orders(slots.open)
    return positions.view(B, orders, -1), count_leading(accepted).view(B, orders)


@torch.inference_mode()
def sigma_gpt(
    model: AnySubsetModel,
    start: Infilling,
    *,
    noise: Noise,
    orders: Annotated[int, Interval(ge=1, le=64), Counts("passes", small=4)] = 4,
) -> Iterator[Fill]:
    """Draft all missing tokens per loop, verify them under several random orders at once, and keep what the best order
    accepts.

    orders  N_o, random orders a loop. Laid side by side in one batch, they are still N_o evaluations of the row, and
            counted so.

    What is accepted joins the prompt; what is rejected is dropped, not resampled.
    """
    tokens = start.tokens
    (B, N) = start.tokens.shape
    device = start.tokens.device
    is_known = tokens != model.mask
    position = torch.arange(N, device=device)
    for step in count():
        order, n_known, end = make_lattice(is_known, start.end)
        first, max_missing = torch.stack([n_known.min(), (end - n_known).max()]).tolist()
        if max_missing <= 0:
            return
        task = Infilling(tokens, order, n_known, end)
        slots = next_ranks(task, n_known, N - first)
        index = step * N + slots.position
        p = model.probs(tokens, order, n_known, slots.asked, n_known[:, None].expand_as(slots.rank))
        draft = sample_token(p, noise.exponential("draft", index, model.vocab))
        line = write(tokens, slots.position, draft, slots.open)
        p_drafts = write(p.new_zeros(B, N), slots.position, probability(p, draft), slots.open)

        keys = noise.exponential("branch", step * orders + torch.arange(orders, device=device)[None], N)
        u = noise.uniform("accept", step * N + position.expand(B, N))
        order_positions, accepted = count_accepted(
            model, task._replace(tokens=line), slots, shuffle_orders(task, keys), p_drafts, u
        )
        best = accepted.argmax(1, keepdim=True)
        positions = order_positions.gather(1, best[..., None].expand(-1, 1, order_positions.shape[2]))[:, 0]
        final = (position[: positions.shape[1]] < accepted.gather(1, best)) & slots.open
        new = line.gather(1, positions)
        yield Fill(positions, new, final, (1 + orders) * (n_known < end).long(), accepted_drafts=final.sum(1))
        tokens, is_known = write(tokens, positions, new, final), write(is_known, positions, final, final)
