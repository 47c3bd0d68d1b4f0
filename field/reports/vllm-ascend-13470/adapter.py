"""vllm-ascend: `rejection_sample` of model runner 2, by Triton's interpreter, with vLLM 0.27.1 beneath."""

from types import SimpleNamespace

import borrowed
import torch
import triton
import triton.language as tl

FOLDER = "vllm/v1/worker/gpu/"


@triton.jit
def log1p(x):  # of CUDA's library, which the interpreter does not have
    return tl.log(1 + x)


TRITON = SimpleNamespace(triton=triton, tl=tl, tldevice=SimpleNamespace(log1p=log1p), HAS_TRITON=True)


def verifier():
    """Make the verifier of a batch."""
    borrowed.load_module(f"{FOLDER}sample/gumbel.py", vllm__triton_utils=TRITON)
    borrowed.load_module(f"{FOLDER}spec_decode/rejection_sampler_utils.py")
    sample = borrowed.load_module("vllm_ascend/worker/v2/spec_decode/rejection_sampler_utils.py").rejection_sample

    def verify(tokens, q, p):
        n, K, V = q.shape
        rows, steps = torch.arange(n), torch.arange(K + 1).repeat(n)
        target = torch.from_numpy(p).float().log().reshape(-1, V)
        drafted = torch.cat([torch.zeros(n, 1, dtype=torch.long), torch.from_numpy(tokens)], 1).reshape(-1)
        ends, requests = torch.arange(n + 1) * (K + 1), rows.repeat_interleave(K + 1)
        heat, seeds = torch.ones(n), torch.randint(2**31, (n,))
        distributions = torch.from_numpy(q).float().log()
        out, length = sample(target, distributions, drafted, ends, 5 + steps, rows, requests, steps, heat, seeds, K)
        return torch.where(torch.arange(K + 1) < length[:, None], out, -1).numpy()

    return verify
