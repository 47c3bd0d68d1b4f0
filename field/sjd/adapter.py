"""Speculative Jacobi decoding: one call of `SpeculativeSampler`, whose window is the last token and K drafts."""

import borrowed
import torch


def verifier():
    """Make a verifier of one row by a fresh `SpeculativeSampler` in each call."""
    scope = {"torch": torch, "F": torch.nn.functional}
    (sampler,) = borrowed.functions("scheduler/jacobi_iteration_lumina_mgpt.py", "SpeculativeSampler", **scope)

    def verify(tokens, q, p):
        V = q.shape[1]
        state = {"reject_sampling_relative_ids": torch.zeros(1)}
        state |= {"reject_sampling_draft_token_logits": torch.zeros(1, V)}
        step = sampler(sampling_last_draft_token=torch.zeros(1, dtype=torch.long), **state)
        window = torch.tensor([[0, *tokens]])
        draft = torch.cat([torch.full((1, 1, V), 1 / V), torch.tensor(q)[None].float()], 1)
        target = torch.tensor(p)[None].float()
        own = torch.multinomial(target[0], 1).T  # what they draw from the target at each position, before the step
        (length,), found, _ = step(window, own, draft, target, all_collected_input_ids=torch.zeros(1, 1).long())
        return found[0, :length].tolist()

    return verify
