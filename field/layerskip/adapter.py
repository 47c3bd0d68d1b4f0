"""LayerSkip: `single_step_speculation`, with stubs in place of the early and the remaining layers."""

import types
import typing

import borrowed
import torch
import transformers

HERE = "self_speculation/"


def verifier(temperature=1.0):
    """Make a verifier of one row by their `single_step_speculation`."""
    inputs = {}
    scope = {"torch": torch, "transformers": transformers, **vars(typing)}
    _, decode_next = borrowed.functions(
        HERE + "llama_model_utils.py", "top_k_top_p_filtering", "decode_next_token", **scope
    )

    def decode(logits, token_idx=None, **options):
        """Decode as they do, but for drafts return the given token and its distribution."""
        if token_idx is None:
            return decode_next(logits, **options)
        i = inputs["drafted"] = inputs["drafted"] + 1
        return torch.tensor([[inputs["tokens"][i]]]), inputs["q"][None, i]

    def forward(*_):
        return types.SimpleNamespace(logits=inputs["logits"].clone(), past_key_values=None, exit_query_cache=None)

    scope |= {"decode_next_token": decode, "forward_early": forward, "forward_remainder": forward}
    scope |= {"GenerationStrategy": object, "GenerationStrategyResult": None, "GenerationConfig": None}
    scope |= {"crop_past_key_values": lambda *_: None}
    names = "max_fn", "SelfSpeculativeGenerationStrategy"
    step = borrowed.functions(HERE + "self_speculation_generator.py", *names, **scope)[1]().single_step_speculation

    def verify(tokens, q, p):
        inputs.update(tokens=tokens, q=torch.tensor(q).float(), drafted=-1)
        inputs["logits"] = torch.tensor(p).float().log()[None] * temperature
        prompt = {"input_ids": torch.zeros((1, 1), dtype=torch.long), "input_ids_list": [0], "output_ids": []}
        settings = {"sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
        rest = {"past_key_values": None, "eos_token_ids": [], "calls": 0, "exit_layer": 1}
        return step(model=None, num_speculations=len(tokens), **prompt, **settings, **rest)[1]

    return verify
