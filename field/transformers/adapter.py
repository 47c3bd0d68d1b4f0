"""transformers: `_speculative_sampling` alone, and `generate` with its ways to draft."""

import functools
import tempfile
from pathlib import Path

import numpy as np
import torch
from case import make_distribution
from parity_certify import models as tiny
from parity_certify.adapters import transformers as generating
from transformers import generation


def verifier(assistant_ensemble_weight=None):
    """Make a verifier of one row by `_speculative_sampling`, handed drafts and logits as `_assisted_decoding` does."""

    def verify(tokens, q, p):
        ids, (q, p) = torch.from_numpy(tokens)[None], (torch.from_numpy(x).log().float()[None] for x in (q, p))
        out, _ = generation.utils._speculative_sampling(ids, q, ids.shape[1], p, assistant_ensemble_weight)
        return out[0].tolist()

    return verify


class Mended:
    """One of their candidate generators, whose candidates are corrected after they are made."""

    def __init__(self, inner):
        self.inner = inner

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def get_candidates(self, input_ids, **inputs):
        """Return tokens and logits: a drawn token in place of the likeliest, or logits under the right tokens."""
        ids, logits = self.inner.get_candidates(input_ids, **inputs)
        names = getattr(self.inner, "_atm_translator", None)
        if logits is None:
            return ids, logits
        if names is None:
            return torch.cat([input_ids, torch.multinomial(logits[0].softmax(-1), 1)], 1), logits
        targets = names._assistant_to_target_input_ids
        recorded = targets[targets != names.SUPPRESS_TOKEN_ID]  # where each logit of the pruned head was put
        moved = torch.full_like(logits, -torch.inf)
        moved[..., targets[names.assistant_overlap_token_ids]] = logits[..., recorded]  # where it belongs
        return ids, moved


@functools.cache
def write_target(target):
    """Write Mellum or Gemma 4 to a new folder, and return that."""
    folder = Path(tempfile.mkdtemp())
    {"mellum": tiny.write_mellum, "gemma4": tiny.write_gemma4}[target](folder)
    return folder


def distribution(case, models):
    """Make the distribution of the tiny Llama, or of the model that the option `target` names."""
    target = case["options"].get("target")
    if not target:
        return make_distribution(case, models)
    prompts = np.random.default_rng(0).integers(4, size=(2, 3))
    return generating.compute_distribution(generating.load_model(write_target(target) / target), prompts, 3)


def sampler(distribution, models, target="", assistant="llama-assistant", mend=False, **options):
    """Make a sampler by `generate`, one prompt a call; target: "" for the tiny Llama; assistant: a draft model's
    folder, "" to draft without one; mend: see Mended."""
    models = write_target(target) if target else models
    model = generating.load_model(models / (target or "llama"))
    if assistant:
        options["assistant_model"] = generating.load_model(models / assistant)
    if "other" in assistant:
        options["tokenizer"] = generating.load_tokenizer(models / "llama")
        options["assistant_tokenizer"] = generating.load_tokenizer(models / assistant)
    if mend:
        options["candidate_generator"] = Mended
    return generating.Generate(model, distribution.length, options)
