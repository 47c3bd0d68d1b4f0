"""mlx-lm: `speculative_generate_step` on the tiny Llama and its draft model, `generate_step` with plain sampling."""

import mlx.core as mx
import numpy as np
from mlx_lm.generate import generate_step, speculative_generate_step
from mlx_lm.sample_utils import make_logits_processors, make_sampler
from mlx_lm.utils import load_model
from parity_certify import Law, Sampled

ROUNDS = 3  # of tokens


def law(case, models):
    """The tiny Llama's law. A repetition penalty divides positive logits of tokens seen, multiplies negative ones."""
    penalty, temperature = case["options"].get("penalty", 1.0), case["options"].get("temperature", 1.0)
    model, _ = load_model(models / "llama")
    with np.load(models / "law-3.npz") as kept:
        prompts, tables = kept["prompts"], kept["tables"]
    if penalty == 1:
        tables = tables ** (1 / temperature)
        return Law("tiny Llama", prompts, tables / tables.sum(-1, keepdims=True), ROUNDS)
    found = []
    for prompt in prompts:
        paths = np.array(np.unravel_index(np.arange(16), (4, 4))).T
        logits = np.array(model(mx.array(np.concatenate([np.tile(prompt, (16, 1)), paths], 1))).astype(mx.float32))
        rows = []
        for t in range(ROUNDS):
            for path, own in zip(paths[:: 4 ** (2 - t)], logits[:: 4 ** (2 - t), len(prompt) + t - 1], strict=True):
                seen = np.unique([*prompt, *path[:t]])
                own = own.astype(float)
                own[seen] = np.where(own[seen] > 0, own[seen] / penalty, own[seen] * penalty)
                rows.append(np.exp(own - own.max()))
        rows = np.array(rows)
        found.append(rows / rows.sum(1, keepdims=True))
    return Law("tiny Llama, penalty", prompts, np.stack(found), ROUNDS)


def sampler(law, models, drafts=3, penalty=1.0, temperature=1.0):
    model, draft = (load_model(models / name)[0] for name in ("llama", "llama-assistant"))
    draw = make_sampler(temp=temperature)
    processors = make_logits_processors(repetition_penalty=penalty) if penalty != 1 else None
    common = {"max_tokens": law.length, "sampler": draw, "logits_processors": processors}

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
