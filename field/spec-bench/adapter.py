"""Spec-Bench: `evaluate_posterior` of the EAGLE versions that it carries."""

import random

import borrowed
import torch
from transformers import TemperatureLogitsWarper

MEND = {
    "gt_logits = logits[best_candidate, accept_length - 1]\n": (
        "gt_logits = logits_processor(None, logits[best_candidate, accept_length - 1][None])[0]\n"
    )
}


def verifier(part, temperature=1.0, mend=False):
    """Make a verifier of a tree by `evaluate_posterior` of the EAGLE version `part`, with `mend` corrected by MEND."""
    scope = {"replace": MEND if mend else {}, "torch": torch, "random": random}
    (evaluate,) = borrowed.functions(f"model/{part}/utils.py", "evaluate_posterior", **scope)
    warp = TemperatureLogitsWarper(temperature)

    def verify(tokens, parents, q, p):
        tree = borrowed.eagle_tree(tokens, parents, q, p)
        tree["logits"] = tree["logits"] * temperature
        if part != "eagle":  # the later versions take drafts that are certain
            tree = {key: tree[key] for key in ("candidates", "logits")}
        best, length, distribution = evaluate(logits_processor=warp, **tree)
        return [*tree["candidates"][best, 1 : length + 1].tolist(), int(torch.multinomial(distribution, 1))]

    return verify
