"""Reported faults of engines' speculative code, remade in numpy with the correct version beside.

`make_verifier(name, fixed)` makes a function of `certify_verifier`, `make_design(models, name, fixed)` the conditions
of a generator with drafts; name: a report of reports/reports.yaml. `fixed` is the same code without the fault.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
from parity_certify import Condition
from parity_certify.design import make_conditions

VOCAB = 4
Rows = np.ndarray  # probabilities [n, K, V]
Verify = Callable[..., Any]


# Verifiers of a batch: tokens [n, K], q [n, K, V], p [n, K + 1, V] -> tokens [n, K + 1], -1 after the last


def draw(weights: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draw tokens [...] from weights [..., V]."""
    total = weights.cumsum(-1)
    return (
        (rng.random(weights.shape[:-1])[..., None] * total[..., -1:] >= total).sum(-1).clip(max=weights.shape[-1] - 1)
    )


def end_rows(tokens: np.ndarray, good: np.ndarray, final: np.ndarray, padding: int = -1) -> np.ndarray:
    """Keep the drafts before the first that is not good [n, K], then the token final [n, K + 1] of that place."""
    n_kept = np.cumprod(good, 1).sum(1)[:, None]
    place = np.arange(final.shape[1])
    drafts = np.concatenate([tokens, final[:, -1:]], 1)
    return np.where(place < n_kept, drafts, np.where(place == n_kept, final, padding))


def draw_rejected(q: Rows, p: Rows, rng: np.random.Generator) -> np.ndarray:
    """Draw the token [n, K + 1] of each place should it end its row: of the residual, last of the target."""
    rest = np.maximum(p[:, :-1] - q, 0)
    rest = np.where(rest.sum(-1, keepdims=True) > 0, rest, p[:, :-1])
    return draw(np.concatenate([rest, p[:, -1:]], 1), rng)


def gather(distributions: Rows, tokens: np.ndarray) -> np.ndarray:
    """Gather the probabilities of tokens."""
    return np.take_along_axis(distributions[:, : tokens.shape[1]], tokens[..., None], -1)[..., 0]


def verify_mtp(
    tokens: np.ndarray, q: Rows, p: Rows, rng: np.random.Generator, same: bool = False, padding: int = -1
) -> np.ndarray:
    """Verify drafts by speculative sampling. `same`: a draft that equals a drawn target token is accepted, too;
    `padding`: what follows a row's last token."""
    good = rng.random(tokens.shape) * gather(q, tokens) < gather(p, tokens)
    if same:
        good |= draw(p[:, :-1], rng) == tokens
    return end_rows(tokens, good, draw_rejected(q, p, rng), padding)


def verify_match(tokens: np.ndarray, q: Rows, p: Rows, rng: np.random.Generator, greedy: bool = False) -> np.ndarray:
    """Accept drafts that equal the target's own token, which is drawn, or its likeliest (`greedy`)."""
    own = p.argmax(-1) if greedy else draw(p, rng)
    return end_rows(tokens, own[:, :-1] == tokens, own)


def verify_target_only(
    tokens: np.ndarray, q: Rows, p: Rows, rng: np.random.Generator, inclusive: bool = False
) -> np.ndarray:
    """Accept a draft with its target probability by a coin of float32; else draw among the other tokens. `inclusive`:
    a coin of 0 accepts a token of probability 0."""
    coin, limit = rng.random(tokens.shape, dtype=np.float32), gather(p, tokens).astype(np.float32)
    good = coin <= limit if inclusive else coin < limit
    others = p.copy()
    np.put_along_axis(others[:, :-1], tokens[..., None], 0, -1)
    return end_rows(tokens, good, draw(np.where(others.sum(-1, keepdims=True) > 0, others, p), rng))


def verify_tree(
    tokens: np.ndarray, parents: np.ndarray, q: np.ndarray, p: np.ndarray, rng: np.random.Generator, offset: int = 0
) -> list[int]:
    """Verify a tree, each sibling against what its elder ones leave. `offset`: rows that the target's is too far."""
    node, path = -1, list[int]()
    while True:
        left = p[min(node + 1 + offset, len(p) - 1)]
        for child in np.flatnonzero(parents == node):
            if rng.random() * q[child, tokens[child]] < left[tokens[child]]:
                path.append(int(tokens[child]))
                node = int(child)
                break
            rest = np.maximum(left - q[child], 0)
            left = rest / rest.sum() if rest.sum() > 0 else left
        else:
            return [*path, int(draw(left, rng))]


VERIFIERS: dict[str, tuple[Verify, dict[str, Any]]] = {
    "rtp-llm-1295": (verify_mtp, {"same": True}),
    "vllm-54893": (verify_mtp, {"padding": 0}),
    "sglang-39253": (verify_match, {"greedy": True}),
    "tensorrt-llm-15098": (verify_tree, {"offset": 1}),
    "sglang-35771": (verify_target_only, {"inclusive": True}),
    "mlx-swift-lm-459": (verify_match, {}),
}


def make_verifier(name: str, fixed: bool = False) -> Verify:
    """Make the verifier of a report."""
    verify, fault = VERIFIERS[name]
    return partial(verify, **({} if fixed else fault))


# Generators with drafts

WEIGHTS = np.random.default_rng(7).normal(0, 1, (2, 16, VOCAB, VOCAB))  # of the target and of what the draft differs by


def compute_logits(prefixes: Any, draft: bool = False) -> np.ndarray:
    """Compute logits [n, V] after prefixes [n, t], a sum of what each token says, less the longer it is ago."""
    ago = np.asarray(prefixes)[:, ::-1]
    parts = [(WEIGHTS[0, i, ago[:, i]] + 0.5 * draft * WEIGHTS[1, i, ago[:, i]]) / (1 + i) for i in range(ago.shape[1])]
    return np.sum(parts, axis=0)


def keep_top_p(x: np.ndarray, top_p: float) -> np.ndarray:
    """Keep the likeliest tokens that reach top_p together."""
    order, p = np.argsort(-x), soften(x)
    return np.where(np.isin(np.arange(len(x)), order[p[order].cumsum() - p[order] < top_p]), x, -np.inf)


def keep_top_k(x: np.ndarray, top_k: int) -> np.ndarray:
    """Keep the top_k likeliest tokens."""
    return np.where(x >= np.sort(x)[-top_k], x, -np.inf) if top_k else x


def soften(x: np.ndarray) -> np.ndarray:
    """Turn logits [V] into probabilities."""
    e = np.exp(x - x.max())
    return e / e.sum()


def penalise(x: np.ndarray, history: tuple[int, ...], by: float) -> np.ndarray:
    """Make the tokens of a history less likely."""
    seen = np.isin(np.arange(len(x)), history)
    return np.where(seen, np.where(x > 0, x / by, x * by), x)


def sample_with_drafts(
    name: str, fixed: bool, prompts: Any, seed: int, length: int, drafts: int, **options: float
) -> list:
    """Draw `length` tokens after each of prompts [n, P], in rounds of up to `drafts` drafts."""
    rng, fault = np.random.default_rng(seed), not fixed
    temperature, top_k, top_p = options["temperature"], int(options.get("top_k", 0)), options.get("top_p", 1.0)

    @cache
    def compute(prefix: tuple[int, ...], history: tuple[int, ...], draft: bool) -> np.ndarray:
        """Compute the probabilities after a prefix; the penalties read the history."""
        x = penalise(compute_logits([prefix], draft)[0], history, options.get("repetition_penalty", 1.0))
        if name.startswith("sglang"):  # top-p of all tokens, after the temperature
            x = x / temperature
            if fault and not draft:
                return soften(keep_top_p(keep_top_k(x, top_k), top_p))
            return soften(np.where(np.isfinite(keep_top_p(x, top_p)), keep_top_k(x, top_k), -np.inf))
        is_cold = fault and name.startswith("lattice") and not draft
        x = np.where(np.isfinite(keep_top_p(x, top_p)), keep_top_k(x, top_k), -np.inf)
        return soften(x if is_cold else x / temperature)

    rows = []
    for prompt in np.asarray(prompts).tolist():
        row, unseen = list(prompt), set[int]()  # places that the penalties do not see
        while len(row) < len(prompt) + length:
            start, tokens, q, p = len(row), list(row), [], []
            for _ in range(min(1 if name.startswith("mlx-lm") else drafts, len(prompt) + length - start - 1)):
                q.append(compute(tuple(tokens), tuple(tokens), True))
                tokens.append(int(draw(q[-1], rng)))
            for end in range(start, len(tokens) + 1):
                hidden = unseen | (set(range(start, end)) if fault and name.startswith("mlx-lm") else set())
                seen = tuple(token for i, token in enumerate(tokens[:end]) if i not in hidden)
                p.append(compute(tuple(tokens[:end]), seen, False))
            if fault and name.startswith("mlxcel"):
                own = [distribution.argmax() for distribution in p[:-1]] + [draw(p[-1], rng)]
                kept = end_rows(
                    np.array([tokens[start:]], int), np.array([tokens[start:]], int) == own[:-1], np.array([own])
                )
            else:
                kept = verify_mtp(
                    np.array([tokens[start:]], int), np.array(q).reshape(1, -1, VOCAB), np.array([p]), rng
                )
            new = kept[0][kept[0] >= 0].tolist()
            if fault and name.startswith("mlx-lm"):
                unseen |= set(range(start, start + len(new) - 1))  # accepted drafts are never told to the penalties
            row += new
        rows.append(row[len(prompt) :])
    return rows


def make_design(models: Any, name: str, fixed: bool = False) -> tuple[list[Condition], dict[str, str]]:
    """Make the conditions of the default design for a report's generator, with the options that its engine has."""
    run = partial(sample_with_drafts, name, fixed)

    def of_mlx(prompts: Any, seed: int, *, length: int, drafts: int, temperature: float = 1.0, top_k: int = 0,
               top_p: float = 1.0, repetition_penalty: float = 1.0) -> list:  # fmt: skip
        return run(prompts, seed, length, drafts, temperature=temperature, top_k=top_k, top_p=top_p,
                   repetition_penalty=repetition_penalty)  # fmt: skip

    def of_sglang(prompts: Any, seed: int, *, length: int, drafts: int, temperature: float = 1.0, top_k: int = 0,
                  top_p: float = 1.0) -> list:  # fmt: skip
        return run(prompts, seed, length, drafts, temperature=temperature, top_k=top_k, top_p=top_p)

    def of_lattice(prompts: Any, seed: int, *, length: int, drafts: int, temperature: float = 1.0) -> list:
        return run(prompts, seed, length, drafts, temperature=temperature)

    if name.startswith("sglang"):
        return make_conditions(of_sglang, compute_logits, vocab=VOCAB, engine="sglang")
    sample = of_lattice if name.startswith("lattice") else of_mlx
    return make_conditions(sample, compute_logits, vocab=VOCAB, engine="mlx-lm")
