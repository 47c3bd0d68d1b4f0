"""GPT-2 as a model of its own (Radford et al. 2019), an autoregressive baseline: from left to right, in its own tokens.
Stories with a gap are continued from what is before it, as in Gong et al. 2024 and Guo & Ermon 2025, appendix E.5."""

from typing import TYPE_CHECKING, Any

from parity.models.anysubset import causal

if TYPE_CHECKING:
    from transformers import GPT2LMHeadModel

FAMILY = {  # see models.anysubset
    "files": ("gpt2", "judge"),
    "also": ("tokenizer",),
    "model_types": {"gpt2": ("gpt2",), "judge": ("gpt2",)},
    "methods": ("sequential",),
    "prompt": "prefix",
    "stand_in": "gpt2_small",
}

build = causal.build


def wrap(net: "GPT2LMHeadModel", words: Any, cache: bool) -> causal.Causal:
    """Make the any-subset model of one order; `words` is its vocabulary."""
    return causal.Causal(net, words.mask, words.separator, cache)
