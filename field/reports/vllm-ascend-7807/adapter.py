"""vllm-ascend: `rejection_sample` without Triton, on a batch of rows with as many drafts."""

from types import SimpleNamespace

import borrowed
import torch

NAMES = (
    "sample_recovered_tokens_pytorch", "sample_recovered_tokens", "rejection_random_sample_pytorch",
    "rejection_random_sample_block_verify_pytorch", "rejection_sample",
)  # fmt: skip
PAGEABLE = {"pin_memory=True": "pin_memory=False"}
SCOPE = {"torch": torch, "HAS_TRITON": False, "PLACEHOLDER_TOKEN_ID": -1, "GREEDY_TEMPERATURE": 0}


def draw_uniforms(num_tokens, num_draft_tokens, generators, device):
    """Stand in for vLLM's function that draws the uniforms of a batch."""
    return torch.rand(num_tokens, dtype=torch.float64)


def verifier(ngram=False, logits=True, names=NAMES, replace=PAGEABLE, **scope):
    """Make the verifier; ngram: drafts are certain, and their distributions are not handed over; logits: the target's
    are handed over as logits, else as probabilities; replace: texts of the file and what is put in their place; scope:
    more that a version's functions find as globals."""
    file = "vllm_ascend/sample/rejection_sampler.py"
    scope = SCOPE | {"generate_uniform_probs": draw_uniforms} | scope
    sample = borrowed.functions(file, *names, replace=replace, **scope)[-1]

    def verify(tokens, q, p):
        n, K, V = q.shape
        drafts, distributions = torch.from_numpy(tokens).reshape(-1), torch.from_numpy(q).float().reshape(-1, V)
        target = torch.from_numpy(p[:, :K]).float().reshape(-1, V)
        if logits:  # about zero, as a model's are
            target = target.log()
            target = target - target.clamp(min=-20).mean(-1, keepdim=True)
        bonus = torch.multinomial(torch.from_numpy(p[:, K]), 1)
        request = SimpleNamespace(all_greedy=False, all_random=True, generators={}, temperature=torch.ones(n))
        ends = torch.arange(1, n + 1) * K
        return sample(drafts, [K] * n, K, ends, None if ngram else distributions, target, bonus, request).numpy()

    return verify
