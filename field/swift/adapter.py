"""SWIFT: `evaluate_posterior`, with the processor that a temperature makes."""

import random

import borrowed
import torch
from transformers import TemperatureLogitsWarper

MEND = {
    "gt_logits = logits[best_candidate, accept_length - 1]\n": (
        "gt_logits = logits_processor(None, logits[best_candidate, accept_length - 1][None])[0]\n"
    )
}


def verifier(temperature=1.0, mend=False):
    """Make a verifier of a tree by their `evaluate_posterior`, with `mend` corrected by MEND."""
    scope = {"replace": MEND if mend else {}, "torch": torch, "random": random}
    (evaluate,) = borrowed.functions("model/swift/utils.py", "evaluate_posterior", **scope)
    warp = TemperatureLogitsWarper(temperature)

    def verify(tokens, parents, q, p):
        tree = borrowed.eagle_tree(tokens, parents, q, p)
        tree["logits"] = tree["logits"] * temperature
        best, length, distribution = evaluate(logits_processor=warp, **tree)
        return [*tree["candidates"][best, 1 : length + 1].tolist(), int(torch.multinomial(distribution, 1))]

    return verify
