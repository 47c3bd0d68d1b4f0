"""A tape of a pass: a CPU has no graphs, so its calls are noted, and made again on the same tensors."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def list_tensors(x):
    """List the tensors of nested arguments."""
    return [leaf for leaf in tree_leaves(x) if isinstance(leaf, torch.Tensor)]


class Calls(TorchDispatchMode):
    """Notes each call that a pass makes, with its tensors."""

    def __init__(self):
        super().__init__()
        self.made = []
        self.results = {}  # what the calls made, by memory: all but the buffers that were there before
        self.before = set()

    def __torch_dispatch__(self, call, types, inputs=(), keywords=None):
        out = call(*inputs, **(keywords or {}))
        self.made.append((call, inputs, keywords or {}, out))
        self.before |= {x.untyped_storage().data_ptr() for x in list_tensors((inputs, keywords))} - set(self.results)
        for x in list_tensors(out):
            if (memory := x.untyped_storage().data_ptr()) not in self.before:
                self.results.setdefault(memory, x)
        return out

    def repeat(self):
        """Make the calls again, each on the same tensors, and into the same ones."""
        for call, inputs, keywords, out in self.made:
            for old, new in zip(tree_leaves(out), tree_leaves(call(*inputs, **keywords)), strict=True):
                if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)

    def spoil(self):
        """Overwrite what the calls made, as another graph does that shares their memory."""
        for x in self.results.values():
            x.fill_(True if x.dtype == torch.bool else -1 if not x.is_floating_point() else torch.nan)


class Tape:
    """A recorded pass: `replay` makes its calls again. What it made is spoilt afterwards."""

    def __init__(self, run, beside=None):
        self.is_new = True
        with Calls() as calls:
            self.step = run()  # a tape, unlike a graph, runs what it records
        self.calls = calls

    def replay(self):
        if not self.is_new:
            self.calls.repeat()
        self.is_new = False
        step = type(self.step)(*(None if x is None else x.clone() for x in self.step))
        self.calls.spoil()
        return step
