"""transformers: `_speculative_sampling` alone, and `generate` with its ways to draft."""

import torch
from parity_certify.adapters import transformers as generating
from transformers import generation


def verifier(assistant_ensemble_weight=None):
    """Make a verifier of one row by `_speculative_sampling`, handed drafts and logits as `_assisted_decoding` does."""

    def verify(tokens, q, p):
        ids, (q, p) = torch.from_numpy(tokens)[None], (torch.from_numpy(x).log().float()[None] for x in (q, p))
        out, _ = generation.utils._speculative_sampling(ids, q, ids.shape[1], p, assistant_ensemble_weight)
        return out[0].tolist()

    return verify


def sampler(law, models, assistant="llama-assistant", **options):
    """Make a sampler by `generate`, one prompt a call; assistant: a draft model's folder, "" to draft without one."""
    model = generating.load_model(models / "llama")
    if assistant:
        options["assistant_model"] = generating.load_model(models / assistant)
    if "other" in assistant:
        options["tokenizer"] = generating.load_tokenizer(models / "llama")
        options["assistant_tokenizer"] = generating.load_tokenizer(models / assistant)
    return generating.Generate(model, law.length, options)
