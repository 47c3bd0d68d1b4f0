"""specdec: its `spec_gen` on the tiny Llama and its draft model."""

from types import SimpleNamespace

import numpy as np
import torch
from parity_certify import Sampled
from parity_certify.adapters import transformers as generating
from specdec.decoder import SpecDecoder

GAMMA = 2


def sampler(distribution, models):
    """Make a sampler by their `spec_gen`, whose results of `verify` are counted."""
    decoder = SpecDecoder.__new__(SpecDecoder)
    decoder.device = "cpu"
    decoder.big_model = generating.load_model(models / "llama")
    decoder.small_model = generating.load_model(models / "llama-assistant")
    decoder.tokenizer = SimpleNamespace(
        encode=lambda ids, **_: torch.tensor([ids]), decode=lambda ids, **_: ids.tolist()
    )
    verify = decoder.verify
    accepted = []  # drafts of each call

    def count(text, drafts, distributions):
        tokens = verify(text, drafts, distributions)
        accepted.append(len(tokens) - 1)
        return tokens

    decoder.verify = count

    def sample(prompts, seed):
        torch.manual_seed(seed)
        accepted.clear()
        texts = [decoder.spec_gen(row.tolist(), distribution.length, GAMMA)[len(row) :] for row in prompts]
        return Sampled(np.array([text[: distribution.length] for text in texts]), GAMMA * len(accepted), sum(accepted))

    return sample
