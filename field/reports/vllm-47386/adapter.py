"""vLLM 0.27.1: `sample_draft` drafts, `rejection_sample` verifies (model runner 2; Triton by its interpreter)."""

from types import SimpleNamespace

import borrowed
import numpy as np
import torch
import triton
import triton.language as tl

FOLDER = "vllm/v1/worker/gpu/"


@triton.jit
def log1p(x):  # of CUDA's library, which the interpreter does not have
    return tl.log(1 + x)


TRITON = SimpleNamespace(triton=triton, tl=tl, tldevice=SimpleNamespace(log1p=log1p), HAS_TRITON=True)


def speculation(shared=True):
    """Make the round of a batch; shared: drafts and the rest have the same seeds, as in the engine."""
    gumbel = borrowed.load_module(f"{FOLDER}sample/gumbel.py", vllm__triton_utils=TRITON)
    verify = borrowed.load_module(f"{FOLDER}spec_decode/rejection_sampler_utils.py").rejection_sample
    file = f"{FOLDER}spec_decode/speculator.py"
    (sample_draft,) = borrowed.functions(file, "sample_draft", gumbel_sample=gumbel.gumbel_sample, torch=torch)
    engine = SimpleNamespace(model=SimpleNamespace(compute_logits=lambda logits: logits), use_fp64_gumbel=False)

    def speculate(draft_model, target_model, prefixes, drafts):
        n = len(prefixes)
        rows, heat, seeds = torch.arange(n), torch.ones(n), torch.randint(2**31, (n,))
        of_drafts = seeds if shared else torch.randint(2**31, (n,))
        tokens, start = torch.from_numpy(prefixes), 5  # tokens in front of the round
        distributions = None
        for step in range(drafts):
            logits = torch.from_numpy(draft_model(tokens)).float()
            distributions = torch.zeros(n, drafts, logits.shape[1]) if distributions is None else distributions
            places = torch.full((n,), start + step - 1)  # of the hidden state, one after the token that it is given
            token = sample_draft(engine, logits, places, rows, heat, of_drafts, torch.tensor(step), distributions)
            tokens = torch.cat([tokens, token[:, None]], 1)
        target = np.stack([target_model(tokens[:, :t]) for t in range(drafts + 1)], 1)
        flat = torch.from_numpy(target).float().reshape(n * (drafts + 1), -1)
        steps = torch.arange(drafts + 1).repeat(n)
        drafted = torch.cat([torch.zeros(n, 1, dtype=torch.long), tokens], 1).reshape(-1)
        ends = torch.arange(n + 1) * (drafts + 1)
        requests, places = rows.repeat_interleave(drafts + 1), start + steps
        out, length = verify(flat, distributions, drafted, ends, places, rows, requests, steps, heat, seeds, drafts)
        return torch.where(torch.arange(drafts + 1) < length[:, None], out, -1)

    return speculate
