"""Locate a fault of transformers' `generate`: sample again with one part fixed, and see whether the fault is gone.

Guidance and SynthID's watermark keep a state from call to call, one call a token. Assisted generation calls them for
drafts as well, and a rejected draft stays in their state: a cache that is not rolled back. `Replayed` gives every call
the state that plain sampling would have given it.
"""

import copy
from typing import Any

import torch
from torch import Tensor

from parity_certify.adapters.transformers import Generate
from parity_certify.distributions import Distribution
from parity_certify.sampler import certify_sampler

STATEFUL = ("UnbatchedClassifierFreeGuidanceLogitsProcessor", "SynthIDTextWatermarkLogitsProcessor")


def copy_processor(processor: Any) -> Any:
    """Copy a logits processor and the dicts that hold its state; everything else in it (models, keys) is shared."""
    copied = copy.copy(processor)
    vars(copied).update({k: dict(v) for k, v in vars(copied).items() if isinstance(v, dict)})
    return copied


class Replayed:
    """A copy of a logits processor, in the state of one call a token since position `start`, the prompt's end."""

    def __init__(self, processor: Any, start: int):
        self.first, self.start = copy_processor(processor), start

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return the scores [B, V] after input_ids [B, P + t] of a fresh copy, called on each shorter prefix
        before."""
        processor = copy_processor(self.first)
        for t in range(self.start, input_ids.shape[1]):
            processor(input_ids[:, :t], torch.zeros_like(scores))
        return processor(input_ids, scores)


class ReplayedGenerate(Generate):
    """The same sampler with its processors of STATEFUL replaced by `Replayed`; `names` collects their names."""

    def __init__(self, sampler: Generate):
        vars(self).update(vars(sampler))
        self.names: set[str] = set()

    def __call__(self, prompts: Any, seed: int) -> Any:
        """Sample as `Generate` does, with the model's maker of processors replaced during the call."""
        make = self.model._get_logits_processor

        def make_replayed(*args: Any, **kwargs: Any) -> Any:
            """Make the model's processors, wrap those of STATEFUL in `Replayed`, and add their names to `names`."""
            processors = make(*args, **kwargs)
            start = kwargs.get("input_ids_seq_length", args[1] if len(args) > 1 else prompts.shape[1])
            for i, p in enumerate(processors):
                if type(p).__name__ in STATEFUL:
                    self.names.add(type(p).__name__)
                    processors[i] = Replayed(p, start)
            return processors

        self.model._get_logits_processor = make_replayed
        try:
            return super().__call__(prompts, seed)
        finally:
            del self.model._get_logits_processor


def diagnose_by_replaying(sampler: Generate, distribution: Distribution, n: int, seed: int) -> dict[str, Any] | None:
    """Sample n sequences with stateful processors replayed. Returns a diagnosis (`says`, `name`, ...) if these are
    consistent with the distribution, so that a stale state was the fault; None if they are not, or if no processor is
    stateful."""
    replayed = ReplayedGenerate(sampler)
    replayed(distribution.prompts[:1], seed)
    if not replayed.names:
        return None
    certificate = certify_sampler(replayed, distribution, n=n, seeds=(seed,), margin=0.9, tell=lambda text: None)
    if certificate.exit_code != 0:
        return None
    p = next(r["p_value"] for r in certificate.rows if r["test"] == "all looks")
    name = f"cache not rolled back (state of {', '.join(sorted(replayed.names))})"
    says = f"{name}: with the processor replayed from the prompt in every call, {certificate.details['n'][0]} sequences"
    return {
        "says": f"{says} are consistent with the distribution (p = {p:.2g})",
        "name": name,
        "fits": p,
        "mended": True,
    }
