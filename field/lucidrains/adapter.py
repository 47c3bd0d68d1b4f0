"""lucidrains/speculative-decoding: its loop on two small decoders of its own, several rows a call."""

import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from parity_certify import Law, Sampled

SOURCE = Path(os.environ["REPOSITORY"], "speculative_decoding/speculative_decoding.py").read_text()
UNMASKED = "attn_out, cached_kv = attn(x, rotary_emb"
MASKED = "attn_out, cached_kv = attn(x, context_mask = self_attn_kv_mask, rotary_emb"

GAMMA, LENGTH, VOCAB = 2, 4, 3


def module_of(mend=False):
    """Their module; with the mend, a row's attention leaves out what stands in front of it in a batch."""
    scope = {"__name__": "theirs"}
    exec(SOURCE.replace(UNMASKED, MASKED) if mend else SOURCE, scope)
    return SimpleNamespace(**scope)


@torch.no_grad()
def models_of(theirs):
    """Two decoders; larger weights than they begin with, so that their laws depend on what stands before."""
    torch.manual_seed(0)
    size = {"num_tokens": VOCAB, "dim": 16, "heads": 2, "dim_head": 8}
    found = [theirs.Decoder(depth=depth, **size).eval() for depth in (2, 1)]
    for weight in [weight for model in found for weight in model.parameters()]:
        weight.mul_(2)
    return found


@torch.no_grad()
def law(case, models):
    """The larger decoder's law, by a pass over every prefix of one row."""
    target, prompt = models_of(module_of())[0], [2, 0, 1]
    prefixes = [prefix for length in range(LENGTH) for prefix in np.ndindex((VOCAB,) * length)]
    rows = [target(torch.tensor([[*prompt, *prefix]]))[0, -1].double().softmax(0) for prefix in prefixes]
    return Law("two layers", np.array([prompt]), torch.stack(rows).numpy()[None], LENGTH)


def sampler(law, models, rows, plain=False, mend=False):
    theirs = module_of(mend)
    target, draft = models_of(theirs)

    def sample(prompts, seed):
        torch.manual_seed(seed)
        tokens, accepted = [], 0.0
        for i in range(0, len(prompts), rows):
            part = torch.tensor(prompts[i : i + rows])
            end = part.shape[1] + LENGTH
            if plain:
                tokens.append(theirs.base_decoding(target, part, end, filter_thres=0.0))
                continue
            found, mean = theirs.speculative_decoding(target, draft, part, end, gamma=GAMMA, filter_thres=0.0)
            tokens.append(found)
            accepted += float(mean) * len(part)  # of one pass
        out = np.concatenate([x.numpy() for x in tokens])
        return out if plain else Sampled(out, GAMMA * len(out), round(accepted))

    return sample
