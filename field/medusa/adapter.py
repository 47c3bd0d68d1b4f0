"""Medusa: `evaluate_posterior`, and the token after it as `generate_candidates` draws it."""

import borrowed
import torch

NAMES = "get_nucleus_one_token", "get_typical_one_token", "get_nucleus_posterior_mask", "get_typical_posterior_mask"


def verifier(sampling="typical", fast=True, top_p=0.8):
    """Make a verifier of a tree by their `evaluate_posterior`; options: its keywords."""
    names = *NAMES, "generate_candidates", "evaluate_posterior"
    scope = {"torch": torch, "F": torch.nn.functional, "TOPK": 1}
    *_, generate, evaluate = borrowed.functions("medusa/model/utils.py", *names, **scope)
    settings = {"temperature": 1.0, "sampling": sampling, "fast": fast, "top_p": top_p}

    def verify(tokens, parents, q, p):
        tree = borrowed.eagle_tree(tokens, parents, q, p)
        candidates, logits = tree["candidates"], tree["logits"]
        best, length = evaluate(logits, candidates, **settings)
        heads = torch.zeros(1, 1, 1, p.shape[1])
        behind = logits[None, best, length : length + 1].clone()
        following, _ = generate(heads, behind, torch.tensor([0]), torch.tensor([[0]]), **settings)
        return [*candidates[best, 1 : length + 1].tolist(), int(following)]

    return verify
