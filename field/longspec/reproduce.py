"""LongSpec: a draft is accepted by the probability of another token. Exit code 1: it is."""

import __future__

import ast
import os
import random
import sys
from pathlib import Path
from types import SimpleNamespace

import torch


def load_function(path, name, **scope):
    """Load a function of a file of the repository (the folder REPOSITORY, or this one), without decorators."""
    text = Path(os.environ.get("REPOSITORY", "."), path).read_text()
    node = next(node for node in ast.walk(ast.parse(text)) if getattr(node, "name", "") == name)
    node.decorator_list = []
    exec(compile(ast.Module([node], []), path, "exec", flags=__future__.annotations.compiler_flag), scope)
    return scope[name]


scope = {"torch": torch, "F": torch.nn.functional, "random": random}
verify = load_function("longspec/test/llama_glide.py", "verify_stochastic", **scope)
model = SimpleNamespace(diag_matrix=torch.eye(2)[None], range_tensor=torch.arange(2)[None])
tree = torch.tensor([[1, 0], [1, 1]])[None]  # a root, and one draft behind it: node 1, token 2
logits = torch.full((1, 2, 3), -torch.inf)
logits[..., 1] = 0.0  # the model is sure of token 1
ids, count = verify(model, torch.tensor([[0, 2]]), tree, logits, torch.zeros(1, 2, 3), 1.0)
print(f"the model is sure of token 1, the draft is token 2; verify_stochastic returns {ids[0, 1 : count[0]].tolist()}")
sys.exit(int(ids[0, 1]) != 1)
