"""Verifiers of speculative sampling, vectorised: correct ones to compare with, and planted faults that must be found.

chain, block, sample_and_match    (draft_tokens [n, K], draft_probs [n, K, V], target_probs [n, K + 1, V], rng)
tree                              (tokens [N], parents [N], draft_probs [N, V], target_probs [N + 1, V], rng)

A batch returns tokens [n, K + 1] with -1 behind the last one, a tree the tokens of one row. `FAULTS` and `CORRECT` name
each with the shape that `certify_verifier` takes.
"""

from functools import partial
from typing import Any

import numpy as np

TINY = 1e-300


def draw_tokens(weights: np.ndarray, rng: np.random.Generator, normalise: bool = True) -> np.ndarray:
    """Tokens [...] from weights [..., V]."""
    total = weights.cumsum(-1)
    if normalise:
        total = total / np.maximum(total[..., -1:], TINY)
    return np.minimum((rng.random(weights.shape[:-1])[..., None] >= total).sum(-1), weights.shape[-1] - 1)


def gather_tokens(laws: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    return np.take_along_axis(laws, tokens[..., None], -1)[..., 0]


def join_accepted(tokens: np.ndarray, accepted: np.ndarray, last: np.ndarray) -> np.ndarray:
    """The accepted drafts and the token behind them; -1 elsewhere."""
    n, K = tokens.shape
    out = np.concatenate([np.where(np.arange(K) < accepted[:, None], tokens, -1), np.full((n, 1), -1)], 1)
    out[np.arange(n), accepted] = last
    return out


def chain(tokens: np.ndarray, q: np.ndarray, p: np.ndarray, rng: np.random.Generator, fault: str = "") -> np.ndarray:
    """Speculative sampling (Leviathan et al. 2023; Chen et al. 2023)."""
    n, K = tokens.shape
    rows = np.arange(n)
    if fault == "greedy drafts, soft laws":
        q = 0.6 * q + 0.4 / q.shape[-1]
    u = np.repeat(rng.random((n, 1)), K, 1) if fault == "one uniform" else rng.random((n, K))
    here, drafted = gather_tokens(p[:, :K], tokens), gather_tokens(q, tokens)
    if fault == "p and q swapped":
        here, drafted = drafted, here
    good = u * drafted < here + (0.02 * drafted if fault == "acceptance + .02" else 0)
    if fault == "typical acceptance":
        good = here > 0.3
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
    last = draw_tokens(weights, rng, normalise=fault != "residual not normalised")
    out = join_accepted(tokens, accepted, last)
    if fault == "draft behind the rejected one kept":
        more = accepted < K - 1
        out[rows[more], accepted[more] + 1] = tokens[rows[more], accepted[more] + 1]
    return out


def block(tokens: np.ndarray, q: np.ndarray, p: np.ndarray, rng: np.random.Generator, fault: str = "") -> np.ndarray:
    """Block verification (Sun et al. 2024): the longest part of the block that may be kept as a whole."""
    n, K = tokens.shape
    rows, u = np.arange(n), rng.random((n, K))
    weight, accepted = np.ones((n, K + 1)), np.zeros(n, dtype=np.int64)
    for i in range(1, K + 1):
        ratio = gather_tokens(p[:, i - 1], tokens[:, i - 1]) / np.maximum(
            gather_tokens(q[:, i - 1], tokens[:, i - 1]), TINY
        )
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
    """Draw from the target at every position, and go on while the drafts agree: exact, whatever the drafts."""
    own = draw_tokens(p, rng)
    accepted = np.cumprod(own[:, :-1] == tokens, 1).sum(1)
    return join_accepted(tokens, accepted, own[np.arange(len(own)), accepted])


def tree(
    tokens: np.ndarray, parents: np.ndarray, q: np.ndarray, p: np.ndarray, rng: np.random.Generator, fault: str = ""
) -> list[int]:
    """Recursive rejection sampling: siblings one after the other, each against what the ones before have left. Node i
    was drawn from q[i]; p[i + 1] is the target's law behind it, p[0] that behind the root."""
    at, out = -1, []
    while True:
        law = p[at + 1]
        for child in np.flatnonzero(parents == at):
            token = int(tokens[child])
            if rng.random() * q[child, token] < law[token]:
                at = int(child)
                out.append(token)
                break
            rest = np.maximum(law - q[child], 0)
            last = rest / max(rest.sum(), TINY)
            law = p[at + 1] if fault == "siblings against p" else last
        else:
            if fault == "siblings against p" and (parents == at).any():
                law = last
            return [*out, int(draw_tokens(law, rng))]


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
    "acceptance + .02", "one uniform", "greedy drafts, soft laws", "residual of the next position",
    "bonus from the residual", "draft behind the rejected one kept", "typical acceptance",
)  # fmt: skip
FAULTS: dict[str, Entry] = {
    **{fault: (partial(chain, fault=fault), "batch", ALL) for fault in CHAIN_FAULTS},
    "block: the chain's residual": (partial(block, fault="the chain's residual"), "batch", ALL),
    "tree: siblings against p": (partial(tree, fault="siblings against p"), "tree", ALL),
}
