"""gpt-fast: `speculative_decode`, one step, with stubs in place of the two networks."""

from typing import Optional

import borrowed
import torch


def verifier(**options):
    """Make a verifier of one row by their `speculative_decode`; options: its keywords, as temperature and top_k."""
    inputs = {}
    scope = {"torch": torch, "Optional": Optional, "Transformer": object}
    scope["decode_n_tokens"] = lambda *_, **__: ([t.view(1) for t in inputs["tokens"]], list(inputs["q"]))
    scope["model_forward"] = lambda *_: inputs["logits"]
    names = "multinomial_sample_one_no_sync", "logits_to_probs", "speculative_decode"
    decode = borrowed.functions("generate.py", *names, **scope)[-1]

    def verify(tokens, q, p):
        inputs["tokens"], inputs["q"] = torch.tensor(tokens, dtype=torch.int), torch.tensor(q).float()
        inputs["logits"] = torch.tensor(p).float().log()[None] * options.get("temperature", 1.0)
        return decode("target", "draft", torch.zeros(1, dtype=torch.int), 5, len(tokens), **options).tolist()

    return verify
