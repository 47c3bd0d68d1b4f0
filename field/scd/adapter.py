"""Speculative coupled decoding: one call of its samplers for Lumina-mGPT and for Cosmos."""

import typing

import borrowed
import numpy as np
import torch

LUMINA = "lumina1/scheduler/jacobi_iteration_lumina_mgpt_SCDMC.py"
COSMOS = "cosmos/cosmos1/models/autoregressive/sjd/speculative_sampler.py"
MEND = {
    "torch.where(left_mask, draft_next_tokens, advanced_tokens[:, :-1])": (
        "torch.where(left_mask, draft_next_tokens,"
        " torch.where(time_idx == cut_points, resampled_tokens, advanced_tokens[:, :-1]))"
    )
}


def make_window(tokens, q, p):
    """Make their arguments: the last token and K drafts [n, K + 1], the tokens drawn of p, draft and target probs."""
    n, _, V = q.shape
    drafts = torch.cat([torch.zeros((n, 1), dtype=torch.long), torch.tensor(tokens)], 1)
    draft = torch.cat([torch.full((n, 1, V), 1 / V), torch.tensor(q).float()], 1)
    target = torch.tensor(p).float()
    drawn = torch.multinomial(target.reshape(-1, V), 1).reshape(n, -1)
    return drafts, drawn, draft, target


def verifier(part, mend=False, **options):
    """Make a verifier of a batch by Cosmos's sampler (part "cosmos"; options: its keywords), or of a row by
    Lumina's."""
    scope = {"torch": torch, "F": torch.nn.functional, **vars(typing)}
    if part == "cosmos":
        step = borrowed.functions(COSMOS, "CosmosSpeculativeSampler", replace=MEND if mend else {}, **scope)[0]()

        def verify(tokens, q, p):
            first, out, _ = step(*make_window(tokens, q, p), **options)
            return np.where(np.arange(p.shape[1]) < np.array(first)[:, None], out.numpy(), -1)

        return verify

    (sampler,) = borrowed.functions(LUMINA, "SpeculativeSampler", **scope)

    def verify_row(tokens, q, p):
        state = {"reject_sampling_relative_ids": torch.zeros(1)}
        state |= {"reject_sampling_draft_token_logits": torch.zeros(1, q.shape[1])}
        step = sampler(sampling_last_draft_token=torch.zeros(1, dtype=torch.long), **state)
        arguments = make_window(tokens[None], q[None], p[None])
        (length,), out, _ = step(*arguments, all_collected_input_ids=torch.zeros(1, 1).long())
        return out[0, :length].tolist()

    return verify_row
