"""A tape of a pass: a CPU has no graphs, so its calls are noted, and made again on the same tensors."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Calls(TorchDispatchMode):
    """Notes each call that a pass makes, with its tensors."""

    def __init__(self):
        super().__init__()
        self.made = []

    def __torch_dispatch__(self, call, types, inputs=(), keywords=None):
        out = call(*inputs, **(keywords or {}))
        self.made.append((call, inputs, keywords or {}, out))
        return out

    def repeat(self):
        """Make the calls again, each on the same tensors, and into the same ones."""
        for call, inputs, keywords, out in self.made:
            for old, new in zip(tree_leaves(out), tree_leaves(call(*inputs, **keywords)), strict=True):
                if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)
