"""SpecExec: trees are grown and verified until a text is long enough, with tables in place of the engines."""

import logging
from types import SimpleNamespace

import borrowed
import numpy as np
import specdec
import torch
from parity_certify import Sampled
from parity_certify.distributions import random_distribution
from specdec.trees import Tree

SIZE = 40
MEND = {"torch.sort(scores, descending=True)": "torch.sort(scores, descending=False)"}
GROW = {"max_budget": 6, "max_beam_len": 2, "max_n_beams": 2, "max_branch_width": 2, "replacement": False}
TOKENIZER = SimpleNamespace(decode=str, convert_ids_to_tokens=str)  # for their log


class Engine(borrowed.TableModel):
    """A table that reads a store of tokens; the attention mask says what stands before a node."""

    max_len, config, model = SIZE, SimpleNamespace(model_type="llama"), SimpleNamespace(dtype=torch.float32)

    def clear_kv(self):
        self.stored, self.kv_len_used = torch.zeros(2, SIZE).long(), 0  # tokens and their positions, by slot

    def reorder_cache_tokens(self, source_token_idxs, dest_token_idxs=None):
        rows = self.stored[:, : len(source_token_idxs)] if source_token_idxs.dtype == torch.bool else self.stored
        rows = rows[:, source_token_idxs]
        places = torch.arange(rows.shape[1]) if dest_token_idxs is None else dest_token_idxs
        self.stored[:, places], self.kv_len_used = rows, int(places.max()) + 1

    def forward(self, input_ids, attention_mask, position_ids, cache_position):
        """Store tokens and positions in the slots cache_position, and compute logits [1, n, V] after what
        attention_mask shows."""
        self.calls += 1
        self.stored[:, cache_position] = torch.stack([input_ids[0], position_ids[0]])
        self.kv_len_used = max(self.kv_len_used, int(cache_position.max()) + 1)
        contexts = [self.stored[:, : len(row)][:, row >= 0] for row in attention_mask[0, 0]]
        return torch.stack([self.logits_behind(tokens[where.argsort()][None])[0] for tokens, where in contexts])[None]


def sampler(distribution, models, function="SpecExecBase", mend=False, temperature=1.0, top_p=1.0):
    """Make a sampler by their class `function`, with `mend` corrected by MEND."""
    logging.getLogger().setLevel(logging.WARNING)
    decoder_of = type("Decoder", (getattr(specdec, function),), {})
    if mend:
        scope = {"torch": torch, "replace": MEND}
        (decoder_of.sampler_from_logits,) = borrowed.functions("specdec/specexec.py", "sampler_from_logits", **scope)
    raw = random_distribution(distribution.vocab, distribution.length)  # the distribution before temperature and top-p

    def draw_sequence(prompt):
        """Draw one sequence [L]; also returns the drafts offered and accepted."""
        draft, target = (Engine(table, len(prompt)) for table in (raw.extra["draft"], raw.tables[0]))
        decoder, tokens = decoder_of(draft, target, TOKENIZER), []
        target.clear_kv()
        decoder.levels, decoder.tree = None, Tree(prompt.tolist(), draft, TOKENIZER)
        while len(tokens) < distribution.length:
            decoder.grow_tree(**GROW)
            tokens += decoder.validate_tree(temperature=temperature, top_p=top_p)[1]
        return np.array(tokens[: distribution.length]), 2 * target.calls, len(tokens) - target.calls

    def sample(prompts, seed):
        torch.manual_seed(seed)
        rows, drafted, accepted = zip(*map(draw_sequence, prompts), strict=True)
        return Sampled(np.stack(rows), sum(drafted), sum(accepted))

    return sample
