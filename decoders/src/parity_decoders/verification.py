"""Accept or resample: what the decoders of image tokens and of text share.

Words, for a window of W positions:

    draft      the token proposed for a position before this pass; q is the distribution it was drawn from
    p          the target's distribution at the position, given the tokens that were fed (final ones, then drafts)
    accepted   a draft that is kept; the run of accepted drafts ends at the first rejection
    corrected  the token drawn instead of the first rejected draft
    fresh      tokens after the correction, drawn from p: the drafts of the next pass, with this p as their q

Accepted and corrected tokens are final, and their distribution is p. A fresh token's q is this p, never an older
distribution: published code that stores the old distribution of a kept token is measurably biased.
"""

from typing import NamedTuple

import torch
from torch import Tensor

SHARE = 4  # share of p in a residual, in eps


class Verified(NamedTuple):
    tokens: Tensor  # [B, W] accepted, corrected, then fresh
    kept: Tensor  # [B] how many of them are final: accepted ones and the correction


def sample_token(weights: Tensor, exponential: Tensor) -> Tensor:
    """Draw a token from unnormalised `weights` [..., V] by unit exponentials [..., V], an exponential race: the index
    of the largest weight / exponential, which is each index with probability in proportion to its weight. Zero weights
    never win."""
    return find_largest(weights / exponential)


def find_largest(x: Tensor) -> Tensor:
    """Find the index of the largest of x [..., V], the first of equals. On a CPU numpy is several times faster than
    torch."""
    if x.device.type != "cpu" or x.ndim < 2:
        return x.argmax(-1)
    return torch.from_numpy(x.numpy().argmax(-1))


def make_probs(logits: Tensor) -> Tensor:
    """Turn logits [..., V] into a distribution, in float32 at least: probabilities of bfloat16 have 8 bits, which draws
    and ratios would show."""
    return logits.softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))


def probability(probs: Tensor, tokens: Tensor) -> Tensor:
    """Gather the probabilities that probs [..., V] gives to tokens [...]."""
    return probs.gather(-1, tokens[..., None])[..., 0]


def is_idle_on_cpu(rows: Tensor) -> bool:
    """Return whether no row of `rows` [B] bool has work left. Checked on a CPU only, because reading a value from a GPU
    synchronises; a GPU and compiled code do the idle work, which changes no row."""
    return rows.device.type == "cpu" and not torch.compiler.is_compiling() and not bool(rows.any())


def count_leading(holds: Tensor) -> Tensor:
    """Count how many of [B, W] bool are true before the first false one, [B]."""
    return holds.cumprod(-1).sum(-1)


def residual(p: Tensor, q: Tensor) -> Tensor:
    """Compute max(0, p - q) [..., V], unnormalised (Leviathan et al. 2023, Alg. 1), and add a share of p, SHARE eps.

    Sums of rounded distributions differ by some eps, so drafts are rejected with this probability also where p and q
    differ in their last bits alone. What is left of p is then rounding on any tokens, such as one of probability 1e-12,
    and the share of p outweighs it.
    """
    return (p - q).clamp_(min=0).add_(p, alpha=SHARE * torch.finfo(p.dtype).eps)


def draw_correction(p: Tensor, q: Tensor, exponential: Tensor, slot: Tensor) -> Tensor:
    """Draw the token [B, 1] that replaces the draft of one slot [B, 1] of each row, from the residual of p and q [B, W,
    V]."""
    rows = slot[..., None].expand(-1, -1, p.shape[-1])
    return sample_token(residual(p.gather(1, rows), q.gather(1, rows)), exponential.gather(1, rows))


def verify(
    p: Tensor, q: Tensor, draft: Tensor, point: Tensor, u: Tensor, exponential: Tensor, tolerance: float = 0.0
) -> Verified:
    """Accept or resample the drafts of every row (Leviathan et al. 2023, Alg. 1; SJD sec. 4.1, eqs. 1 to 3).

    p, q         [B, W, V] target and draft distributions, float
    draft        [B, W]    draft ~ q
    point        [B, W]    bool: q is a point mass at the draft, and the q passed is not read
    u            [B, W]    uniform
    exponential  [B, W, V] unit exponentials

    A draft is accepted if u q(draft) < p(draft). A point draft is accepted if a draw from p equals it, which also has
    probability p(draft); a miss is then already the residual's draw. So a window of one is plain sampling, token for
    token. `tolerance` > 0 is the naive lossy relaxation: it is added to every acceptance probability, except where p =
    0, which could break the grammar.
    """
    fresh = sample_token(p, exponential)
    own_p, own_q = probability(p, draft), probability(q, draft)
    hit, likely = fresh == draft, u * own_q < own_p  # strict, so that p = 0 is never accepted, and no 0 / 0 occurs
    if tolerance:  # a share of the misses raises the acceptance probability by the tolerance
        hit = hit | (u * (1 - own_p) < tolerance)
        likely = u * own_q < own_p + tolerance * own_q
        hit, likely = (x & (own_p > 0) for x in (hit, likely))
    accepted = torch.where(point, hit, likely)
    return finish(p, q, draft, point, accepted, fresh, exponential)


def finish(
    p: Tensor, q: Tensor, draft: Tensor, point: Tensor, accepted: Tensor, fresh: Tensor, exponential: Tensor
) -> Verified:
    """Assemble the tokens of a pass from the decisions `accepted` [B, W]: the accepted drafts, the correction of the
    first rejected one (drawn from the residual of p and q, for a point draft its `fresh` token), then `fresh` [B, W].
    Shapes as in `verify`."""
    accepted_prefix = accepted.cumprod(-1)  # 1 before the first rejected draft
    # the slot of the first rejected draft, or the last slot if all are accepted
    first = accepted_prefix.sum(-1, keepdim=True).clamp(max=draft.shape[1] - 1)
    corrected = draw_correction(p, q, exponential, first)
    corrected = torch.where(point.gather(1, first), fresh.gather(1, first), corrected)
    tokens = torch.where(accepted_prefix > 0, draft, fresh.scatter(1, first, corrected))
    return Verified(tokens, first[:, 0] + 1)


def accept_block(p: Tensor, q: Tensor, draft: Tensor, bonus: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """Decide which drafts [B, W] are accepted by block verification (Sun et al. 2024, Alg. 2). Also returns scaled
    distributions [B, W, V], whose surplus over q corrects the first rejected draft.

    Shapes as in `verify`; bonus [B, W] marks slots without a draft. Drafts are accepted up to the longest run that
    passes, even if a shorter one fails. The test looks ahead, so drafts after a rejection must be drawn anew.
    """
    W = draft.shape[1]
    ratio = probability(p, draft).double() / probability(q, draft)
    weight = [torch.ones_like(ratio[:, 0])]
    for i in range(W - 1):
        weight.append((weight[-1] * ratio[:, i]).clamp(max=1))
    w = torch.stack(weight, 1)  # [B, W] of the drafts before a slot: min(1, p / q), one after the other
    scaled = w[..., None].to(p.dtype) * p
    surplus = (scaled - q).clamp_(min=0).sum(-1)
    stands = torch.where(bonus | (w == 1), w, surplus / (surplus + 1 - w))
    slot = torch.arange(1, W, device=u.device)
    length = torch.where((u[:, :-1] < stands[:, 1:]) & ~bonus[:, :-1], slot, 0)
    longest = torch.cat([torch.zeros_like(draft[:, :1]), length], 1).amax(1, keepdim=True)
    return torch.arange(W, device=u.device) < longest, scaled


def transport(
    p: Tensor, q: Tensor, draft: Tensor, point: Tensor, u: Tensor, exponential: Tensor
) -> tuple[Tensor, Tensor]:
    """Move every draft [B, W] from its distribution q to p by maximal coupling, also after a rejection (MC-SJD): it is
    kept with probability min(1, p / q), else redrawn from the residual. A point draft is replaced by a draw from p.
    Returns the tokens, and [B, W] bool which drafts stayed. Shapes as in `verify`, with or without the slots."""
    stays = ~point & (u * probability(q, draft) < probability(p, draft))
    drawn = torch.where(point, sample_token(p, exponential), sample_token(residual(p, q), exponential))
    return torch.where(stays, draft, drawn), stays


def normalize(weights: Tensor) -> Tensor:
    """Scale weights [..., V] to sum to one."""
    return weights / weights.sum(-1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)


def find_nearest_tokens(vectors: Tensor, k: int) -> Tensor:
    """Find the k nearest other tokens of each token, nearest first: vectors [V, D] to tokens [V, min(k, V - 1)]."""
    k = min(k, len(vectors) - 1)
    vectors = vectors.to(torch.promote_types(vectors.dtype, torch.float32))  # cdist knows no bfloat16
    rows = torch.arange(len(vectors), device=vectors.device).split(2048)  # 16,384 squared would be a gigabyte
    distances = (torch.cdist(vectors[r], vectors).scatter(1, r[:, None], torch.inf) for r in rows)
    return torch.cat([x.topk(k, largest=False).indices for x in distances])


def relax_probs(p: Tensor, v: Tensor, nearest_tokens: Tensor, budget: Tensor | float) -> tuple[Tensor, Tensor]:
    """Add to candidates the probability of tokens that look like them (LANTERN: Jang et al. 2024, sec. 4.2).

    p [B, V]; v [B, 1] candidates; nearest_tokens [B, k], nearest first; budget [B, 1]: the probability that nearest
    tokens may add. Returns the mass [B] of the candidate and the nearest tokens that count (the longest run from the
    first within the budget), and p [B, V] without the nearest tokens that count.
    """
    mass = p.gather(1, nearest_tokens)
    counts = mass.cumsum(1) <= budget
    return (p.gather(1, v) + (mass * counts).sum(1, keepdim=True))[:, 0], p.scatter(
        1, nearest_tokens, torch.where(counts, 0, mass)
    )


def verify_siblings(
    p: Tensor,
    q: Tensor,
    candidates: Tensor,
    valid: Tensor,
    point: Tensor,
    u: Tensor,
    exponential: Tensor,
    nearest_tokens: Tensor | None = None,
    relax: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Accept one of K sibling candidates or draw another token: token [B] and rank [B] of the accepted candidate, -1
    for a token drawn from the remainder of p.

    p, q [B, V]; candidates [B, K], drawn from q one after the other without replacement; valid [B, K] is false where q
    was exhausted; point [B]: q is a point mass at the first; u [B, K]. Each candidate is tested against what its elder
    siblings left of p and of q (Leviathan et al. 2023, Alg. 1, as in recursive rejection sampling), so the token's
    distribution is p. With nearest_tokens [V, k], p is relaxed at each candidate v by up to relax * p(v).
    """
    drawn = sample_token(p, exponential)
    token = drawn
    rank = torch.full_like(candidates[:, 0], -1)
    for k in range(candidates.shape[1]):
        v = candidates[:, k : k + 1]
        if nearest_tokens is not None:
            mass, rest = relax_probs(p, v, nearest_tokens[v[:, 0]], relax * p.gather(1, v))
            p = torch.where(valid[:, k : k + 1], rest.scatter(1, v, mass[:, None]), p)
        likely = u[:, k] * q.gather(-1, v)[:, 0] < p.gather(-1, v)[:, 0]
        accepted = torch.where(point, drawn == v[:, 0], likely) if k == 0 else likely & ~point
        accepted &= valid[:, k] & (rank < 0)
        rank, token = torch.where(accepted, k, rank), torch.where(accepted, v[:, 0], token)
        undecided = (rank < 0) & ~point
        if is_idle_on_cpu(undecided):
            break
        tried = (valid[:, k] & undecided)[:, None]
        p = torch.where(tried, normalize(residual(p, q)), p)
        if k + 1 < candidates.shape[1]:
            q = torch.where(tried, normalize(q.scatter(-1, v, 0)), q)
    return torch.where(rank < 0, sample_token(p, exponential), token), rank


class Descent(NamedTuple):
    path: Tensor  # [B, D + 1] nodes whose tokens are accepted, the root first; padded with -1
    tokens: Tensor  # [B, D + 1] the tokens of the path without its root, the one drawn after it, then arbitrary ones


def descend(
    p: Tensor,
    tokens: Tensor,
    parents: Tensor,
    root: Tensor,
    exponential: Tensor,
    u: Tensor,
    nearest_tokens: Tensor,
    delta: float,
    reject: str,
) -> Descent:
    """Descend a tree of candidates, trying siblings in the order of their nodes (LANTERN: Jang et al. 2024, Alg. 1).

    p [B, S, V] the distributions after the nodes; tokens, parents [B, S]; root [B] the node of the last final token;
    exponential [B, D + 1, V] and u [B, D, K] of the positions after it, K the most children of a node; nearest_tokens
    [V, k].

    A candidate is accepted with the probability that p gives to it and its nearest tokens within `delta`: if a draw
    from p equals it, or, if not, with the probability that the nearest tokens add. A rejected candidate removes from p
    the nearest tokens that counted ("counted"), or all k ("all", as released, with the uniform distribution if no mass
    remains). With delta 0 the tokens are the draws from p.
    """
    S = parents.shape[1]
    rows, nodes = torch.arange(len(p), device=p.device), torch.arange(S, device=p.device)
    node = root
    descending = torch.ones_like(root, dtype=torch.bool)
    path = [root]
    draws = []
    D = u.shape[1]
    for d in range(D + 1):
        probs = p[rows, node]
        drawn = sample_token(probs, exponential[:, d])
        if d == D:
            draws.append(drawn)
            break
        children = torch.where(parents == node[:, None], nodes, S).topk(min(u.shape[2], S), largest=False).values
        child = torch.full_like(node, -1)
        for k in range(children.shape[1]):
            tried = descending & (child < 0) & (children[:, k] < S)
            if is_idle_on_cpu(tried):
                break
            v = tokens.gather(1, children[:, k : k + 1].clamp(max=S - 1))
            similar = nearest_tokens[v[:, 0]]
            p_v = probs.gather(1, v)[:, 0]
            (mass, rest) = relax_probs(probs, v, similar, delta)
            accepted = tried & ((drawn == v[:, 0]) | (u[:, d, k] * (1 - p_v) < mass - p_v))
            child = torch.where(accepted, children[:, k], child)
            rejected = tried & ~accepted
            if is_idle_on_cpu(rejected):
                continue
            if reject == "all":
                rest = probs.scatter(1, similar, 0)
            rest = rest.scatter(1, v, 0)
            has_rest = rest.sum(1, keepdim=True) > 0
            rest = torch.where(has_rest, normalize(rest), 1 / probs.shape[1] if reject == "all" else probs)
            probs = torch.where(rejected[:, None], rest, probs)
            drawn = torch.where(rejected, sample_token(probs, exponential[:, d]), drawn)
        continues = child >= 0
        draws.append(torch.where(continues, tokens.gather(1, child.clamp(min=0)[:, None])[:, 0], drawn))
        descending = descending & continues
        node = torch.where(continues, child, node)
        path.append(torch.where(descending, node, -1))
    return Descent(torch.stack(path, 1), torch.stack(draws, 1))


race, make_law = sample_token, make_probs  # deprecated
