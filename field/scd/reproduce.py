"""SCD, Cosmos without maximal coupling: a rejected place takes a token of the target's law. Exit code 1: so it is."""

import __future__

import ast
import os
import sys
import typing
from pathlib import Path

import torch


def load_function(path, name, **scope):
    """Load a function of a file of the repository (the folder REPOSITORY, or this one), without the file's imports."""
    text = Path(os.environ.get("REPOSITORY", "."), path).read_text()
    node = next(node for node in ast.walk(ast.parse(text)) if getattr(node, "name", "") == name)
    exec(compile(ast.Module([node], []), path, "exec", flags=__future__.annotations.compiler_flag), scope)
    return scope[name]


FILE = "cosmos/cosmos1/models/autoregressive/sjd/speculative_sampler.py"
step = load_function(FILE, "CosmosSpeculativeSampler", torch=torch, **vars(typing))()
n = 10_000
target, draft = torch.tensor([0.5, 0.5]).expand(n, 2, 2), torch.tensor([1.0, 0.0]).expand(n, 2, 2)
drawn = torch.multinomial(target.reshape(-1, 2), 1).view(n, 2)
_, tokens, _ = step(torch.zeros(n, 2).long(), drawn, draft, target, maximal_coupling=False)
share = (tokens[:, 0] == 0).float().mean().item()
print(f"token 0 has probability 0.5, and is always the draft; it came in {share:.3f} of {n} steps")
sys.exit(abs(share - 0.5) > 0.03)
