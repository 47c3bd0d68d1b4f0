"""mini-infer: its speculative step on tables, and its engine with a prefix cache on a small Qwen2 of its own."""

import inspect

import borrowed
import case
import numpy as np
import torch
from mini_infer import engine as theirs
from mini_infer.models.config import Qwen2Config
from mini_infer.models.qwen2 import Qwen2ForCausalLM
from mini_infer.speculative.verifier import speculative_step
from parity_certify import Distribution, Sampled

LENGTH, DRAFTS = 3, 2
MISSING = "seq.prompt_tokens_processed = num_cached\n"
KEYS_AND_VALUES = """\
                    num_read = min(num_cached, len(input_tokens) - 1)
                    seq.past_key_values = [
                        self.block_pool.read_sequence_kv(i, cached_blocks, num_read)
                        for i in range(self.block_pool.num_layers)
                    ]
"""
CONFIG = Qwen2Config(4, 16, 32, 2, 2, 1, 8, tie_word_embeddings=False)


@torch.no_grad()
def make_model():
    """Make their Qwen2 with weights so large that its distribution depends on the prompt."""
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(CONFIG).eval()
    for weight in model.parameters():
        weight.mul_(2)
    return model


@torch.no_grad()
def distribution(about, models):
    """Compute the distribution: a table for `speculative_step`, else their Qwen2's after two prompts of 20 tokens."""
    if "step" in about["options"]:
        return case.make_distribution(about, models)
    model, prompts = make_model(), np.random.default_rng(0).integers(4, size=(2, 20))
    prefixes = [prefix for length in range(LENGTH) for prefix in np.ndindex((4,) * length)]
    tables = [
        [model(torch.tensor([[*x, *prefix]]))[0][0, -1].double().softmax(0) for prefix in prefixes] for x in prompts
    ]
    return Distribution("a small Qwen2", prompts, np.stack([torch.stack(table).numpy() for table in tables]), LENGTH)


def sampler(distribution, models, step=False, temperature=1.0, cache=True, mend=False):
    """Make a sampler by `speculative_step` (`step`) or by the engine, which draws without drafts; mend: the keys and
    values of a cached prefix are read."""
    if step:
        return make_speculative_sampler(distribution, temperature)
    source = inspect.getsource(theirs)
    assert MISSING in source
    scope = {"__name__": "theirs"}
    exec(source.replace(MISSING, MISSING + KEYS_AND_VALUES) if mend else source, scope)
    engine = scope["InferenceEngine"](make_model(), CONFIG, enable_prefix_caching=cache, device=torch.device("cpu"))

    def sample(prompts, seed):
        torch.manual_seed(seed)
        requests = [engine.add_request(row.tolist(), max_tokens=LENGTH, temperature=1.0) for row in prompts]
        while engine.scheduler.has_unfinished_sequences():
            engine.step()
        return [request.output_token_ids for request in requests]

    return sample


def make_speculative_sampler(distribution, temperature):
    """Make a sampler by their step in a loop, two drafts a step."""

    def sample(prompts, seed):
        torch.manual_seed(seed)
        skip, rows, steps, accepted = prompts.shape[1], [], 0, 0
        target = make_table_model(distribution.tables[0] ** temperature, skip)
        draft = make_table_model(distribution.extra["draft"], skip)
        for prompt in prompts:
            tokens = prompt.tolist()
            while len(tokens) < skip + distribution.length:
                new, right = speculative_step(target, draft, torch.tensor([tokens]), DRAFTS, temperature)
                tokens, steps, accepted = tokens + new, steps + 1, accepted + right
            rows.append(tokens[skip : skip + distribution.length])
        return Sampled(np.array(rows), DRAFTS * steps, accepted)

    return sample


def make_table_model(table, skip):
    """Make a table answer as their networks do: logits, and no cache."""
    model = borrowed.TableModel(table, skip)
    return lambda tokens: (model(tokens).logits, None)
