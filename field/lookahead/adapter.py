"""Lookahead decoding: the whole sampling loop, with a table in place of the network."""

import random
import typing
from types import SimpleNamespace

import borrowed
import numpy as np
import torch
import transformers
from parity_certify import Sampled

PROMPT = [0, 1, 2, 0, 2, 1, 1, 0, 0, 2, 2, 1, 0, 1, 1, 2, 0, 2]
LEVEL, WINDOW = 3, 3


class Network(borrowed.TableModel):
    """What the loop asks of a model: a pass for the next token, the n-grams' tokens and the window's."""

    def __init__(self, table):
        super().__init__(table, len(PROMPT))
        self.config, self.vocab_size, self.guesses = SimpleNamespace(is_encoder_decoder=False), 3, 0
        outputs = "output_scores", "output_attentions", "output_hidden_states", "return_dict_in_generate"
        self.generation_config = SimpleNamespace(pad_token_id=None, eos_token_id=None, **dict.fromkeys(outputs, False))

    def prepare_inputs_for_generation(self, input_ids, **_):
        self.tokens = input_ids
        return {"input_ids": input_ids, "position_ids": torch.arange(input_ids.shape[1])[None]}

    def _update_model_kwargs_for_generation(self, outputs, model_kwargs, **_):
        return model_kwargs

    def jforward_multilevel(self, guess_tokens, **_):
        """Compute the logits of the next token, of each guessed n-gram's tokens, and random ones of the window."""
        self.calls += 1
        outputs = SimpleNamespace(past_key_values=[], step_len=0, kvcache_len=0, guess_logits=None)
        outputs.out_logits, outputs.inp_logits = self.logits_behind(self.tokens), torch.randn(1, WINDOW, 3)
        if guess_tokens:
            grams = torch.tensor(guess_tokens).view(-1, LEVEL - 1)
            self.guesses += LEVEL - 1
            ends = [[*self.tokens[0].tolist(), *gram[: i + 1]] for gram in grams.tolist() for i in range(LEVEL - 1)]
            outputs.guess_logits = torch.stack([self.logits_behind(torch.tensor([end]))[0] for end in ends])[None]
        return outputs


def sampler(distribution, models):
    """Make a sampler by their `jacobi_sample_multilevel`, after PROMPT, whatever the prompts."""
    scope = {"torch": torch, "random": random, **vars(typing), **vars(transformers.generation)}
    scope |= {"LogitsProcessorList": transformers.LogitsProcessorList, "COLOR_PRINT": 0, "dist": None}
    scope["CONFIG_MAP"] = {"LEVEL": LEVEL, "WINDOW_SIZE": WINDOW, "GUESS_SET_SIZE": 3, "POOL_FROM_PROMPT": 1}
    names = "update_token_map", "append_new_generated_pool", "fill_pool_with_prompt", "filter_window"
    loop = borrowed.functions("lade/decoding.py", *names, "jacobi_sample_multilevel", **scope)[-1]
    stop = [transformers.MaxLengthCriteria(len(PROMPT) + distribution.length)]

    def sample(prompts, seed):
        torch.manual_seed(seed), random.seed(seed)
        network, start = Network(distribution.tables[0]), torch.tensor([PROMPT])
        settings = {"stopping_criteria": transformers.StoppingCriteriaList(stop)}
        settings["attention_mask"] = torch.ones_like(start)
        rows = [loop(network, start, **settings)[0, len(PROMPT) :].numpy() for _ in prompts]
        return Sampled(np.stack(rows), network.guesses, max(distribution.length * len(rows) - network.calls, 0))

    return sample
