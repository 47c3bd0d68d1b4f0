"""lucidrains/speculative-decoding: its loop on two small decoders of its own, several rows a call."""

import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from parity_certify import Distribution, Sampled

SOURCE = Path(os.environ["REPOSITORY"], "speculative_decoding/speculative_decoding.py").read_text()
UNMASKED = "attn_out, cached_kv = attn(x, rotary_emb"
MASKED = "attn_out, cached_kv = attn(x, context_mask = self_attn_kv_mask, rotary_emb"

GAMMA, LENGTH, VOCAB = 2, 4, 3


def load_module(mend=False):
    """Load their module; with the mend, a row's attention ignores the padding in front of it."""
    scope = {"__name__": "theirs"}
    exec(SOURCE.replace(UNMASKED, MASKED) if mend else SOURCE, scope)
    return SimpleNamespace(**scope)


@torch.no_grad()
def make_models(theirs):
    """Make two decoders with larger weights than at first, so that their distributions depend on the prefix."""
    torch.manual_seed(0)
    size = {"num_tokens": VOCAB, "dim": 16, "heads": 2, "dim_head": 8}
    decoders = [theirs.Decoder(depth=depth, **size).eval() for depth in (2, 1)]
    for weight in [weight for model in decoders for weight in model.parameters()]:
        weight.mul_(2)
    return decoders


@torch.no_grad()
def distribution(case, models):
    """Compute the larger decoder's distribution by a pass over every prefix of one row."""
    target, prompt = make_models(load_module())[0], [2, 0, 1]
    prefixes = [prefix for length in range(LENGTH) for prefix in np.ndindex((VOCAB,) * length)]
    rows = [target(torch.tensor([[*prompt, *prefix]]))[0, -1].double().softmax(0) for prefix in prefixes]
    return Distribution("two layers", np.array([prompt]), torch.stack(rows).numpy()[None], LENGTH)


def sampler(distribution, models, rows, plain=False, mend=False):
    """Make a sampler by their loop, `rows` rows a call; plain: without drafts; mend: see `load_module`."""
    theirs = load_module(mend)
    target, draft = make_models(theirs)

    def sample(prompts, seed):
        torch.manual_seed(seed)
        tokens, accepted = [], 0.0
        for i in range(0, len(prompts), rows):
            chunk = torch.tensor(prompts[i : i + rows])
            end = chunk.shape[1] + LENGTH
            if plain:
                tokens.append(theirs.base_decoding(target, chunk, end, filter_thres=0.0))
                continue
            out, mean = theirs.speculative_decoding(target, draft, chunk, end, gamma=GAMMA, filter_thres=0.0)
            tokens.append(out)
            accepted += float(mean) * len(chunk)  # they return the mean of one pass
        out = np.concatenate([x.numpy() for x in tokens])
        return out if plain else Sampled(out, GAMMA * len(out), round(accepted))

    return sample
