"""Self-speculative decoding: with do_sample_draft=False drafts come too often. Exit code 1: they do."""

import __future__

import ast
import contextlib
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import torch


def load_functions(path, names, **scope):
    """Load functions of a file of the repository (the folder REPOSITORY, or this one), without the file's imports."""
    text = Path(os.environ.get("REPOSITORY", "."), path).read_text()
    nodes = [node for node in ast.parse(text).body if getattr(node, "name", "") in names]
    exec(compile(ast.Module(nodes, []), path, "exec", flags=__future__.annotations.compiler_flag), scope)
    return scope[names[-1]]


def run(input_ids, past_key_values=None, **_):
    """Compute the same logits after each token, for target and drafts."""
    past = past_key_values[0][0] if past_key_values else input_ids[:, None, :0, None]
    cache = torch.cat([past, input_ids[:, None, :, None]], 2)
    logits = torch.tensor([0.6, 0.4]).log().expand(1, input_ids.shape[1], 2)
    return {"logits": logits, "past_key_values": ((cache, cache),)}


model = type("Model", (), {"__call__": staticmethod(run), "self_draft": lambda _: contextlib.nullcontext()})()
model.device, model.config = "cpu", SimpleNamespace(vocab_size=2)
names = "sample", "max_fn", "self_speculative_sample"
generate = load_functions("decoding.py", names, torch=torch, top_k_top_p_filtering=lambda logits, **_: logits)
n, settings = 2000, {"max_new_tokens": 3, "do_sample": True, "temperature": 1.0}
second = [generate(model, None, torch.zeros(1, 1).long(), **settings)["generate_ids"][0, 1].item() for _ in range(n)]
share = second.count(0) / n
print(f"token 0 has probability 0.6 and is always drafted; it came in {share:.3f} of {n} texts")
sys.exit(abs(share - 0.6) > 0.05)
