"""Self-speculative decoding: the whole loops, on a table in place of the network, and another while it drafts."""

import contextlib

import borrowed
import numpy as np
import torch
from parity_certify import Sampled
from parity_certify.distributions import random_distribution
from transformers import TopKLogitsWarper, TopPLogitsWarper

SOFT = "draft_probs = draft_output['logits'].softmax(-1)\n                        draft_output_ids, _"
CERTAIN = "draft_probs = torch.eye(draft_output['logits'].shape[-1])[draft_output['logits'].argmax(-1)]"
MEND = {SOFT: CERTAIN + SOFT[SOFT.index("\n") :]}  # the distribution of one token


def filter_logits(logits, top_k=0, top_p=1.0):
    """Filter logits [n, V] as `top_k_top_p_filtering` of transformers 4 did."""
    logits = TopKLogitsWarper(top_k)(None, logits) if top_k else logits
    return TopPLogitsWarper(top_p)(None, logits) if top_p < 1 else logits


class Network:
    """The target's table, or the draft's within `self_draft`."""

    device = "cpu"

    def __init__(self, distribution, skip):
        self.target, self.draft = (
            borrowed.TableModel(t, skip) for t in (distribution.tables[0], distribution.extra["draft"])
        )
        self.current, self.config = self.target, type("Config", (), {"vocab_size": distribution.vocab})

    @contextlib.contextmanager
    def self_draft(self):
        self.current = self.draft
        yield
        self.current = self.target

    def __call__(self, **inputs):
        return vars(self.current(**inputs))


def sampler(distribution, models, function="self_speculative_sample", mend=False, **options):
    """Make a sampler by their `function`, with `mend` corrected by MEND; options: its keywords."""
    scope = {"torch": torch, "top_k_top_p_filtering": filter_logits, "replace": MEND if mend else {}}
    generate = borrowed.functions("decoding.py", "sample", "max_fn", function, **scope)[-1]
    raw = random_distribution(distribution.vocab, distribution.length)  # the distribution before temperature and top-p

    def sample(prompts, seed):
        torch.manual_seed(seed)
        skip = prompts.shape[1]
        rows, drafted, accepted = [], 0, 0
        settings = {"max_new_tokens": distribution.length + 1, "max_step_draft": 2, "do_sample": True} | options
        for row in prompts:
            made = generate(Network(raw, skip), None, torch.tensor(row)[None], **settings)
            rows.append(made["generate_ids"][0, : distribution.length].numpy())
            drafted += made["num_drafted_tokens"]
            accepted += round(made["matchness"] * made["num_drafted_tokens"])
        return Sampled(np.stack(rows), drafted, accepted)

    return sample
