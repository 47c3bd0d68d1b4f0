"""LongSpec: `verify_stochastic`, of a tree whose drafts are certain."""

import random
from types import SimpleNamespace

import borrowed
import numpy as np
import torch

EAGER = {"    @torch.compile\n    def verify_stochastic(": "    def verify_stochastic("}
MEND = {
    "ratio = (p_llm[b, current_node, s] + eps) / (p_ssm[b, current_node, s] + eps)": (
        "token = input_ids[b, s]; ratio = p_llm[b, current_node, token]"
    ),
    "p_llm[b, current_node, :] = p_llm[b, current_node, :] - p_ssm[b, current_node, :]": (
        "p_llm[b, current_node, token] = 0"
    ),
}


def verifier(mend=False):
    """Make a verifier of a tree by their `verify_stochastic`, with `mend` corrected by MEND."""
    scope = {"torch": torch, "F": torch.nn.functional, "random": random}
    replace = EAGER | (MEND if mend else {})
    (verify_tree,) = borrowed.functions("longspec/test/llama_glide.py", "verify_stochastic", replace=replace, **scope)

    def verify(tokens, parents, q, p):
        size = len(tokens) + 1  # with the root, token 0
        self = SimpleNamespace(diag_matrix=torch.eye(size).long()[None], range_tensor=torch.arange(size)[None])
        mask, draft = np.eye(size, dtype=int), np.full((size, p.shape[1]), 1 / p.shape[1])
        for node, parent in enumerate(parents + 1, 1):
            mask[node] |= mask[parent]
        for parent in set(parents.tolist()):
            draft[parent + 1] = q[parents == parent].mean(0)  # a distribution of the drafted tokens alone
        inputs = torch.tensor([[0, *tokens.tolist()]]), torch.tensor(mask)[None]
        padded = (
            np.pad(distribution, ((0, 0), (0, size))) for distribution in (p, draft)
        )  # they look up tokens as large as the tree
        distributions = (torch.tensor(distribution).float().log()[None] for distribution in padded)
        ids, count = verify_tree(self, *inputs, *distributions, 1.0)
        return ids[0, 1 : count[0]].tolist()

    return verify
