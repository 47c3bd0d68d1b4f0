"""TriForce: tokens of the middle level do not follow the law recorded for them. Exit code 1: they do not."""

import __future__

import ast
import os
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


def positive(x):
    return x.clamp(min=0) / x.clamp(min=0).sum()


engine = SimpleNamespace(model=SimpleNamespace(device="cpu"), kv_cache=SimpleNamespace(seq_len=0))
graph = SimpleNamespace(engine=engine)
graph.graph_draft_inference = lambda **_: torch.tensor([0.9, 0.1])
graph.graph_verify = lambda **_: torch.full((2, 2), 0.5)
scope = {"torch": torch, "sample": lambda p: torch.multinomial(p, 1), "max_fn": positive}
middle = load_function("utils/decoding.py", "Middle_Spec", **scope)
n = 5000
made = [middle(torch.zeros(1, 1).long(), graph, 1, False, None) for _ in range(n)]
share, recorded = sum(tokens[1] == 0 for tokens, _, _ in made) / n, made[0][1][0][0].item()
print(f"token 0 was recorded with probability {recorded}; it came in {share:.3f} of {n} calls")
sys.exit(abs(share - recorded) > 0.05)
