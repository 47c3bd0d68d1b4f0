"""divine-mtp: its greedy `generate` on a small Llama whose choice depends on the text, with random heads."""

import builtins
import inspect
from importlib import import_module

import numpy as np
import torch
from parity_certify import Distribution, Sampled
from transformers import LlamaConfig, LlamaForCausalLM

builtins.Tuple = tuple  # which their trainer.py uses and does not import
inference, theirs = import_module("divine_mtp.inference"), import_module("divine_mtp.model")

LENGTH, PROMPTS = 4, 4
SURPLUS = """surplus = past_key_values.get_seq_length() - curr_input_ids.size(1) + 1
            if surplus:
                past_key_values.crop(-surplus)"""
MEND = {
    "input_ids=verify_input[:, 1:]": "input_ids=verify_input",
    "# Evaluate candidates with past KV cache": SURPLUS,  # after a step whose drafts were all accepted
}


def make_model():
    """Make a Llama of two layers with large weights, so that its most probable token depends on the text."""
    torch.manual_seed(0)
    size = {"vocab_size": 4, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
    return LlamaForCausalLM(LlamaConfig(num_attention_heads=2, initializer_range=1.0, **size)).eval()


@torch.no_grad()
def distribution(case, models):
    """Compute the distribution of greedy decoding: one sequence for each of four prompts."""
    model = make_model()
    prompts = np.random.default_rng(1).integers(4, size=(PROMPTS, 3))
    return Distribution(
        "a small Llama, greedy", prompts, np.stack([make_table(model, prompt) for prompt in prompts]), LENGTH
    )


def make_table(model, prompt):
    """Make a table by prefix [N, 4] whose rows name the most probable token."""
    levels = []
    for length in range(LENGTH):
        prefixes = np.array(list(np.ndindex((4,) * length)), dtype=int).reshape(4**length, length)
        tokens = np.concatenate([np.tile(prompt, (len(prefixes), 1)), prefixes], 1)
        levels.append(np.eye(4)[model(torch.tensor(tokens)).logits[:, -1].argmax(-1).numpy()])
    return np.concatenate(levels)


def sampler(distribution, models, mend=False):
    """Make a sampler by their engine; mend: the last token is fed, and the cache ends before it."""
    source = inspect.getsource(inference)
    for old, new in MEND.items() if mend else ():
        assert old in source, old
        source = source.replace(old, new)
    scope = {"__name__": "theirs"}
    exec(source, scope)
    wrapper = theirs.attach_divine_mtp(make_model(), num_heads=2, rank=8)
    for weight in wrapper.mtp.heads.parameters():  # at first a head repeats the token drawn last
        torch.nn.init.normal_(weight)
    engine = scope["DivineMtpInferenceEngine"](wrapper)

    def sample(prompts, seed):
        results = [engine.generate(torch.tensor(prompt)[None], max_new_tokens=LENGTH) for prompt in prompts]
        tokens = [r.token_ids[3 : 3 + LENGTH] for r in results]
        return Sampled(tokens, sum(r.total_proposed for r in results), sum(r.total_accepted for r in results))

    return sample
