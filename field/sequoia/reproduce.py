"""Sequoia: an accepted second child is overwritten by the token behind it. Exit code 1: so it is."""

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


softmax, keep_logits = torch.nn.functional.softmax, lambda logits, **_: logits
verify = load_function("Tree/SpecTree.py", "verify", torch=torch, softmax=softmax, get_sampling_logits=keep_logits)
cache = SimpleNamespace(kv_cache=SimpleNamespace(gather_kv_incremental=lambda *_: None))
engine = SimpleNamespace(engine=cache, dtype=torch.float32, inference=lambda input_ids, **_: torch.zeros(1, 3, 8))
self = SimpleNamespace(draft_model_engine=engine, target_model_engine=engine, temperature=1.0, top_p=1.0)
self.tokens = torch.tensor([3, 4, 5, 0, 0])  # the text is [3]; its children in the tree are 4 and 5
self.num_nodes, self.ground_truth_len, self.target_kv_len, self.seq_to_use = 3, 1, 0, list(range(5))
self.attn_mask, self.position_ids, self.storage_ids = torch.zeros(5, 5), torch.arange(5), torch.arange(5)
self.prepare_for_next_iter = lambda *_: None
steps = iter([(2, None), (-1, torch.eye(8)[6])])  # the second child is accepted, and token 6 follows for certain
self.accept_step = lambda parent_id: next(steps)
out = verify(self)[0].tolist()
print(f"behind 3 the child 5 is accepted and 6 is drawn; the text is [3, 5, 6], verify returns {out}")
sys.exit(out != [3, 5, 6])
