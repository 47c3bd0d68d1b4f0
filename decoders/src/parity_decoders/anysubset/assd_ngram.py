"""Any-Subset Speculative Decoding with context bigrams as the drafter: one pass a loop, and a table look-up."""

from collections.abc import Iterator
from typing import Annotated

import torch
from annotated_types import Interval
from torch import Tensor

from parity_decoders.counts import Counts
from parity_decoders.noise import Noise
from parity_decoders.protocols.anysubset import AnySubsetModel, Infilling, Ranks, next_ranks, write
from parity_decoders.steps import Fill
from parity_decoders.verification import sample_token, verify

CLAIM = "lossless"
SLOTS = True
SOURCE = "Guo & Ermon 2025, Algorithm 2 in Algorithm 1 (appendix E.4)"


def estimate_bigrams(tokens: Tensor, previous: Tensor, mask: int, vocab: int, dtype: torch.dtype) -> Tensor:
    """Estimate the distribution [B, V] of the token after `previous` [B] from the neighbouring known tokens of each row
    of tokens [B, N] (Eq. 23).

    Eq. 23 divides by every occurrence of `previous`, also those whose neighbour is unknown, so it does not sum to one;
    here the counts are normalised. Where `previous` is unknown or has no known neighbour, counts of single tokens are
    used; in an empty row, the uniform distribution.
    """
    following = tokens[:, 1:]
    is_known = tokens != mask
    ones = torch.ones((), dtype=dtype, device=tokens.device)
    pairs = torch.zeros(len(tokens), vocab, dtype=dtype, device=tokens.device)
    follows = (tokens[:, :-1] == previous[:, None]) & (previous != mask)[:, None] & is_known[:, 1:]
    pairs.scatter_add_(1, following, ones * follows)
    single = torch.zeros_like(pairs).scatter_add_(1, tokens, ones * is_known)
    even = torch.ones_like(pairs)
    even[:, mask] = 0
    single = torch.where(single.sum(1, keepdim=True) > 0, single, even)
    counts = torch.where(pairs.sum(1, keepdim=True) > 0, pairs, single)
    return counts / counts.sum(1, keepdim=True)


def propose(model: AnySubsetModel, tokens: Tensor, slots: Ranks, exponential: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Draft the tokens of the ranks in `slots` one by one, by the bigrams of tokens [B, N], each after the token to its
    left, a draft or not. Returns drafts [B, k], the distributions [B, k, V] they were drawn from, and tokens with the
    drafts written in."""
    line = tokens
    probs = []
    drafts = []
    for j in range(slots.rank.shape[1]):
        position = slots.position[:, j : j + 1]
        left_token = torch.where(position > 0, line.gather(1, (position - 1).clamp(min=0)), model.mask)[:, 0]
        probs.append(estimate_bigrams(tokens, left_token, model.mask, model.vocab, exponential.dtype))
        drafts.append(sample_token(probs[j], exponential[:, j]))
        line = write(line, position, drafts[j][:, None], slots.open[:, j : j + 1])
    return torch.stack(drafts, 1), torch.stack(probs, 1), line


@torch.inference_mode()
def assd_ngram(
    model: AnySubsetModel,
    start: Infilling,
    *,
    noise: Noise,
    k: Annotated[int, Interval(ge=2, le=64), Counts("positions", small=3)] = 5,
) -> Iterator[Fill]:
    """Draft k tokens per loop by bigrams of the text so far, each after the one to its left; verify them in one pass.

    k  tokens drafted per loop, in one auxiliary call

    A first draft may be rejected (Lemma 1 does not hold), so calls of model and drafter together may exceed the number
    of tokens. Calls of the model alone cannot, because every loop keeps one token.
    """
    tokens = start.tokens
    n = start.begin
    N = start.tokens.shape[1]
    slot = torch.arange(k, device=tokens.device)
    while bool((n < start.end).any()):
        remaining = start.end - n
        slots = next_ranks(start, n, k)
        index = n[:, None] * N + slots.rank
        draft, c, line = propose(model, tokens, slots, noise.exponential("draft", index, model.vocab))
        q = model.probs(line, start.order, start.begin, slots.asked, slots.rank)
        u, e = noise.uniform("accept", index), noise.exponential("sample", index, model.vocab)
        new, n_kept = verify(q, c.to(q.dtype), draft, torch.zeros_like(slots.open), u, e)
        n_kept = n_kept.minimum(remaining)
        one_call = remaining.clamp(max=1)
        final = slot < n_kept[:, None]
        accepted = (final & (new == draft)).sum(1)  # a correction hardly ever equals the draft
        yield Fill(slots.position, new, final, one_call, one_call, accepted)
        tokens = write(tokens, slots.position, new, final)
        n = n + n_kept
