"""The law that `generate` samples: the model's logits after guidance and the logits processors of transformers."""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import LogitsProcessorList
from transformers.generation import logits_process

from parity_decoders.errors import DecodingError

# These read the scores alone, not the tokens before, so all slots are given to them at once.
OF_SCORES = (
    logits_process.TemperatureLogitsWarper,
    logits_process.TopKLogitsWarper,
    logits_process.TopPLogitsWarper,
    logits_process.MinPLogitsWarper,
    logits_process.TypicalLogitsWarper,
    logits_process.EpsilonLogitsWarper,
    logits_process.EtaLogitsWarper,
    logits_process.SuppressTokensLogitsProcessor,
    logits_process.InfNanRemoveLogitsProcessor,
    logits_process.LogitNormalization,
)
# These keep a state from call to call, so they cannot be called for several slots of a pass.
STATEFUL = (
    "SynthIDTextWatermark",
    "ClassifierFreeGuidance",
    "Whisper",
    "DiaClassifierFreeGuidance",
    "AlternatingCodebooks",
)


class Guidance(NamedTuple):
    """Classifier-free guidance u + scale (c - u), with the prompt of the unconditional rows."""

    scale: float
    ids: Tensor | None  # [B, P] unconditional prompts; None: the last token of each prompt
    unpadded: Tensor | None  # [B, P] false on padding; None: there is none


def split_processors(processors: LogitsProcessorList) -> tuple[Guidance | None, LogitsProcessorList]:
    """Split logits processors into classifier-free guidance (None if there is none), whose unconditional rows are
    decoded beside the others, and the rest in order. Raises DecodingError for a processor that keeps a state, and for
    guidance after another processor."""
    guidance = None
    remaining = LogitsProcessorList()
    for processor in processors:
        name = type(processor).__name__
        if isinstance(processor, logits_process.UnbatchedClassifierFreeGuidanceLogitsProcessor):
            if guidance or remaining:
                raise DecodingError(f"logits processor {name}: behind others; allowed: guidance as the first")
            context: dict[str, Any] = processor.unconditional_context
            guidance = Guidance(processor.guidance_scale, context["input_ids"], context["attention_mask"])
        elif name.startswith(STATEFUL):
            raise DecodingError(
                f"logits processor {name}: keeps a state; allowed: functions of the tokens before a slot"
            )
        else:
            remaining.append(processor)
    return guidance, remaining


class Law:
    """Turns logits into the law that `generate` would draw from: by guidance, processors, and greedy choice."""

    def __init__(self, processors: LogitsProcessorList, guidance: Guidance | None, greedy: bool):
        """Set the parts; greedy: all probability goes to the likeliest token."""
        self.processors = processors
        self.guidance = guidance
        self.greedy = greedy

    def needs_prefix(self) -> bool:
        """Return whether a processor reads the tokens before a slot."""
        return not all(isinstance(processor, OF_SCORES) for processor in self.processors)

    def apply(self, logits: Tensor, prefixes: "list[list[Tensor]] | None") -> Tensor:
        """Turn logits [R, S, V] into scores [B, S, V], whose softmax is the law; R = 2B, conditional rows first, if
        guided. prefixes: the ids [n] up to slot s of row b at [b][s], needed if `needs_prefix`."""
        scores = logits.float()
        if self.guidance is not None:
            conditional, unconditional = scores.log_softmax(-1).chunk(2)
            scores = unconditional + self.guidance.scale * (conditional - unconditional)
        B, S, V = scores.shape
        for processor in self.processors:
            if isinstance(processor, OF_SCORES):
                no_ids: Any = torch.empty(B * S, 0, dtype=torch.long, device=scores.device)
                scores = processor(no_ids, scores.reshape(B * S, V)).view(B, S, V)
            else:
                assert prefixes is not None
                rows = [
                    torch.stack([self.ask(processor, prefixes[b][s], scores[b, s], b, B) for s in range(S)])
                    for b in range(B)
                ]
                scores = torch.stack(rows)
        if self.greedy:
            likeliest = scores.argmax(-1, keepdim=True)
            scores = torch.full_like(scores, -torch.inf).scatter_(2, likeliest, 0.0)
        return scores

    @staticmethod
    def ask(processor: Any, ids: Tensor, scores: Tensor, row: int, rows: int) -> Tensor:
        """Ask a processor for the scores [V] of one slot of batch row `row` of `rows`, after ids [n], in a batch of
        copies, because a processor may depend on the row's number."""
        return processor(ids.expand(rows, -1), scores.expand(rows, -1).clone())[row]
