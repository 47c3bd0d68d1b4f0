"""SAM-Decoding: `eval_posterior`, with the processor that a temperature makes."""

import random
from types import SimpleNamespace

import borrowed
import torch
from transformers import TemperatureLogitsWarper

MEND = {borrowed.GT: f"gt_logits = config.logits_processor(None, {borrowed.GT[12:]}[None])[0]"}


def verifier(temperature=1.0, mend=False):
    """Make a verifier of a tree by their `eval_posterior`, with `mend` corrected by MEND."""
    scope = {"torch": torch, "random": random, "SamdGenerationConfig": object, "replace": MEND if mend else {}}
    scope["profile_decorator"] = lambda name: lambda function: function
    (evaluate,) = borrowed.functions("samd/utils.py", "eval_posterior", **scope)
    config = SimpleNamespace(greedy=False, logits_processor=TemperatureLogitsWarper(temperature))

    def verify(tokens, parents, q, p):
        tree = borrowed.eagle_tree(tokens, parents, q, p)
        best, length, distribution = evaluate(tree["logits"] * temperature, tree["candidates"], config)
        return [*tree["candidates"][best, 1:length].tolist(), int(torch.multinomial(distribution[0], 1))]

    return verify
