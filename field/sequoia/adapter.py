"""Sequoia: `SpecTree`, grown and verified until a text is long enough, with tables in place of the engines."""

from types import SimpleNamespace

import borrowed
import numpy as np
import torch
from parity_certify import Sampled

SIZE, SHIFT, FLOAT32 = 24, 3, {"torch.float16": "torch.float32"}
GROW = {"roots": [[0], [1, 2], [3]], "branches": [[2], [1, 0], [0]], "Successors": [[1, 2], [3], [], []], "size": 4}
SEEN = torch.tensor([[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 1, 0, 1.0]])  # which nodes each node sees
UTILS = "_make_causal_mask", "get_sampling_logits", "get_residual", "sampling_without_replacement"
MOVE = "        self.tokens[:accept_length] = self.tokens[accept_list]\n"
COUNT = "        accept_length = len(accept_list)\n"
FIRST = {MOVE: "", COUNT: COUNT + MOVE}  # the mend of the first fault


class Engine(borrowed.TableModel):
    """A table that reads a store of tokens; the attention mask says what stands before a node."""

    dtype, max_length = torch.float32, SIZE

    def __init__(self, table):
        super().__init__(table, 1, SHIFT)
        self.engine, self.stored = self, torch.zeros(2, SIZE).long()  # tokens and their positions, by slot
        self.kv_cache = SimpleNamespace(gather_kv_incremental=self.gather)

    def gather(self, positions, start):
        self.stored[:, start : start + len(positions)] = self.stored[:, positions]

    def inference(self, input_ids, storage_ids, position_ids, attn_mask):
        """Store tokens and positions in the slots storage_ids, and compute logits [1, n, V] after what attn_mask
        shows."""
        self.calls += 1
        self.stored[:, storage_ids] = torch.stack([input_ids[0], position_ids[0]])
        contexts = [self.stored[:, : len(row)][:, row == 0] for row in attn_mask[0, 0]]
        ordered = [tokens[positions.argsort()][None] for tokens, positions in contexts]
        return torch.stack([self.logits_behind(tokens)[0] for tokens in ordered])[None]

    graph_inference = inference


def sampler(distribution, models, mend=""):
    """Make a sampler by their `SpecTree`; mend: "", "first", or "both" of the faults."""
    scope = {"torch": torch, "softmax": torch.nn.functional.softmax}
    scope |= dict(zip(UTILS, borrowed.functions("utils.py", *UTILS, **scope), strict=True))
    (scope["Tree"],) = borrowed.functions("Tree/Tree.py", "Tree", replace=FLOAT32, **scope)
    (tree_of,) = borrowed.functions("Tree/SpecTree.py", "SpecTree", replace=FIRST if mend else {}, **scope)
    settings = {"temperature": 1.0, "top_p": 1.0, "max_length": SIZE, "vocab_size": 4 + SHIFT}
    settings["grow_map"] = GROW | {"depth": torch.tensor([0, 1, 1, 2]), "mask": SEEN}
    settings["residual_graph"] = scope[UTILS[2]]
    draw = {i: lambda x, r, n=n: scope[UTILS[3]](x, r, n, 1.0) for i, n in ((0, 2), (1, 1))}
    settings |= {"sampling_callables": draw, "sample_gather_indices": {0: torch.tensor([0, 1]), 1: torch.tensor([0])}}

    def draw_sequence():
        """Draw one sequence [L]; also returns the drafts offered and accepted."""
        draft, target, tokens = Engine(distribution.extra["draft"]), Engine(distribution.tables[0]), []
        empty = {"attn_mask": torch.full((SIZE, SIZE), torch.finfo(torch.float32).min)}
        tree = tree_of(draft, target, torch.tensor([3]), position_ids=torch.zeros(SIZE).long(), **settings, **empty)
        while len(tokens) <= distribution.length:
            if mend == "both":
                tree.rand.uniform_(), tree.r.uniform_()
            tree.construct_grow_map()
            tokens = tree.verify()[0].tolist()
        return np.array(tokens[1 : distribution.length + 1]) - SHIFT, 2 * target.calls, len(tokens) - 1 - target.calls

    def sample(prompts, seed):
        torch.manual_seed(seed)
        rows, drafted, accepted = zip(*[draw_sequence() for _ in prompts], strict=True)
        return Sampled(np.stack(rows), sum(drafted), sum(accepted))

    return sample
