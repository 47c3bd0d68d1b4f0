"""EAGLE: `evaluate_posterior` of EAGLE-2 and 3 (drafts that are certain) and of the batched release (drafts drawn)."""

import random

import borrowed
import torch
from transformers import TemperatureLogitsWarper

MEND = {
    "if adjustflag and accept_length != candidates.shape[1]:": "if adjustflag and accept_length != candidates.shape[2]:"
}


def verifier(function, temperature=1.0, mend=False):
    """Make a verifier of a tree by `evaluate_posterior` of the file `function`, with `mend` corrected by MEND."""
    file = {"utils": "eagle/model/utils.py", "modeling_eagle": "eagle/modeling_eagle.py"}[function]
    (evaluate,) = borrowed.functions(
        file, "evaluate_posterior", replace=MEND if mend else {}, torch=torch, random=random
    )
    warp = TemperatureLogitsWarper(temperature)

    def verify(tokens, parents, q, p):
        tree = borrowed.eagle_tree(tokens, parents, q, p)
        candidates, logits = tree["candidates"], tree["logits"] * temperature
        if function == "utils":
            best, length, distribution = evaluate(logits, candidates, warp)
        else:  # it takes a batch, here of one
            inputs = (
                tree["cart_candidates_prob"][None],
                [distribution[None] for distribution in tree["op"]],
                tree["p_indices"],
            )
            inputs = *inputs, tree["tree_candidates"], tree["b_indices"], [False]
            (best,), (length,), (distribution,) = evaluate(logits[None], candidates[None], warp, *inputs)
        return [*candidates[best, 1 : length + 1].tolist(), int(torch.multinomial(distribution, 1))]

    return verify
