"""Verifiers of speculative sampling, vectorised: correct ones to compare with, and injected faults that must be found.

chain, block, sample_and_match    (draft_tokens [n, K], draft_probs [n, K, V], target_probs [n, K + 1, V], rng)
tree                              (tokens [N], parents [N], draft_probs [N, V], target_probs [N + 1, V], rng)

A batch returns tokens [n, K + 1] with -1 after the last one, a tree the tokens of one row. `FAULTS` and `CORRECT` name
each with the shape that `certify_verifier` takes.
"""

from functools import partial
from typing import Any

import numpy as np

TINY = 1e-300


def draw_tokens(weights: np.ndarray, rng: np.random.Generator, normalise: bool = True) -> np.ndarray:
    """Draw tokens [...] from weights [..., V]; `normalise=False` takes them as probabilities (an injected fault)."""
    total = weights.cumsum(-1)
    if normalise:
        total = total / np.maximum(total[..., -1:], TINY)
    return np.minimum((rng.random(weights.shape[:-1])[..., None] >= total).sum(-1), weights.shape[-1] - 1)


def gather_tokens(probs: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """Gather the probabilities of tokens [...] from probs [..., V]."""
    return np.take_along_axis(probs, tokens[..., None], -1)[..., 0]


def join_accepted(tokens: np.ndarray, accepted: np.ndarray, final: np.ndarray) -> np.ndarray:
    """Join the first accepted[i] drafts of tokens [n, K] and the token final[i] of each row i: [n, K + 1], then -1."""
    n, K = tokens.shape
    out = np.concatenate([np.where(np.arange(K) < accepted[:, None], tokens, -1), np.full((n, 1), -1)], 1)
    out[np.arange(n), accepted] = final
    return out


def chain(tokens: np.ndarray, q: np.ndarray, p: np.ndarray, rng: np.random.Generator, fault: str = "") -> np.ndarray:
    """Verify drafts by speculative sampling (Leviathan et al. 2023; Chen et al. 2023); fault: "" or of CHAIN_FAULTS."""
    n, K = tokens.shape
    rows = np.arange(n)
    if fault == "greedy drafts, soft distributions":
        q = 0.6 * q + 0.4 / q.shape[-1]
    u = np.repeat(rng.random((n, 1)), K, 1) if fault == "one uniform" else rng.random((n, K))
    p_x = gather_tokens(p[:, :K], tokens)
    q_x = gather_tokens(q, tokens)
    if fault == "p and q swapped":
        p_x, q_x = q_x, p_x
    good = u * q_x < p_x + (0.02 * q_x if fault == "acceptance + .02" else 0)
    if fault == "typical acceptance":
        good = p_x > 0.3
    accepted = np.cumprod(good, 1).sum(1)
    stop = np.minimum(accepted, K - 1)
    residual = np.maximum(p[rows, stop] - q[rows, stop], 0)
    if fault in ("residual not subtracted", "typical acceptance"):
        residual = p[rows, stop]
    if fault == "residual of the next position":
        residual = np.maximum(p[rows, stop + 1] - q[rows, stop], 0)
    bonus = q[:, -1] if fault == "bonus from the draft" else p[:, K]
    if fault == "bonus from the residual":
        bonus = np.where(residual.sum(1, keepdims=True) > 0, residual, p[:, K])
    weights = np.where((accepted == K)[:, None], bonus, residual)
    final = draw_tokens(weights, rng, normalise=fault != "residual not normalised")
    out = join_accepted(tokens, accepted, final)
    if fault == "draft after the rejected one kept":
        has_next = accepted < K - 1
        out[rows[has_next], accepted[has_next] + 1] = tokens[rows[has_next], accepted[has_next] + 1]
    return out


def block(tokens: np.ndarray, q: np.ndarray, p: np.ndarray, rng: np.random.Generator, fault: str = "") -> np.ndarray:
    """Verify drafts by block verification (Sun et al. 2024): keep the longest part that may be kept as a whole."""
    n, K = tokens.shape
    rows, u = np.arange(n), rng.random((n, K))
    weight, accepted = np.ones((n, K + 1)), np.zeros(n, dtype=np.int64)
    for i in range(1, K + 1):
        p_x, q_x = (gather_tokens(probs[:, i - 1], tokens[:, i - 1]) for probs in (p, q))
        ratio = p_x / np.maximum(q_x, TINY)
        weight[:, i] = np.minimum(weight[:, i - 1] * ratio, 1)
        if i < K:
            rest = np.maximum(weight[:, i, None] * p[:, i] - q[:, i], 0).sum(1)
            accept = rest / np.maximum(rest + 1 - weight[:, i], TINY)
        else:
            accept = weight[:, K]
        accepted = np.where(u[:, i - 1] < accept, i, accepted)
    stop = np.minimum(accepted, K - 1)
    share = 1 if fault == "the chain's residual" else weight[rows, accepted][:, None]
    residual = np.maximum(share * p[rows, stop] - q[rows, stop], 0)
    return join_accepted(tokens, accepted, draw_tokens(np.where((accepted == K)[:, None], p[:, K], residual), rng))


def sample_and_match(tokens: np.ndarray, q: np.ndarray, p: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draw from the target at every position, and keep drafts while they agree with it: exact for any drafts."""
    drawn = draw_tokens(p, rng)
    accepted = np.cumprod(drawn[:, :-1] == tokens, 1).sum(1)
    return join_accepted(tokens, accepted, drawn[np.arange(len(drawn)), accepted])


def tree(
    tokens: np.ndarray, parents: np.ndarray, q: np.ndarray, p: np.ndarray, rng: np.random.Generator, fault: str = ""
) -> list[int]:
    """Verify a tree by recursive rejection sampling: each sibling against the residual that its elder ones leave. Node
    i was drawn from q[i]; p[i + 1] is the target's distribution after it, p[0] that after the root."""
    node = -1
    out: list[int] = []
    while True:
        probs = p[node + 1]
        for child in np.flatnonzero(parents == node):
            token = int(tokens[child])
            if rng.random() * q[child, token] < probs[token]:
                node = int(child)
                out.append(token)
                break
            rest = np.maximum(probs - q[child], 0)
            residual = rest / max(rest.sum(), TINY)
            probs = p[node + 1] if fault == "siblings against p" else residual
        else:
            if fault == "siblings against p" and (parents == node).any():
                probs = residual
            return [*out, int(draw_tokens(probs, rng))]


Entry = tuple[Any, str, tuple[str, ...]]  # the verifier, its shape, and the problems that it is made for
ALL = ("soft", "sparse", "point", "equal")
CORRECT: dict[str, Entry] = {
    "chain": (chain, "batch", ALL),
    "block": (block, "batch", ALL),
    "sample and match": (sample_and_match, "batch", ALL),
    "tree, drawn without replacement": (tree, "tree", ("soft", "sparse", "equal")),
    "tree of deterministic drafts": (tree, "tree", ("point",)),
}
CHAIN_FAULTS = (
    "p and q swapped", "residual not subtracted", "residual not normalised", "bonus from the draft",
    "acceptance + .02", "one uniform", "greedy drafts, soft distributions", "residual of the next position",
    "bonus from the residual", "draft after the rejected one kept", "typical acceptance",
)  # fmt: skip
FAULTS: dict[str, Entry] = {
    **{fault: (partial(chain, fault=fault), "batch", ALL) for fault in CHAIN_FAULTS},
    "block: the chain's residual": (partial(block, fault="the chain's residual"), "batch", ALL),
    "tree: siblings against p": (partial(tree, fault="siblings against p"), "tree", ALL),
}
