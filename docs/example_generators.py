"""Candidate generators of transformers 5.23.0, fixed, to show where its faults are (docs/results/engines.md).

    parity certify transformers --target m/llama --assistant m/llama-other-tokenizer --universal \
        --generator docs/example_generators.py:universal -- num_assistant_tokens=3
    parity certify transformers --target m/gemma4 --assistant m/gemma4-assistant \
        --generator docs/example_generators.py:gemma4 -- num_assistant_tokens=1

A class here is given transformers' own generator, and is used in its place.
"""

from typing import Any

import torch


class Fixed:
    """A generator whose candidates are corrected after they are made."""

    def __init__(self, inner: Any):
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def get_candidates(self, input_ids: torch.Tensor, **kwargs: Any) -> Any:
        ids, logits = self.inner.get_candidates(input_ids, **kwargs)
        return (ids, logits) if logits is None else self.fix(input_ids, ids, logits)


class universal(Fixed):  # noqa: N801  # named as on the command line
    """Universal assisted decoding with overlapping vocabularies: the pruned head's logits are in the order of
    `target_to_assistant_input_ids`, but are recorded in the order of the assistant's tokens."""

    def fix(self, input_ids: torch.Tensor, ids: torch.Tensor, logits: torch.Tensor) -> Any:
        names = self.inner._atm_translator
        by_assistant = names._assistant_to_target_input_ids
        recorded = by_assistant[by_assistant != names.SUPPRESS_TOKEN_ID]  # where each pruned logit was put
        correct = by_assistant[names.assistant_overlap_token_ids]  # where it belongs
        fixed = torch.full_like(logits, -float("inf"))
        fixed[..., correct] = logits[..., recorded]
        return ids, fixed


class gemma4(Fixed):  # noqa: N801
    """The Gemma 4 assistant drafts the likeliest token and records the whole distribution: draw the token from that
    distribution. Fixes drafts of one token, whose distribution depends on no other draft."""

    def fix(self, input_ids: torch.Tensor, ids: torch.Tensor, logits: torch.Tensor) -> Any:
        assert logits.shape[1] == 1, "num_assistant_tokens=1"
        drawn = torch.multinomial(logits[0].softmax(-1), 1)
        return torch.cat([input_ids, drawn], 1), logits
