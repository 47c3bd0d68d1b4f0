"""The distribution that `generate` samples, made of guidance and the logits processors of transformers."""

from collections import defaultdict
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import LogitsProcessorList
from transformers.generation import logits_process

from parity_decoders import distribution
from parity_decoders.distribution import Distribution
from parity_decoders.errors import DecodingError
from parity_decoders.grammar import ImageGrammar
from parity_decoders.protocols.discrete import TreePass
from parity_decoders.undefined import find_undefined

# These read the scores alone, or the position, not the tokens before, so all slots are given to them at once. A class
# derived from one of them may do otherwise, so classes are compared by identity.
OF_SCORES = {
    ImageGrammar,
    logits_process.TemperatureLogitsWarper,
    logits_process.TopKLogitsWarper,
    logits_process.TopPLogitsWarper,
    logits_process.TopHLogitsWarper,
    logits_process.MinPLogitsWarper,
    logits_process.TypicalLogitsWarper,
    logits_process.EpsilonLogitsWarper,
    logits_process.EtaLogitsWarper,
    logits_process.SuppressTokensLogitsProcessor,
    logits_process.InfNanRemoveLogitsProcessor,
    logits_process.LogitNormalization,
}
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
        if type(processor) is logits_process.UnbatchedClassifierFreeGuidanceLogitsProcessor:
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


def check_processors(processors: LogitsProcessorList, prompts: Tensor, vocab: int) -> None:
    """Ask each processor that transformers does not make by itself about the prompts [B, P] and three continuations,
    and once more in the reverse order. Raises DecodingError that names the first whose answers differ, or that fails
    behind its first answer: slots of a pass are asked in any order."""
    for processor in processors:
        function = getattr(processor, "_prefix_allowed_tokens_fn", None)
        if type(processor).__module__ == logits_process.__name__ and function is None:
            continue
        if type(processor) is ImageGrammar:
            continue
        name = f"logits processor {type(processor).__name__}"
        if function is not None:
            name = f"prefix_allowed_tokens_fn {getattr(function, '__name__', type(function).__name__)}"
        refusal = f"{name}: keeps a state; allowed: functions of the tokens before a slot"
        generator = torch.Generator().manual_seed(0)
        scores = torch.randn(len(prompts), vocab, generator=generator, dtype=torch.float32, device="cpu")
        scores = scores.to(prompts.device)

        def ask(ids: Tensor, processor: Any = processor, scores: Tensor = scores) -> Tensor:
            """Return the scores [B, V] that the processor gives after ids [B, n]."""
            if hasattr(processor, "_prefix_allowed_tokens_fn"):  # its class raises where the function allows no token
                return allow_tokens(processor, [[row] for row in ids], scores[:, None])[:, 0]
            answer: Tensor = processor(ids, scores.clone())
            return answer.clone()

        texts, answers = [prompts], [ask(prompts)]
        try:
            for source, rank in ((0, 0), (0, 1), (1, 0)):  # the two likeliest tokens, then a second one
                if find_undefined(answers[source]).any():  # nothing follows where no token is allowed
                    break
                top, tokens = answers[source].topk(2)
                token = torch.where(top[:, rank] > -torch.inf, tokens[:, rank], tokens[:, 0])
                texts.append(torch.cat([texts[source], token[:, None]], 1))
                answers.append(ask(texts[-1]))
            again = [ask(text) for text in reversed(texts)]
        except Exception as error:
            raise DecodingError(f"{refusal}. It raised {type(error).__name__}") from error
        pairs = zip(answers, reversed(again), strict=True)
        if not all(torch.equal(one.nan_to_num(), other.nan_to_num()) for one, other in pairs):
            raise DecodingError(refusal)


@dataclass(frozen=True)
class GuideProbabilities(distribution.Guidance):
    """Classifier-free guidance as `generate` has it: of log-probabilities, the unconditional ones in the model's
    dtype."""

    def __call__(self, logits: Tensor) -> Tensor:
        """Turn logits [R, S, V] into scores [B, S, V] of float32. See Guidance."""
        scores = logits.float()
        if self.scale != 1:
            conditional, unconditional = logits.chunk(2)
            conditional, unconditional = conditional.float().log_softmax(-1), unconditional.log_softmax(-1)
            scores = (self.scale * (conditional - unconditional) + unconditional).float()
        return scores


@dataclass(frozen=True)
class OfScores:
    """A processor that reads scores alone, which is given those of all slots at once."""

    processor: Any
    prefixes = False

    @property
    def name(self) -> str:
        return type(self.processor).__name__

    def __call__(self, scores: Tensor, positions: Tensor, prefixes: Any) -> Tensor:
        """Turn scores [B, S, V] into scores. See Stage."""
        if type(self.processor) is ImageGrammar:
            return self.processor.restrict(scores, positions + 1)
        no_ids: Any = torch.empty(scores.shape[:-1].numel(), 0, dtype=torch.long, device=scores.device)
        result: Tensor = self.processor(no_ids, scores.flatten(0, 1))
        return result.view_as(scores)


@dataclass(frozen=True)
class OfPrefixes:
    """A processor that reads the tokens before a slot."""

    processor: Any
    prefixes = True

    @property
    def name(self) -> str:
        return type(self.processor).__name__

    def __call__(self, scores: Tensor, positions: Tensor, prefixes: Any) -> Tensor:
        """Turn scores [B, S, V] into scores. See Stage."""
        ask = allow_tokens if type(self.processor) is logits_process.PrefixConstrainedLogitsProcessor else ask_slots
        return ask(self.processor, prefixes, scores)


def make_stage(processor: Any) -> distribution.Stage:
    """Make the stage of a processor. Top-p is `top_p_filter`, which keeps as many tokens and of other than equal tokens
    the same, and does not sort a large vocabulary; transformers' sort, which is not stable, keeps any of equal ones."""
    if type(processor) is logits_process.TopPLogitsWarper and processor.filter_value == -torch.inf:
        return distribution.TopP(processor.top_p, processor.min_tokens_to_keep)
    return OfScores(processor) if type(processor) in OF_SCORES else OfPrefixes(processor)


def make_distribution(processors: LogitsProcessorList, guidance: Guidance | None, greedy: bool) -> Distribution:
    """Make the distribution that `generate` would draw from; greedy: all probability goes to the likeliest token."""
    scale = 1.0 if guidance is None else guidance.scale
    return Distribution(GuideProbabilities(scale), tuple(map(make_stage, processors)), greedy)


def allow_tokens(processor: Any, prefixes: "list[list[Tensor]] | None", scores: Tensor) -> Tensor:
    """Set scores [B, S, V] to -inf except those of tokens that a `prefix_allowed_tokens_fn` allows. The function is
    called once for each slot, with the slot's row and ids [n], prefixes[row][slot]. It may allow no token after a draft
    that is rejected."""
    assert prefixes is not None
    allowed = torch.full_like(scores, -torch.inf)
    for row, prefixes_of_row in enumerate(prefixes):
        for slot, ids in enumerate(prefixes_of_row):
            tokens = torch.as_tensor(processor._prefix_allowed_tokens_fn(row, ids), device=ids.device).long()
            allowed[row, slot].index_fill_(0, tokens.flatten(), 0.0)
    return scores + allowed


def ask_slots(processor: Any, prefixes: "list[list[Tensor]] | None", scores: Tensor) -> Tensor:
    """Ask a processor for the scores [B, S, V] of slots after the ids prefixes[row][slot] [n]. A call takes one slot of
    each row, since a processor may depend on a row's number; their prefixes are of one length."""
    assert prefixes is not None
    B, S, _ = scores.shape
    by_length: dict[int, list[list[int]]] = defaultdict(lambda: [[] for _ in range(B)])
    for row in range(B):
        for slot in range(S):
            by_length[len(prefixes[row][slot])][row].append(slot)
    result = torch.empty_like(scores)
    for slots in by_length.values():
        for turn in zip_longest(*slots):
            asked = [(row, slot) for row, slot in enumerate(turn) if slot is not None]
            # a row that has no more slots of this length gets those of another; its answer is not read
            given = [asked[0] if slot is None else (row, slot) for row, slot in enumerate(turn)]
            ids = torch.stack([prefixes[row][slot] for row, slot in given])
            answer = processor(ids, torch.stack([scores[row, slot] for row, slot in given]))
            for row, slot in asked:
                result[row, slot] = answer[row]
    return result


class Prefixes:
    """The tokens before each slot of a pass, which some processors read."""

    def __init__(self, prompts: Tensor, length: int):
        """Begin with the prompts [B, P]. length: the most new tokens."""
        self.prompts, self.length = prompts, length
        # the token at each position, the prompt's last token first
        self.written = torch.cat([prompts[:, -1:], prompts.new_zeros(len(prompts), length)], 1)

    def begin_anew(self) -> "Prefixes":
        """Return prefixes of the same prompts, for another model."""
        return Prefixes(self.prompts, self.length)

    def read(self, tokens: Tensor, positions: Tensor) -> list[list[Tensor]]:
        """Write tokens [B, S] at positions [B, S], and return for each the ids [n] up to it."""
        self.written.scatter_(1, positions + 1, tokens)
        return [
            [torch.cat([self.prompts[b, :-1], self.written[b, : n + 2]]) for n in row]
            for b, row in enumerate(positions.tolist())
        ]

    def follow(self, tokens: Tensor, positions: Tensor, parents: Tensor) -> list[list[Tensor]]:
        """Return for each node of a tree, tokens, positions, parents [B, S], the ids [n] of the prompt, the stored
        tokens, and its path, the node included."""
        return [self._follow_row(b, tokens[b], positions[b].tolist(), parents[b].tolist()) for b in range(len(tokens))]

    def _follow_row(self, b: int, tokens: Tensor, positions: list[int], parents: list[int]) -> list[Tensor]:
        """Do as `follow` for row b; parents: negative for a node that follows the stored tokens."""
        paths: list[Tensor] = []
        for s, parent in enumerate(parents):
            if parent < 0:
                prefix = torch.cat([self.prompts[b, :-1], self.written[b, : positions[s] + 1]])
            else:
                prefix = paths[parent]
            paths.append(torch.cat([prefix, tokens[s : s + 1]]))
        return paths

    def keep(self, tree: TreePass, nodes: Tensor) -> None:
        """Write the tokens of nodes [B, W] of a tree, -1 for none, at their positions."""
        row, column = (nodes >= 0).nonzero(as_tuple=True)
        node = nodes[row, column]
        positions = tree.positions.clamp(max=self.length - 1)
        self.written[row, positions[row, node] + 1] = tree.tokens[row, node]
