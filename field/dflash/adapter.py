"""DFlash: `dflash_generate` on the tiny Llama, with a stub that drafts."""

import time
import types
import typing

import borrowed
import numpy as np
import torch
import transformers
from parity_certify import Sampled
from parity_certify.adapters import transformers as generating

BLOCK = 3  # a block is the last token and two drafts


class Drafter:
    """In place of their draft network: hidden states of random drafts, by way of the target's own head."""

    block_size, mask_token_id, target_layer_ids = BLOCK, 0, [0]

    def __call__(self, noise_embedding, **_):
        return torch.randn_like(noise_embedding)


def sampler(distribution, models, temperature=1.0):
    """Make a sampler by their `dflash_generate`, at a temperature."""
    scope = {"torch": torch, "nn": torch.nn, "SimpleNamespace": types.SimpleNamespace, **vars(typing)}
    scope |= {"DynamicCache": transformers.DynamicCache, "_cuda_time": time.perf_counter}
    names = "extract_context_feature", "sample", "dflash_generate"
    generate = borrowed.functions("dflash/model.py", *names, **scope)[-1]
    target = generating.load_model(models / "llama")

    def sample(prompts, seed):
        torch.manual_seed(seed)
        rows, drafted, accepted = [], 0, 0
        for row in prompts:
            result = generate(
                Drafter(), target, torch.tensor(row)[None], distribution.length, None, temperature, return_stats=True
            )
            rows.append(result.output_ids[0, len(row) :].numpy())
            drafted += (BLOCK - 1) * len(result.acceptance_lengths)
            accepted += sum(result.acceptance_lengths) - len(result.acceptance_lengths)
        return Sampled(np.stack(rows), drafted, accepted)

    return sample
