"""EAGLE: `evaluate_posterior` before its PR 47, on trees of drawn drafts; token 0, its padding, is never drawn."""

import random
import typing

import borrowed
import numpy as np
import torch


def add_padding(distributions):
    """Add a token 0 of probability zero to distributions [n, V]."""
    return np.concatenate([np.zeros((len(distributions), 1)), distributions], 1)


def verifier():
    """Make the verifier of a tree."""
    scope = {"torch": torch, "random": random, **vars(typing)}
    (evaluate,) = borrowed.functions("model/utils.py", "evaluate_posterior", **scope)

    def verify(tokens, parents, q, p):
        tree = borrowed.eagle_tree(tokens + 1, parents, add_padding(q), add_padding(p))
        names = "logits", "candidates", "cart_candidates_prob", "op", "p_indices", "tree_candidates", "b_indices"
        inputs = {name: tree[name] for name in names}
        best, length, distribution = evaluate(logits_processor=lambda _, logits: logits, **inputs)
        accepted = tree["candidates"][best, 1 : length + 1]
        return [*(accepted - 1).tolist(), int(torch.multinomial(distribution, 1)) - 1]

    return verify
