"""vLLM 0.8.4: `compute_probs_and_sample_next_token` drafts, `rejection_sample` verifies (Triton by its interpreter)."""

from types import SimpleNamespace

import borrowed
import numpy as np
import torch

STUBS = ("vllm__logger", "vllm__v1__sample__metadata", "vllm__v1__sample__ops__topk_topp_sampler")
STUBS = (*STUBS, "vllm__v1__spec_decode__metadata")
MEND = {"probs.div_(q)": "probs.div(q)"}


def speculation(mend=False):
    """Make the round of a batch; mend: q is not overwritten."""
    names, file = ("compute_probs_and_sample_next_token",), "vllm/v1/spec_decode/eagle.py"
    (draft,) = borrowed.functions(file, *names, replace=MEND if mend else {}, torch=torch)
    verify = borrowed.load_module("vllm/v1/sample/rejection_sampler.py", **dict.fromkeys(STUBS)).rejection_sample

    def speculate(draft_model, target_model, prefixes, drafts):
        n = len(prefixes)
        request = SimpleNamespace(all_greedy=False, all_random=True, generators={}, temperature=torch.ones(n))
        tokens, distributions = torch.from_numpy(prefixes), []
        for _ in range(drafts):
            token, distribution = draft(torch.from_numpy(draft_model(tokens)).float(), request)
            tokens = torch.cat([tokens, token[:, None]], 1)
            distributions.append(distribution)
        logits = np.stack([target_model(tokens[:, :t]) for t in range(drafts + 1)], 1)
        p = torch.from_numpy(logits).float().softmax(-1)
        target, q = (x.reshape(n * drafts, -1).contiguous() for x in (p[:, :-1], torch.stack(distributions, 1)))
        ends, bonus = torch.arange(1, n + 1) * drafts, torch.multinomial(p[:, -1], 1)
        return verify(tokens.reshape(-1), [drafts] * n, drafts, ends, q, target, bonus, request)

    return speculate
