"""mlx-lm: a repetition penalty does not see the prompt in speculative_generate_step. Exit code 1: the fault shows."""

import sys

import mlx.core as mx
from mlx_lm.generate import generate_step, speculative_generate_step
from mlx_lm.models.llama import Model, ModelArgs

mx.random.seed(0)
model = Model(ModelArgs("llama", 16, 1, 32, 2, 1e-5, vocab_size=8))
mx.eval(model.parameters())
prompt = mx.array([5, 1, 3, 2])


def record_contexts(generate, *models):
    """Record what the logits processor is handed as the tokens so far, at every call."""
    contexts = []

    def processor(tokens, logits):
        contexts.append(tokens.tolist())
        return logits

    list(generate(prompt, *models, max_tokens=2, logits_processors=[processor]))
    return contexts


plain = record_contexts(generate_step, model)
drafted = record_contexts(speculative_generate_step, model, model)
missing = [x for x in drafted if x[: len(prompt)] != prompt.tolist()]
print(f"plain sampling hands its processors {plain[0]} first, with drafts {drafted[0]};", end=" ")
print(f"{len(missing)} of {len(drafted)} calls lack the prompt")
sys.exit(1 if missing else 0)
