"""fairseq before its PR 882: the search `Sampling`, on the tiny Llama's logits."""

import borrowed
import torch
from case import load_logits
from parity_certify.design import DESIGN, PAIR, make_conditions

TODAY = {"1 - truncated_mask": "truncated_mask == 0"}  # a comparison gives booleans, in its torch it gave bytes
LAST = "last_included = cumsum_mask[:, :, :1]"
MEND = {LAST: "last_included = cumsum_mask[:, :, -1:].clamp(0, mask.size(2) - 1)"}


class Words:
    """A vocabulary of theirs: ours after a padding token and an unknown one."""

    pad = unk = eos = staticmethod(lambda: 0)

    def __len__(self):
        return 6


def design(models, mend=False):
    """Make the conditions of the default design; it applies top-p or top-k."""
    names, replace = ("Search", "Sampling"), TODAY | (MEND if mend else {})
    Sampling = borrowed.functions("fairseq/search.py", *names, replace=replace, torch=torch)[1]
    logits = load_logits(models)

    def sample(prompts, seed, *, length, temperature=1.0, top_k=-1, top_p=-1.0):
        """Draw all rows in one batch, each a beam of one. The first two tokens of its vocabulary are never drawn."""
        torch.manual_seed(seed)

        def step(values, tokens):
            """Draw the next token of each row."""
            distribution = (torch.from_numpy(values).float() / temperature).log_softmax(-1)
            distribution = torch.nn.functional.pad(distribution, (2, 0), value=-torch.inf)[:, None]
            return Sampling(Words(), top_k, top_p).step(0, distribution, None)[1] - 2

        return borrowed.draw_rows(step, logits, prompts, length)

    apart = [options for options in DESIGN if not set(options) >= PAIR]
    return make_conditions(sample, logits, vocab=4, design=apart)
