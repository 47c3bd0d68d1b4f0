"""VVS: a drafter's tree of which some are taken without being verified, and post-verification that mends what the target missed."""

from collections.abc import Iterator
from itertools import count
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import normalize, one_hot

from parity.base.noise import Noise
from parity.decoders.candidates import Candidates, dynamic, leaves, path_to, read_on
from parity.decoders.steps import Step
from parity.decoders.verification import descend, look_alikes, race
from parity.models.discrete.protocol import DraftedModel
from parity.models.discrete.trees import ancestors

CLAIM = "lossy"
NEEDS = "drafter"
SOURCE = "Dong et al. 2025 (VVS), sec. 4, Alg. 1 and 2"


def similarity(tree: Candidates, codes: Tensor, depth: int, decay: float, stride: int) -> Tensor:
    """Eq. 2: how alike the candidate sequences are, [B]. At each depth the mean cosine of the codes [V, D] of every two sequences that reach
    it (of every `stride`-th sequence: Alg. 1), averaged over depths with weights decay^depth."""
    leaf = leaves(tree)
    chosen = leaf & ((leaf.cumsum(1) - 1) % stride == 0)
    weight = (chosen[:, None].to(codes.dtype) @ ancestors(tree.parents).to(codes.dtype))[
        :, 0
    ]  # [B, T] chosen sequences through a node
    at = one_hot(tree.depth - 1, depth).to(codes.dtype) * weight[..., None]  # [B, T, D]
    n = at.sum(1)  # [B, depth] sequences that reach it
    # the cosines of all ordered pairs at once, those of a sequence with itself included
    total = (at.transpose(1, 2) @ normalize(codes[tree.tokens], dim=-1)).square().sum(-1)
    mean = torch.where(n > 1, (total - n) / (n * (n - 1)).clamp(min=1), 1.0)
    w = torch.where(n > 0, decay ** torch.arange(depth, device=n.device), 0)
    return (w * mean).sum(1) / w.sum(1)


@torch.inference_mode()
def vvs(
    model: DraftedModel,
    start: Tensor,
    *,
    noise: Noise,
    total: Annotated[int, Field(ge=1, le=1024)] = 59,
    depth: Annotated[int, Field(ge=1, le=16)] = 4,
    top_k: Annotated[int, Field(ge=1, le=64)] = 10,
    k: Annotated[int, Field(ge=1, le=65536)] = 100,
    delta: Annotated[float, Field(ge=0, le=1)] = 0.2,
    schedule: Literal["uniform", "dynamic", "off"] = "uniform",
    interval: Annotated[int, Field(ge=2, le=4096)] = 4,
    threshold: Annotated[float, Field(ge=-1, le=1)] = 0.7,
    decay: Annotated[float, Field(gt=0, le=1)] = 0.9,
    stride: Annotated[int, Field(ge=1, le=64)] = 2,
    select: Literal["sample", "confidence"] = "sample",
    truncate: bool = True,
    s1: Annotated[int, Field(ge=-1, le=64)] = -1,
    s2: Annotated[int, Field(ge=-1, le=64)] = 0,
    blend: bool = False,
    replace: Annotated[float, Field(ge=0, le=1)] = 0.0,
) -> Iterator[Step]:
    """`lantern` (delta 0: `eagle`) that skips verifications. A skipped step and the verified one that must follow it are one pass of the target:
    it reads the tokens taken unverified and, behind them, the next tree. So every position's keys and values are exact after the pass.

    total, depth, top_k, k, delta  as in `lantern`
    schedule   "uniform": every `interval`-th step is not verified; "dynamic": a step whose candidates are alike by at least `threshold` is not
    decay, stride  of the similarity: weight of each further token; every stride-th sequence is looked at
    select     of the candidate sequences take one at random ("sample") or the likeliest ("confidence")
    truncate   to the mean length of the sequences (eq. 1)
    s1, s2     features for drafting after a verified step and after a skipped one: -1 fresh; 0 the last ones known before the step; n: n
               positions older. A skipped step has no fresh ones.
    blend      s1 and s2 take turns by pass, whatever was verified (the paper's table 6)
    replace    r, share of verified steps whose accepted tokens are replaced by as many of the likeliest sequence (table 4)
    """
    B, L, V, device = len(start), model.length, model.vocab, start.device
    drafter, near, K = model.drafter, look_alikes(model.codebook, k), min(top_k, V)
    G, slot, rows = (
        (0 if schedule == "off" else depth),
        torch.arange(depth + 1, device=device),
        torch.arange(B, device=device)[:, None],
    )
    chain = torch.arange(G + 1, device=device).expand(B, -1)  # the last final token, then those taken unverified
    line = torch.zeros(
        B, L + 2 * depth + 4, dtype=start.dtype, device=device
    )  # the token at position i is line[:, i + 1]
    line[:, 0] = start
    at, first = torch.zeros_like(start), torch.zeros_like(start)  # [B] first open position, and that of the pass before

    def draft(begin: Tensor, end: Tensor, stale: Tensor) -> Candidates:
        """A tree behind position end - 1, after the drafter has read the tokens from `begin` on; stale [B]: -1, or how much older the features."""
        older = torch.where(stale < 0, 0, end - begin + stale)[:, None]
        return dynamic(drafter, read_on(drafter, line, begin, end, G + depth + 1, older), end - 1, total, depth, top_k)

    for step in count():
        if int(at.min()) >= L:
            return
        g, tokens, parents, offset = torch.zeros_like(at), line.gather(1, at[:, None]), chain[:, :1] - 1, chain[:, :1]
        if step:  # before there is a feature nothing can be drafted
            verified = s2 if blend and step % 2 == 0 else s1
            tree = draft(first, at, torch.full_like(at, verified))
            if schedule == "dynamic":
                skip = similarity(tree, model.codebook, depth, decay, stride) >= threshold
            else:
                skip = torch.full_like(at, schedule == "uniform" and step % (interval - 1) == 0, dtype=torch.bool)
            if skip.any():
                leaf = leaves(tree)
                if select == "confidence":
                    end = torch.where(leaf, tree.score, -torch.inf).argmax(1)
                else:
                    u = noise.uniform("branch", torch.full_like(at, 2 * step))
                    end = (leaf.cumsum(1) <= (u * leaf.sum(1)).long()[:, None]).sum(1).clamp(max=leaf.shape[1] - 1)
                path = path_to(tree, end, depth)
                mean = (
                    (torch.where(leaf, tree.depth, 0).sum(1) // leaf.sum(1)) if truncate else torch.full_like(at, depth)
                )
                # the image's last token is always verified
                g = torch.where(skip, (path >= 0).sum(1).minimum(mean).minimum(L - 1 - at).clamp(min=0), 0)
                taken = torch.where(slot[:-1] < g[:, None], tree.tokens.gather(1, path.clamp(min=0)), 0)
                line.scatter_(1, at[:, None] + 1 + slot[:-1], taken)
                again = draft(at, at + g, torch.full_like(at, max(s2, 0)))
                tree = Candidates(
                    *(torch.where((g > 0)[:, None], new, old) for new, old in zip(again, tree, strict=True))
                )
            read = at[:, None] + chain
            on = chain <= g[:, None]
            tokens = torch.cat([line.gather(1, read), tree.tokens], 1)
            parents = torch.cat(
                [torch.where(on, chain - 1, -1), torch.where(tree.parents < 0, g[:, None], tree.parents + G + 1)], 1
            )
            offset = torch.cat([torch.where(on, chain, 0), tree.depth + g[:, None]], 1)
        positions = at[:, None] - 1 + offset
        p = model.tree(tokens, positions, parents).softmax(-1)
        open_ = at + g  # [B] the first position that is decided here
        where = open_[:, None] + slot
        e = noise.exponential("sample", where, V)
        u = noise.uniform("accept", where[:, :-1, None] * K + torch.arange(K, device=device))
        path, found = descend(p, tokens, parents, g, e, u, near, delta, "counted")
        if replace and step:
            swap = noise.uniform("branch", torch.full_like(at, 2 * step + 1)) < replace
            likeliest = path_to(tree, torch.where(leaves(tree), tree.score, -torch.inf).argmax(1), depth)
            n = ((path >= 0).sum(1) - 1).minimum((likeliest >= 0).sum(1))
            other = torch.cat([g[:, None], torch.where(slot[:-1] < n[:, None], likeliest + G + 1, -1)], 1)
            last = other.gather(1, n[:, None])
            behind = race(p[rows, last], e.gather(1, n[:, None, None].expand(-1, 1, V)))
            instead = torch.cat([tokens.gather(1, other[:, 1:].clamp(min=0)), behind], 1).scatter(1, n[:, None], behind)
            path, found = torch.where(swap[:, None], other, path), torch.where(swap[:, None], instead, found)
        line.scatter_(1, where + 1, found)
        kept = (g + (path >= 0).sum(1)).minimum(L - at)
        model.keep(torch.cat([torch.where(chain < g[:, None], chain, -1), path], 1))
        final = line.gather(
            1, (at[:, None] + 1 + torch.arange(G + depth + 1, device=device)).clamp(max=line.shape[1] - 1)
        )
        real = (positions < L - 1) & (torch.arange(tokens.shape[1], device=device) - (G + 1 if step else 1) >= 0)
        yield Step(final, kept, at, (real.sum(1) + g + 1) if step else torch.ones_like(at))
        first, at = at, at + kept
