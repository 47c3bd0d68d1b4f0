"""TriForce: the whole loop, on tables in place of the target, the target with a part of its cache, and the draft."""

import time
from types import SimpleNamespace
from unittest import mock

import borrowed
import numpy as np
import torch
from parity_certify import Sampled

GAMMA, PROMPT = 2, [0, 0]
NAMES = "top_k_top_p_filter", "norm_logits", "sample", "max_fn"
REJECTED = "        else:\n            pred_token_idx = sample("
MEND = {f"{REJECTED}verify_prob[n])": f"{REJECTED}max_fn(verify_prob[n] - speculation_prob))"}


class GraphEngine:
    """Three tables, as their graph engine is called, and the tokens that the target has seen."""

    def __init__(self, distribution):
        self.target, self.draft = distribution.tables[0], distribution.extra["draft"]
        self.middle, self.tokens, self.rounds, self.drafted = (self.target + self.draft) / 2, [], 0, 0
        cache = mock.MagicMock(start_size=0, recent_size=0)
        model = SimpleNamespace(device="cpu")
        self.engine = SimpleNamespace(kv_cache=self, graph_cache=cache, draft_cache=cache, model=model)
        self.graph_draft_prefill, self.update_graph_cache = cache, cache

    def reset(self):
        self.seq_len = 0

    def compute_distributions(self, table, row):
        """Compute distributions [S, V] after each of the tokens in `row` [S], uniform where one is not drawn yet."""
        distributions = []
        for end in range(1, len(row) + 1):
            prefix = np.array([*self.tokens[: self.seq_len], *row[:end]])[len(PROMPT) :]
            valid = (prefix < 4).all()
            distributions.append(borrowed.look_up_distributions(table, prefix[None])[0] if valid else np.full(4, 0.25))
        return torch.tensor(np.array(distributions)).float().reshape(-1, 4)

    def inference(self, input_ids):
        row = input_ids[0].tolist()
        logits = self.compute_distributions(self.target, row).log()[None]
        self.tokens = self.tokens[: self.seq_len] + row
        self.seq_len += len(row)
        self.rounds, self.drafted = self.rounds + 1, self.drafted + len(row) - 1
        return logits

    def graph_draft_inference(self, input_ids, gamma_offset):
        return self.compute_distributions(self.draft, input_ids[0].tolist())[-1]

    def graph_verify(self, input_ids, position_ids):
        return self.compute_distributions(self.middle, input_ids[0].tolist())


def sampler(distribution, models, mend=False):
    """Make a sampler by their `TriForce`, with `mend` corrected by MEND; its tokens are those that the target kept."""
    scope = {"torch": torch, "F": torch.nn.functional, "time": time, "np": np}
    scope |= dict(zip(NAMES, borrowed.functions("utils/sampling.py", *NAMES, **scope), strict=True))
    replace = MEND if mend else {}
    _, decode = borrowed.functions("utils/decoding.py", "Middle_Spec", "TriForce", replace=replace, **scope)
    settings = {"gamma": GAMMA, "max_len": distribution.length, "top_p": 0.0, "temperature": 1.0}

    def sample(prompts, seed):
        torch.manual_seed(seed)
        rows, drafted, accepted = [], 0, 0
        for _ in prompts:
            engine = GraphEngine(distribution)
            decode(SimpleNamespace(eos_token_id=99), engine, torch.tensor([PROMPT]), **settings)
            made = engine.tokens[len(PROMPT) : engine.seq_len]
            rows.append(made[: distribution.length])
            drafted += engine.drafted
            accepted += len(made) - engine.rounds + 2  # two calls read the prompt
        return Sampled(np.array(rows), drafted, accepted)

    return sample
