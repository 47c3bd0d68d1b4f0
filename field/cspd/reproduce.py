"""CSpD: at its default inner temperature of 42, samples follow the draft's law. Exit code 1: they do."""

import __future__

import ast
import math
import os
import sys
from pathlib import Path

import torch


def load_class(path, name, **scope):
    """Load a class of a file of the repository (the folder REPOSITORY, or this one), without the file's imports."""
    text = Path(os.environ.get("REPOSITORY", "."), path).read_text()
    node = next(node for node in ast.walk(ast.parse(text)) if getattr(node, "name", "") == name)
    exec(compile(ast.Module([node], []), path, "exec", flags=__future__.annotations.compiler_flag), scope)
    return scope[name]


processor_of = load_class("spec_decode/spec_decode_runner.py", "DistributionProcessor", torch=torch, math=math)
n, means = 100_000, []
full = [torch.full((n, 1), x) for x in (0.5, 1.0, 0.0, 0.0, 1.0, 0.0)]  # draft N(.5, 1), target N(0, 1)
for temperature in (42.0, 1.0):
    drafts = full[0] + torch.randn(n, 1)
    means.append(processor_of(*full, dim=1, temperature=temperature).speculative_sample(drafts).mean().item())
print(f"target mean 0, draft mean 0.5; samples have {means[0]:.3f} by default, {means[1]:.3f} at inner temperature 1")
sys.exit(abs(means[0]) > 0.05)
