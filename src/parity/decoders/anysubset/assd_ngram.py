"""Any-Subset Speculative Decoding with context bigrams as the drafter: one pass a loop, and a table look-up."""

from collections.abc import Iterator
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from parity.base.noise import Noise
from parity.decoders.steps import Fill
from parity.decoders.verification import race, verify
from parity.models.anysubset.protocol import AnySubsetModel, Infilling, write

CLAIM = "lossless"
SLOTS = True
SOURCE = "Guo & Ermon 2025, Algorithm 2 in Algorithm 1 (appendix E.4)"


def bigram_laws(tokens: Tensor, before: Tensor, mask: int, vocab: int, dtype: torch.dtype) -> Tensor:
    """c(. | before [B]) [B, V], from the neighbouring known tokens of each row of tokens [B, N] (Eq. 23).

    Eq. 23 divides by every occurrence of `before`, also those whose neighbour is unknown, and so is no law; here the counts are
    normalised. Where `before` is unknown or has no known neighbour, the counts of single tokens serve; in an empty row, all alike.
    """
    after, known = tokens[:, 1:], tokens != mask
    ones = torch.ones((), dtype=dtype, device=tokens.device)
    pairs = torch.zeros(len(tokens), vocab, dtype=dtype, device=tokens.device)
    pairs.scatter_add_(
        1, after, ones * ((tokens[:, :-1] == before[:, None]) & (before != mask)[:, None] & known[:, 1:])
    )
    single = torch.zeros_like(pairs).scatter_add_(1, tokens, ones * known)
    even = torch.ones_like(pairs)
    even[:, mask] = 0
    single = torch.where(single.sum(1, keepdim=True) > 0, single, even)
    counts = torch.where(pairs.sum(1, keepdim=True) > 0, pairs, single)
    return counts / counts.sum(1, keepdim=True)


@torch.inference_mode()
def assd_ngram(
    model: AnySubsetModel, start: Infilling, *, noise: Noise, k: Annotated[int, Field(ge=2, le=64)] = 5
) -> Iterator[Fill]:
    """Each loop drafts k tokens by bigrams of the text so far, each after the one to its left, and verifies all of them in one pass.

    k  tokens drafted per loop, in one auxiliary call

    A first draft may be rejected (there is no Lemma 1), so calls of model and drafter together may exceed the number of tokens; those
    of the model alone cannot, for every loop keeps one.
    """
    tokens, order, begin, end = start.tokens, start.order, start.begin, start.end
    N, n = tokens.shape[1], start.begin.clone()
    slot = torch.arange(k, device=tokens.device)
    while bool((n < end).any()):
        rank = n[:, None] + slot  # [B, k]
        open_ = rank < end[:, None]
        position = order.gather(1, rank.clamp(max=N - 1))
        index = n[:, None] * N + rank
        race_draft = noise.exponential("draft", index, model.vocab)
        line, laws, drafts = tokens, [], []
        for j in range(k):
            at = position[:, j : j + 1]
            left = torch.where(at > 0, line.gather(1, (at - 1).clamp(min=0)), model.mask)[:, 0]
            laws.append(bigram_laws(tokens, left, model.mask, model.vocab, noise.dtype))
            drafts.append(race(laws[j], race_draft[:, j]))
            line = write(line, at, drafts[j][:, None], open_[:, j : j + 1])
        draft, c = torch.stack(drafts, 1), torch.stack(laws, 1)
        q = model.laws(line, order, begin, torch.where(open_, rank, N), rank)
        u, exponential = noise.uniform("accept", index), noise.exponential("sample", index, model.vocab)
        new, kept = verify(q, c.to(q.dtype), draft, torch.zeros_like(open_), u, exponential)
        kept = kept.minimum(end - n)
        final = slot < kept[:, None]
        yield Fill(position, new, final, (n < end).long(), (n < end).long())

        tokens = write(tokens, position, new, final)
        n = n + kept
