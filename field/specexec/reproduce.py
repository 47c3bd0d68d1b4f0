"""SpecExec: top-p cuts the likeliest token and leaves the tail. Exit code 1: it does."""

import __future__

import ast
import os
import sys
from pathlib import Path

import torch


def load_function(path, name, **scope):
    """Load a function of a file of the repository (the folder REPOSITORY, or this one), without the file's imports."""
    text = Path(os.environ.get("REPOSITORY", "."), path).read_text()
    node = next(node for node in ast.walk(ast.parse(text)) if getattr(node, "name", "") == name)
    exec(compile(ast.Module([node], []), path, "exec", flags=__future__.annotations.compiler_flag), scope)
    return scope[name]


n = 10_000
logits = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log().repeat(n, 1)
sample = load_function("specdec/specexec.py", "sampler_from_logits", torch=torch)
counts = [sample(logits, top_p=top_p)[0].bincount(minlength=4) / n for top_p in (0.8, 0.6)]
print(
    "of the law [.4 .3 .2 .1] top-p .8 keeps three tokens and .6 two; drawn are", *(c.numpy().round(2) for c in counts)
)
sys.exit(int(counts[0][3] > 0 or counts[1][0] == 0))
