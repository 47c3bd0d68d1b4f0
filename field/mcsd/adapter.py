"""Multi-candidate speculative decoding: the whole loop, on tables that read the tree's mask in place of networks."""

from types import SimpleNamespace

import borrowed
import numpy as np
import torch
from MCSD.inference.generate import SpeculativeGenerator
from parity_certify import Sampled
from parity_certify.distributions import random_distribution


class Network:
    """A table as their networks are called: `model`, whose hidden states are logits here, and `lm_head`."""

    def __init__(self, table, skip):
        self.table, self.skip, self.model = table, skip, self
        self.lm_head = torch.nn.Identity()

    def get_input_embeddings(self):
        return SimpleNamespace(weight=torch.zeros(1))

    def __call__(self, input_ids, past_key_values=None, tree_attn_mask=None, **_):
        """Compute logits [n, S, V] after input_ids [n, S], each of the tokens that the mask [S, all] shows."""
        cached = past_key_values[0][0][:, 0, :, 0] if past_key_values else input_ids[:, :0]
        tokens = torch.cat([cached, input_ids], 1)
        causal = torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.bool).tril()
        masks = causal[cached.shape[1] :] if tree_attn_mask is None else tree_attn_mask
        prefixes = [tokens[:, mask][:, self.skip :].numpy() for mask in masks]
        distributions = np.stack([borrowed.look_up_distributions(self.table, prefix) for prefix in prefixes], 1)
        cache = tokens[:, None, :, None]
        return SimpleNamespace(last_hidden_state=torch.tensor(distributions).log(), past_key_values=((cache, cache),))


def sampler(distribution, models, temperature=1.0, **options):
    """Make a sampler by their `SpeculativeGenerator`; options: its keywords."""
    raw = random_distribution(distribution.vocab, distribution.length)  # the distribution before the temperature

    def sample(prompts, seed):
        torch.manual_seed(seed)
        skip = prompts.shape[1]
        networks = Network(raw.extra["draft"], skip), Network(raw.tables[0], skip)
        settings = {"k_config": (2, 2), "max_new_tokens": distribution.length, "draft_model_temp": temperature}
        generator = SpeculativeGenerator(*networks, 99, target_model_temp=temperature, **settings, **options)
        made = [generator.generate(torch.tensor(row)[None]) for row in prompts]
        tokens = np.stack([one.sequences[0, skip : skip + distribution.length].numpy() for one in made])
        return Sampled(tokens, sum(x.draft_token_count for x in made), sum(x.acceptance_count for x in made))

    return sample
