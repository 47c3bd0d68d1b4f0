"""romsto/Speculative-Decoding: `speculative_generate` on the tiny Llama and its draft model."""

import abc
import typing

import borrowed
import numpy as np
import torch
from parity_certify import Sampled
from parity_certify.adapters import transformers as generating

GAMMA = 2


def sampler(distribution, models, temperature=1.0, top_k=0):
    """Make a sampler by their `speculative_generate`; top_k 0: no top-k."""
    scope = {"torch": torch, "F": torch.nn.functional, "Tensor": torch.Tensor, "abc": abc, "Module": object}
    scope |= vars(typing) | {"DynamicCache": object, "printing": None}
    names = "LogitsProcessor", "GreedyProcessor", "MultinomialProcessor", "TopKProcessor"
    scope |= dict(zip(names, borrowed.functions("utils/logits_processor.py", *names, **scope), strict=True))
    processor = scope["TopKProcessor"](temperature, top_k) if top_k else scope["MultinomialProcessor"](temperature)
    generate = borrowed.functions("sampling/speculative_decoding.py", "max_fn", "speculative_generate", **scope)[1]
    target, draft = generating.load_model(models / "llama"), generating.load_model(models / "llama-assistant")
    drafts = []
    draft.register_forward_hook(lambda *_: drafts.append(1))

    def sample(prompts, seed):
        torch.manual_seed(seed)
        settings = {
            "gamma": GAMMA,
            "logits_processor": processor,
            "max_gen_len": distribution.length,
            "eos_tokens_id": 99,
        }
        tokens, accepted, start = [], 0, len(drafts)
        for row in prompts:
            previous = len(drafts)
            out, share = generate(row.tolist(), draft, target, **settings)
            tokens.append(out)
            accepted += round(share * (len(drafts) - previous))
        return Sampled(np.array(tokens), len(drafts) - start, accepted)

    return sample
