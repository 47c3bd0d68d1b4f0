"""dejavuu: its engine with drafters that look tokens up, on a table in place of the network."""

import borrowed
import numpy as np
from dejavuu.core.engine import generate
from dejavuu.core.sampling import Sampler
from dejavuu.core.verifier import Verifier
from dejavuu.drafters import DRAFTERS
from parity_certify import Sampled
from parity_certify.distributions import random_distribution


class Table(Verifier):
    """A table that answers as their networks do; its cache is the list of tokens."""

    supports_tree = True

    def __init__(self, table, skip):
        self.table, self.skip = table, skip

    def empty_kv(self):
        return []

    def rollback_kv(self, kv, committed):
        return kv[:committed]

    def gather_kv(self, kv, committed, path):
        return kv[:committed] + [kv[committed + i] for i in path]

    def forward(self, token_ids, past, past_len, position_ids=None, attn_bias=None):
        """Look up logits [N, V] after each token: of all before it, or of those that a tree's mask shows."""
        tokens = past + list(token_ids)
        shown = np.tri(len(token_ids), len(tokens), len(past)) > 0 if attn_bias is None else attn_bias[0, 0] == 0
        texts = [np.array(tokens)[row][self.skip :] for row in shown]
        distributions = [borrowed.look_up_distributions(self.table, text[None].astype(int))[0] for text in texts]
        return np.log(np.maximum(distributions, 1e-300)), tokens, None


def sampler(distribution, models, drafter, tree=False, temperature=1.0, top_p=1.0):
    """Make a sampler by their `generate` with one of their drafters."""
    table = random_distribution(distribution.vocab, distribution.length).tables[
        0
    ]  # to which they apply the temperature and top-p
    spec = DRAFTERS[drafter]
    theirs = spec.factory(**spec.kwargs)

    def sample(prompts, seed):
        seeds, results = np.random.default_rng(seed).integers(2**40, size=len(prompts)), []
        model = Table(table, prompts.shape[1])
        for prompt, one in zip(prompts, seeds, strict=True):
            draw = Sampler(temperature, top_p, int(one))
            results.append(
                generate(model, prompt.tolist(), distribution.length, theirs, budget=4, tree=tree, sampler=draw)
            )
        tokens = np.array([r.tokens for r in results])
        return Sampled(tokens, sum(r.drafted for r in results), sum(r.accepted for r in results))

    return sample
