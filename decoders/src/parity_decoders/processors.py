"""The distribution that `generate` samples, from the logits processors of transformers."""

from collections import defaultdict
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessorList
from transformers.generation import logits_process as hf

from parity_decoders.distribution import Distribution, Guidance, Prefixes, Stage, Temperature, TopK, TopP
from parity_decoders.errors import DecodingError
from parity_decoders.grammar import ImageGrammar
from parity_decoders.protocols.discrete import TreePass
from parity_decoders.undefined import find_undefined

# These read the scores alone, not the tokens before, so all slots are given to them at once. A class derived from one
# of them may do otherwise, so classes are compared by identity.
OF_SCORES = {
    hf.TemperatureLogitsWarper, hf.TopKLogitsWarper, hf.TopPLogitsWarper, hf.TopHLogitsWarper, hf.MinPLogitsWarper,
    hf.TypicalLogitsWarper, hf.EpsilonLogitsWarper, hf.EtaLogitsWarper, hf.SuppressTokensLogitsProcessor,
    hf.InfNanRemoveLogitsProcessor, hf.LogitNormalization,
}  # fmt: skip
# These keep a state from call to call, so they cannot be called for several slots of a pass.
STATEFUL = (
    "SynthIDTextWatermark", "ClassifierFreeGuidance", "Whisper", "DiaClassifierFreeGuidance", "AlternatingCodebooks",
)  # fmt: skip


@dataclass(frozen=True)
class ScoresStage(Stage):
    """A processor of OF_SCORES, which gets the scores of all slots at once."""

    processor: Any

    @property
    def name(self) -> str:
        return type(self.processor).__name__

    def __call__(self, scores: Tensor, *_: Any) -> Tensor:
        rows = scores.flatten(0, 1)
        no_ids = torch.empty(len(rows), 0, dtype=torch.long, device=scores.device)
        result: Tensor = self.processor(no_ids, rows)
        return result.view_as(scores)


class PrefixStage(ScoresStage):
    """A processor that reads the tokens before a slot. A call takes one slot of each row, since a processor may depend
    on a row's number; their prefixes are of one length."""

    reads_prefix = True

    def __call__(self, scores: Tensor, _: Any = None, prefixes: Prefixes = None, /) -> Tensor:
        assert prefixes is not None
        by_length: dict[int, list[list[int]]] = defaultdict(lambda: [[] for _ in prefixes])
        for row, prefixes_of_row in enumerate(prefixes):
            for slot, ids in enumerate(prefixes_of_row):
                by_length[len(ids)][row].append(slot)
        result = torch.empty_like(scores)
        for slots in by_length.values():
            for turn in zip_longest(*slots):
                asked = [(row, slot) for row, slot in enumerate(turn) if slot is not None]
                # a row that has no more slots of this length gets those of another; its answer is not read
                given = [asked[0] if slot is None else (row, slot) for row, slot in enumerate(turn)]
                of_rows = torch.stack([prefixes[row][slot] for row, slot in given])
                answer = self.processor(of_rows, torch.stack([scores[row, slot] for row, slot in given]))
                for row, slot in asked:
                    result[row, slot] = answer[row]
        return result


class AllowedStage(PrefixStage):
    """A `prefix_allowed_tokens_fn`, called once for each slot, with its row and the ids [n] up to it. It may allow no
    token after a draft that is rejected, where its processor would raise."""

    def __call__(self, scores: Tensor, _: Any = None, prefixes: Prefixes = None, /) -> Tensor:
        assert prefixes is not None
        allowed = torch.full_like(scores, -torch.inf)
        for row, prefixes_of_row in enumerate(prefixes):
            for slot, ids in enumerate(prefixes_of_row):
                tokens = torch.as_tensor(self.processor._prefix_allowed_tokens_fn(row, ids), device=ids.device).long()
                allowed[row, slot].index_fill_(0, tokens.flatten(), 0.0)
        return scores + allowed


def make_stage(processor: Any) -> Stage:
    """Make the stage of a logits processor, whose scores are the processor's. `TopP` keeps as many tokens, and of other
    than equal tokens the same: transformers' sort, which is not stable, keeps any of equal ones."""
    kind, excludes = type(processor), getattr(processor, "filter_value", None) == -torch.inf
    if kind is ImageGrammar:
        stage: Stage = processor.stage
        return stage
    if kind is hf.TemperatureLogitsWarper:
        return Temperature(processor.temperature)
    if kind is hf.TopKLogitsWarper and excludes:
        return TopK(processor.top_k)
    if kind is hf.TopPLogitsWarper and excludes:
        return TopP(processor.top_p, processor.min_tokens_to_keep)
    if kind is hf.PrefixConstrainedLogitsProcessor:
        return AllowedStage(processor)
    return ScoresStage(processor) if kind in OF_SCORES else PrefixStage(processor)


def read_processors(processors: LogitsProcessorList, greedy: bool) -> Distribution:
    """Make the distribution that `generate` samples with these processors, greedily or not. Raises DecodingError for a
    processor that keeps a state, and for guidance after another processor."""
    guidance: Guidance | None = None
    stages: list[Stage] = []
    for processor in processors:
        name = type(processor).__name__
        if type(processor) is hf.UnbatchedClassifierFreeGuidanceLogitsProcessor:
            if guidance or stages:
                raise DecodingError(f"logits processor {name}: after others; allowed: guidance as the first")
            context: dict[str, Any] = processor.unconditional_context
            prompts = context["input_ids"], context["attention_mask"]
            guidance = Guidance(processor.guidance_scale, *prompts, "log_probabilities")
        elif name.startswith(STATEFUL):
            raise DecodingError(
                f"logits processor {name}: keeps a state; allowed: functions of the tokens before a slot"
            )
        else:
            stages.append(make_stage(processor))
    return Distribution(guidance, tuple(stages), greedy, torch.float32)


def check_processors(distribution: Distribution, prompts: Tensor, vocab: int) -> None:
    """Ask each processor that transformers does not make by itself about the prompts [B, P] and three continuations,
    and once more in the reverse order. Raises DecodingError that names the first whose answers differ, or that fails
    after its first answer: slots of a pass are asked in any order."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(len(prompts), 1, vocab, generator=generator, dtype=torch.float32, device="cpu")
    scores = scores.to(prompts.device)

    def ask(stage: Stage, ids: Tensor) -> Tensor:
        """Return the scores [B, V] that a stage gives after ids [B, n]."""
        return stage(scores, None, [[row] for row in ids])[:, 0]

    for stage in distribution.stages:
        if not isinstance(stage, PrefixStage):
            continue
        function = getattr(stage.processor, "_prefix_allowed_tokens_fn", None)
        if type(stage.processor).__module__ == hf.__name__ and function is None:
            continue
        name = f"logits processor {stage.name}"
        if function is not None:
            name = f"prefix_allowed_tokens_fn {getattr(function, '__name__', type(function).__name__)}"
        refusal = f"{name}: keeps a state; allowed: functions of the tokens before a slot"
        texts, answers = [prompts], [ask(stage, prompts)]
        try:
            for source, rank in ((0, 0), (0, 1), (1, 0)):  # the two likeliest tokens, then a second one
                if find_undefined(answers[source]).any():  # nothing follows where no token is allowed
                    break
                top, tokens = answers[source].topk(2)
                token = torch.where(top[:, rank] > -torch.inf, tokens[:, rank], tokens[:, 0])
                texts.append(torch.cat([texts[source], token[:, None]], 1))
                answers.append(ask(stage, texts[-1]))
            again = [ask(stage, text) for text in reversed(texts)]
        except Exception as error:
            raise DecodingError(f"{refusal}. It raised {type(error).__name__}") from error
        pairs = zip(answers, reversed(again), strict=True)
        if not all(torch.equal(one.nan_to_num(), other.nan_to_num()) for one, other in pairs):
            raise DecodingError(refusal)


class Written:
    """The tokens before each slot of a pass, which some processors read."""

    def __init__(self, prompts: Tensor, length: int):
        """Begin with the prompts [B, P]. length: the most new tokens."""
        self.prompts, self.length = prompts, length
        # the token at each position, the prompt's last token first
        self.written = torch.cat([prompts[:, -1:], prompts.new_zeros(len(prompts), length)], 1)

    def begin_anew(self) -> "Written":
        """Return prefixes of the same prompts, for another model."""
        return Written(self.prompts, self.length)

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
