"""PEARL: two drafts that follow each other are accepted by the same random number. Exit code 1: so it is."""

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
    exec(compile(ast.Module([node], []), path, "exec"), scope)
    return scope[name]


class Model:
    """In place of their KVCacheModel: uniform laws, so every draft is accepted."""

    def __init__(self, *_):
        self._prob_history = torch.full((1, 64, 8), 1 / 8)

    def generate(self, ids, count):
        return torch.cat([ids, torch.randint(8, (1, count))], 1)


seeds, torch_seed = [], torch.manual_seed
torch.manual_seed = lambda seed: (seeds.append(seed), torch_seed(seed))
loop = load_function("src/engine.py", "parallel_speculative_decoding", torch=torch, KVCacheModel=Model)
args = SimpleNamespace(gamma=3, max_tokens=6, temp=1, top_k=0, top_p=0)
model = SimpleNamespace(device="cpu")
self = SimpleNamespace(seed=0, args=args, draft_model=model, vocab_size=8, num_acc_tokens=[], draft_forward_times=0)
self.accelerator = SimpleNamespace(is_main_process=True, wait_for_everyone=lambda: None)
self.accelerator.gather = lambda q: torch.cat([q, torch.full_like(q, 1 / 8)])  # the target's laws are uniform too
loop(self, torch.zeros((1, 5), dtype=torch.long))
print(f"seeds of the random numbers that accept drafts, place by place: {seeds}; all should differ")
sys.exit(len(set(seeds)) < len(seeds))
