"""economize: its decoding loop on the tiny Llama, and its rejection sampling over a tree."""

import economize
import numpy as np
import torch
from economize.decoding.verifiers import RejectionVerifier
from economize.techniques.draft_model import DraftModelConfig
from economize.techniques.lookup import LookupConfig
from parity_certify import Sampled
from parity_certify.adapters import transformers as generating

TOKENS = 3  # of a cycle: one exact, two drafts
ROWS = 500  # at once


def sampler(distribution, models, drafter, temperature=1.0, top_p=1.0, verifier="rejection"):
    """Make a sampler by their `decode_batch` with a drafter."""
    draft = DraftModelConfig(model=str(models / "llama-assistant"), dtype="float32")
    target = generating.load_model(models / "llama")
    model = economize.apply(target, {"draft_model": draft, "lookup": LookupConfig()}[drafter])
    decoding = economize.DecodeConfig(cycle_length=TOKENS, verifier=verifier)

    def sample(prompts, seed):
        selector = economize.TopPSampler(temperature, top_p, seed)
        batches = (torch.tensor(prompts[i : i + ROWS]) for i in range(0, len(prompts), ROWS))
        rows = [
            r for b in batches for r in model.decode_batch(b, distribution.length, decoding=decoding, selector=selector)
        ]
        drafted, accepted = np.sum([pair for row in rows for pair in row.acceptance], 0)
        return Sampled(np.array([row.tokens.tolist() for row in rows]), int(drafted), int(accepted))

    return sample


def verifier():
    """Make a verifier of one tree by their `verify_tree`."""
    theirs = RejectionVerifier(economize.DecodeConfig(verifier="rejection"))

    def verify(tokens, parents, q, p, rng):
        draft = economize.Draft(
            torch.tensor(tokens)[None], [len(tokens)], torch.tensor(parents)[None], torch.tensor(q)[None].float()
        )
        selector = economize.TopPSampler(seed=int(rng.integers(2**60)))
        paths, following = theirs.verify_tree(torch.tensor(p)[None].float().log(), draft, selector)
        return [*(int(tokens[i]) for i in paths[0]), following[0]]

    return verify
