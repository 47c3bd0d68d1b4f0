"""REST: a draft gets several chances. Exit code 1: a draft that the model gives .5 comes more often."""

import __future__

import ast
import os
import sys
from pathlib import Path

import torch


def load_functions(path, names, **scope):
    """Load functions of a file of the repository (the folder REPOSITORY, or this one), without the file's imports."""
    text = Path(os.environ.get("REPOSITORY", "."), path).read_text()
    nodes = [node for node in ast.walk(ast.parse(text)) if getattr(node, "name", "") in names]
    exec(compile(ast.Module(nodes, []), path, "exec", flags=__future__.annotations.compiler_flag), scope)
    return scope


NAMES = "top_p_filtering", "get_nucleus_posterior_mask", "evaluate_posterior"
scope = load_functions("rest/model/utils.py", NAMES, torch=torch, F=torch.nn.functional)
n, comes = 4000, 0
candidates = torch.tensor([[0, 1, 0], [0, 1, 1]])  # two paths, both by token 1
for _ in range(n):
    logits = torch.zeros(2, 3, 2)  # a fair coin everywhere
    best, accepted = scope["evaluate_posterior"](logits, candidates, 1.0, 0.9999)
    if accepted:
        comes += 1
    else:  # the next token, as generate_candidates_and_draft_buffer draws it
        filtered = scope["top_p_filtering"](logits[best, accepted][None], top_p=0.9999)
        comes += int(torch.multinomial(filtered.softmax(-1), 1))
share = comes / n
print(f"token 1 has probability 0.5, and is the draft of both paths; it came in {share:.3f} of {n} passes")
sys.exit(abs(share - 0.5) > 0.05)
