"""LANTERN: the `evaluate_posterior` of its drafters and the two methods of its LlamaGen model."""

import random
import types
import typing

import borrowed
import torch
from transformers import TemperatureLogitsWarper

NEAREST = torch.tensor([[a, *(b for b in range(4) if b != a)] for a in range(4)])  # a codebook of four tokens


MEND = {
    "gt_logits = logits[best_candidate, accept_length - 1]\n": (
        "gt_logits = logits_processor(None, logits[best_candidate, accept_length - 1][None])[0]\n"
    )
}


def verifier(function, temperature=1.0, mend=False, **options):
    """Make a verifier of a tree by `function`: "drafters", or a method of the LlamaGen model; options: its keywords."""
    scope = {"replace": MEND if mend else {}, "torch": torch, "random": random, **vars(typing)}
    warp = TemperatureLogitsWarper(temperature)
    if function == "drafters":
        (evaluate,) = borrowed.functions("models/drafters/utils.py", "evaluate_posterior", **scope)
    else:
        (method,) = borrowed.functions("models/ea_model_llamagen.py", function, **scope)
        evaluate = types.MethodType(method, types.SimpleNamespace(nearest_latents=NEAREST))

    def verify(tokens, parents, q, p):
        tree = borrowed.eagle_tree(tokens, parents, q, p)
        tree["logits"] = tree["logits"] * temperature
        if function != "evaluate_posterior_v1":  # these functions take drafts that are certain
            tree = {key: tree[key] for key in ("candidates", "logits")}
        best, length, distribution = evaluate(logits_processor=warp, **tree, **options)
        return [*tree["candidates"][best, 1 : length + 1].tolist(), int(torch.multinomial(distribution, 1))]

    return verify
