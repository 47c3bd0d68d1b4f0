"""EAGLE: behind a rejected and an accepted sibling at the last level comes the residual. Exit code 1: it does."""

import __future__

import ast
import os
import random
import sys
from pathlib import Path

import torch


def load_function(path, name, **scope):
    """Load a function of a file of the repository (the folder REPOSITORY, or this one), without the file's imports."""
    text = Path(os.environ.get("REPOSITORY", "."), path).read_text()
    node = next(node for node in ast.walk(ast.parse(text)) if getattr(node, "name", "") == name)
    exec(compile(ast.Module([node], []), path, "exec", flags=__future__.annotations.compiler_flag), scope)
    return scope[name]


evaluate = load_function("eagle/modeling_eagle.py", "evaluate_posterior", torch=torch, random=random)
candidates = torch.tensor([[[0, 0], [0, 1], [0, 2]]])  # behind the root: tokens 0, 1 and 2, drafted one after the other
certain = torch.full((3, 3), -torch.inf).fill_diagonal_(0.0)  # logits of a law that is one token
logits = torch.stack([certain[1], certain[2]]).expand(1, 3, 2, 3)  # behind the root 1 for certain; behind a draft 2
drawn_from = [torch.full((1, 1, 3), 1 / 3)]
siblings = [[[], []], [[], torch.tensor([1])], [[], torch.tensor([1, 2])]]
chances = torch.tensor([[[1, 1 / 3], [1, 1 / 2], [1, 1]]])
nodes = torch.tensor([[0, 0, 1, 2]])
_, accepted, laws = evaluate(
    logits, candidates, lambda _, x: x, chances, drawn_from, [[0, 0]] * 3, nodes, siblings, [False]
)
due, law = [0.0, 0.0, 1.0], laws[0].tolist()
print(f"{accepted[0]} draft accepted; behind it the model's law is {due}, evaluate_posterior returns {law}")
sys.exit(law != due)
