"""vLLM 0.6.4.post1: its `RejectionSampler` in a loop over the tiny Llamas; rows have their own seed or none."""

import borrowed
import numpy as np
import torch
from case import load_logits, truncate_distributions
from parity_certify import Sampled
from parity_certify.design import make_conditions
from parity_certify.processors import softmax


def load_sampler():
    """Load the class of the sampler."""
    folder = "vllm/model_executor/layers/"
    borrowed.load_module(f"{folder}spec_decode_base_sampler.py")
    stubs = dict.fromkeys(("vllm", "vllm__envs", "vllm__logger"))
    made = borrowed.load_module(f"{folder}rejection_sampler.py", **stubs).RejectionSampler(use_flashinfer=False)
    made.init_gpu_tensors("cpu")
    return made


def design(models, mixed=True):
    """Make the conditions of the default design; mixed: rows without a seed have no generator."""
    verify, target, assistant = load_sampler(), load_logits(models), load_logits(models, "draft_logits")

    def sample(prompts, seed, *, length, drafts, temperature=1.0, top_k=0, top_p=1.0, rows=None):
        """Draw all rows in one batch."""
        n, P = prompts.shape
        torch.manual_seed(seed)
        common = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
        options = [common | row for row in rows or [{}] * n]
        unseeded = [i for i, row in enumerate(options) if row.pop("seed", 0) is None]
        generators = {i: torch.Generator().manual_seed(seed * 10**6 + i) for i in range(n)}
        seeded = {i: g for i, g in generators.items() if rows and not (mixed and i in unseeded)}
        out = [prompt.tolist() for prompt in prompts]

        def compute_distribution(logits, i, tokens):
            """Compute the distribution [V] of row i after its tokens; after those asked for any will do."""
            if len(tokens) >= P + length:
                return np.full(4, 0.25)
            return truncate_distributions(softmax(logits([tokens]))[0], **options[i])

        offered = accepted = 0
        while min(map(len, out)) < P + length:
            tokens, distributions = [list(row) for row in out], np.zeros((n, drafts, 4))
            for i in range(n):
                for k in range(drafts):
                    distributions[i, k] = compute_distribution(assistant, i, tokens[i])
                    distribution = torch.from_numpy(distributions[i, k])
                    tokens[i].append(int(torch.multinomial(distribution, 1, generator=generators[i])))
            p = [
                [compute_distribution(target, i, tokens[i][: len(out[i]) + k]) for k in range(drafts + 1)]
                for i in range(n)
            ]
            p, q = torch.tensor(np.array(p)).float(), torch.from_numpy(distributions).float()
            bonus = torch.cat([torch.multinomial(p[i, -1], 1, generator=generators[i]) for i in range(n)])
            drafted = torch.tensor([row[-drafts:] for row in tokens])
            new = verify(p, bonus[:, None], q, drafted, seeded_seqs=seeded)
            for row, added in zip(out, new.tolist(), strict=True):
                row += [token for token in added if token >= 0]
            offered += n * drafts
            accepted += int((new >= 0).sum()) - n
        return Sampled(np.array([row[P : P + length] for row in out]), offered, accepted)

    return make_conditions(sample, target, vocab=4)
