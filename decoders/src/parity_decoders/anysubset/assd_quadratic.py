"""Any-subset speculative decoding in one pass a loop: the pass that verifies the drafts also computes the distributions
of the next ones, for every place at which the drafts may fail."""

from collections.abc import Iterator
from typing import Annotated

import torch
from annotated_types import Interval
from torch import Tensor
from torch.nn.functional import pad

from parity_decoders.counts import Counts
from parity_decoders.noise import Noise
from parity_decoders.protocols.anysubset import AnySubsetModel, Infilling, next_ranks, write
from parity_decoders.steps import Fill
from parity_decoders.verification import sample_token, verify

CLAIM = "lossless"
ORIGIN = "project"
SLOTS = True
SOURCE = "this project, 2026: Guo & Ermon 2025, Algorithm 1, with the quadratic decoding of Samragh et al. 2025"


def compute_square(model: AnySubsetModel, line: Tensor, start: Infilling, n: Tensor, drafts: int, k: int) -> Tensor:
    """Compute distributions [B, drafts + 1, k + 1, V] in one pass over a line [B, N] that holds `drafts` drafts from
    rank n [B] on: at [j, i] the distribution of rank n + j + i, given the ranks below n + j."""
    j, i = (torch.arange(size + 1, device=n.device) for size in (drafts, k))
    n_seen = (n[:, None, None] + j[:, None]).expand(-1, -1, k + 1)
    queried = torch.where(n_seen + i < start.end[:, None, None], n_seen + i, line.shape[1])
    probs = model.probs(line, start.order, start.begin, queried.flatten(1), n_seen.flatten(1))
    return probs.unflatten(1, (drafts + 1, k + 1))


@torch.inference_mode()
def assd_quadratic(
    model: AnySubsetModel,
    start: Infilling,
    *,
    noise: Noise,
    k: Annotated[int, Interval(ge=1, le=16), Counts("positions", small=3)] = 3,
    temperature: Annotated[float, Interval(gt=0, le=100)] = 0.6,
) -> Iterator[Fill]:
    """Verify k drafts per pass left to right and draw the word after the accepted ones. The next k drafts are drawn
    from distributions of the same pass, given all words but this last one.

    k            drafts per pass, which computes (k + 1)^2 distributions
    temperature  of the distributions that drafts are drawn from: below 1 likely words are drafted more often. Drafts
                 are verified against these distributions, so the distribution of the text is the same at any
                 temperature

    The first pass has no drafts. Each pass keeps at least one word, so no row needs more passes than it has tokens
    (Theorem 1).
    """
    tokens = start.tokens
    n = start.begin
    N = start.tokens.shape[1]
    V = model.vocab
    row, slot = (torch.arange(size, device=n.device) for size in (len(n), k + 1))
    draft = tokens[:, :0]
    q = torch.zeros(len(n), 0, V, dtype=torch.float32, device=n.device)
    while bool((n < start.end).any()):
        drafts = draft.shape[1]
        remaining = start.end - n
        slots = next_ranks(start, n, drafts + 1)
        line = write(tokens, slots.position[:, :drafts], draft, slots.open[:, :drafts])
        probs = compute_square(model, line, start, n, drafts, k)
        index = n[:, None] * N + slots.rank
        no_draft = (slot[: drafts + 1] == drafts).expand_as(slots.rank)
        u, e = noise.uniform("accept", index), noise.exponential("sample", index, V)
        # The slot after the drafts has no draft: it counts as a point draft, which a draw from p replaces.
        new, n_kept = verify(probs[:, :, 0], pad(q, (0, 0, 0, 1)), pad(draft, (0, 1)), no_draft, u, e)
        accepted = n_kept - 1
        n_kept = n_kept.minimum(remaining)
        final = slot[: drafts + 1] < n_kept[:, None]
        yield Fill(slots.position, new, final, remaining.clamp(max=1), accepted_drafts=accepted.minimum(remaining))
        tokens = write(tokens, slots.position, new, final)
        n = n + n_kept
        q = (probs[row, accepted, 1:].log() / temperature).softmax(-1)
        index = n[:, None] * N + next_ranks(start, n, k).rank
        draft = sample_token(q, noise.exponential("draft", index, V))
