"""mlx-lm: `speculative_generate_step` on the tiny Llama and its draft model, `generate_step` with plain sampling."""

import mlx.core as mx
import numpy as np
from mlx_lm.generate import generate_step, speculative_generate_step
from mlx_lm.sample_utils import make_logits_processors, make_sampler
from mlx_lm.utils import load_model
from parity_certify import Distribution, Sampled

ROUNDS = 3  # number of tokens drawn


def distribution(case, models):
    """Compute the tiny Llama's distribution; a penalty divides positive logits of earlier tokens, multiplies others."""
    penalty, temperature = case["options"].get("penalty", 1.0), case["options"].get("temperature", 1.0)
    model, _ = load_model(models / "llama")
    with np.load(models / "llama-law-3.npz") as saved:
        prompts, tables = saved["prompts"], saved["tables"]
    if penalty == 1:
        tables = tables ** (1 / temperature)
        return Distribution("tiny Llama", prompts, tables / tables.sum(-1, keepdims=True), ROUNDS)
    tables_by_prompt = []
    for prompt in prompts:
        paths = np.array(np.unravel_index(np.arange(16), (4, 4))).T
        logits = np.array(model(mx.array(np.concatenate([np.tile(prompt, (16, 1)), paths], 1))).astype(mx.float32))
        rows = []
        for t in range(ROUNDS):
            for path, logit in zip(paths[:: 4 ** (2 - t)], logits[:: 4 ** (2 - t), len(prompt) + t - 1], strict=True):
                context = np.unique([*prompt, *path[:t]])
                logit = logit.astype(float)
                logit[context] = np.where(logit[context] > 0, logit[context] / penalty, logit[context] * penalty)
                rows.append(np.exp(logit - logit.max()))
        rows = np.array(rows)
        tables_by_prompt.append(rows / rows.sum(1, keepdims=True))
    return Distribution("tiny Llama, penalty", prompts, np.stack(tables_by_prompt), ROUNDS)


def sampler(distribution, models, drafts=3, penalty=1.0, temperature=1.0):
    """Make a sampler by mlx-lm with so many drafts a step; 0: plain sampling, whose drafts are not counted."""
    model, draft = (load_model(models / name)[0] for name in ("llama", "llama-assistant"))
    draw = make_sampler(temp=temperature)
    processors = make_logits_processors(repetition_penalty=penalty) if penalty != 1 else None
    common = {"max_tokens": distribution.length, "sampler": draw, "logits_processors": processors}

    def sample(prompts, seed):
        mx.random.seed(seed)
        if not drafts:
            return [[int(t) for t, _ in generate_step(mx.array(p), model, **common)] for p in prompts]
        rows = [
            list(speculative_generate_step(mx.array(p), model, draft, num_draft_tokens=drafts, **common))
            for p in prompts
        ]
        accepted = sum(bool(from_draft) for row in rows for _, _, from_draft in row)
        return Sampled([[int(t) for t, *_ in row] for row in rows], drafts * len(rows), accepted)

    return sample
