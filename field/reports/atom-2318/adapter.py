"""ATOM: `rejection_sample`, by Triton's interpreter."""

import borrowed
import torch


def verifier():
    """Make the verifier of a batch; the bonus token is drawn from its distribution, as the engine's sampler does."""
    stubs = dict.fromkeys(("atom", "atom__utils", "atom__utils__forward_context"))
    stubs["atom__utils"] = type("utils", (), {"envs": type("envs", (), {"ATOM_ENABLE_RELAXED_MTP": False})})
    sample = borrowed.load_module("atom/model_ops/rejection_sampler.py", **stubs).rejection_sample

    def verify(tokens, q, p):
        n, K, V = q.shape
        distributions, ends = torch.from_numpy(p).float(), (torch.arange(n, dtype=torch.int32) + 1) * K
        drafted = torch.from_numpy(tokens).int().reshape(-1)
        bonus = torch.multinomial(distributions[:, K], 1).int()
        logits = distributions[:, :K].log().reshape(-1, V).contiguous()
        return sample(drafted, K, ends, None, logits, bonus)[0].numpy()

    return verify
