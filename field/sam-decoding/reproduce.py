"""SAM-Decoding: the token behind a draft that was accepted whole is drawn at temperature 1. Exit code 1: so it is."""

import __future__

import ast
import os
import random
import sys
from pathlib import Path
from types import SimpleNamespace

import torch


def load_function(path, name, **scope):
    """Load a function of a file of the repository (the folder REPOSITORY, or this one), without the file's imports."""
    text = Path(os.environ.get("REPOSITORY", "."), path).read_text()
    node = next(node for node in ast.walk(ast.parse(text)) if getattr(node, "name", "") == name)
    exec(compile(ast.Module([node], []), path, "exec", flags=__future__.annotations.compiler_flag), scope)
    return scope[name]


T = 0.5
logits = torch.tensor([[[9.0, 0.0, -9.0], [2.0, 1.0, 0.0]]])  # behind the root, and behind the only draft, token 0
candidates = torch.tensor([[0, 0]])
scope = {"torch": torch, "random": random, "profile_decorator": lambda _: lambda function: function}
evaluate = load_function("samd/utils.py", "eval_posterior", **scope)
config = SimpleNamespace(greedy=False, logits_processor=lambda _, x: x / T)
_, accepted, law = evaluate(logits, candidates, config)
law = law[0]
due = (logits[0, 1] / T).softmax(0)
due_, law_ = due.numpy().round(3), law.numpy().round(3)
print(f"{int(accepted) - 1} draft accepted; at temperature {T} the next law is {due_}, returned is {law_}")
sys.exit(not torch.allclose(law, due))
