"""Models of known law for any-subset decoders, with prompts: small ones whose every text is listed, and long ones.

The law is that of the lattice order (Guo & Ermon 2025, Eq. 4). On the "random" targets, as on a network, another order
is another law; on the "consistent" ones every order has the same, so what is rejected there is rejected for its
arithmetic alone.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar

import numpy as np
import torch
from parity_certify.result_rows import Row
from parity_certify.teacher_forced import assign_slots
from parity_decoders.noise import Noise
from parity_decoders.protocols.anysubset import Infilling, invert_order, make_infilling
from torch import Tensor

from parity.decode.anysubset import Filled, record
from parity.equality.martingale_tests import detectable_z, normal
from parity.equality.targets import Decoder, Enumerated, generator_of
from parity.equality.targets.long import LONGEST, Drawn, Long, softmax
from parity.models.anysubset import hidden
from parity.models.anysubset.hidden import LongSubset, Rule, Sharpened, Strided
from parity.models.anysubset.tabular import (
    TabularAnySubset,
    compute_joint_law,
    consistent_table,
    encode_rows,
    random_table,
)

DRAWS = 1999
FAMILY = "targets"


@dataclass(frozen=True)
class Target(Enumerated):
    """A model and a prompt: known tokens by position."""

    name: str
    model: TabularAnySubset
    prompt: dict[int, int]

    @property
    def length(self) -> int:
        return self.model.length

    @property
    def shape(self) -> tuple[int, int]:
        return self.model.words, self.length - len(self.prompt)

    def start(self, rows: int) -> Infilling:
        tokens = torch.full((rows, self.model.length), self.model.mask)
        for position, token in self.prompt.items():
            tokens[:, position] = token
        return make_infilling(tokens, tokens != self.model.mask, self.model.mask, self.model.vocab)

    @cached_property
    def law(self) -> np.ndarray:
        """The joint law of the missing tokens, first rank most significant."""
        return compute_joint_law(self.model, self.start(1))

    def codes(self, decoder: Decoder, noise: Noise, options: dict[str, Any]) -> np.ndarray:
        start = self.start(len(noise.keys))
        done = record(self.model, start, decoder(self.model, start, noise=noise, **options))
        return encode_rows(self.model, start, done.tokens)


def flat_table(vocab: int, length: int, generator: torch.Generator) -> Tensor:
    """Laws that depend on the position alone: drafts are always right, p == q."""
    laws = 1.5 * torch.randn(1, length, vocab, generator=generator, dtype=torch.float64)
    return laws.expand((vocab + 1) ** length, -1, -1)


MAKES: dict[str, tuple[Callable[[int, int, torch.Generator], Tensor], int, int, dict[int, int]]] = {
    "random 3x5": (random_table, 3, 5, {2: 1}),
    "random 2x6": (random_table, 2, 6, {0: 1, 4: 0}),
    "sharp 3x4": (partial(random_table, scale=4.0), 3, 4, {3: 2}),
    "consistent 3x5": (consistent_table, 3, 5, {1: 0}),
    "consistent 3x4": (consistent_table, 3, 4, {0: 2}),
    "flat 3x4": (flat_table, 3, 4, {1: 1}),
}


def targets(which: str = "full") -> list[Target]:
    return [
        Target(name, TabularAnySubset(table(vocab, length, generator_of(name, 0))), prompt)
        for name, (table, vocab, length, prompt) in MAKES.items()
    ]


# Long texts

KNOWN = 1 / 8  # share of words that a prompt holds
SHORTER = 5  # words by which rows differ in length, where they do


@dataclass(frozen=True, kw_only=True)
class LongTarget(Long):
    """A rule by which texts are filled in."""

    rule: Rule
    padded: ClassVar[bool] = True
    joint: bool = True  # whether the rule is of one joint: pairs are known, and every order has the same law

    @cached_property
    def model(self) -> LongSubset:
        return LongSubset(self.rule)

    @cached_property
    def law(self) -> np.ndarray | None:
        """[N, V, N, V] of every two words."""
        return hidden.compute_pair_law(self.rule, self.length).numpy() if self.joint and not self.far else None

    @property
    def ends(self) -> Tensor | None:
        """[n] words of each row, where they differ."""
        return None if self.joint else self.length - SHORTER * (torch.arange(self.n) % 3)

    def start(self, seed: int) -> Infilling:
        """Prompts of all rows: words of the law, at places that depend on the seed alone."""
        generator = generator_of(f"prompts of {self.name}", seed)
        chance = torch.rand(2, self.n, self.length, generator=generator, dtype=torch.float64)
        rule = self.rule.rule if isinstance(self.rule, Sharpened) else self.rule
        known = chance[0] < KNOWN
        known[:, 3] |= ~known[:, : self.length // 2].any(1)
        return make_infilling(hidden.draw_texts(rule, chance[1]), known, self.model.mask, self.model.vocab, self.ends)

    def laws(self, start: Infilling, tokens: Tensor) -> Tensor:
        """[n, N, V]: the laws of the words [n, N], each given those of lower ranks."""
        ranks = torch.arange(self.length).expand_as(tokens)
        p = self.model.laws(tokens, start.order, start.begin, ranks, ranks)[..., : self.rule.words]
        return p.gather(1, invert_order(start.order)[..., None].expand_as(p))

    def record(self, decoder: Decoder, start: Infilling, options: dict[str, Any]) -> Filled:
        return record(self.model, start, decoder(self.model, start, **options))

    def is_ordered(self, options: dict[str, Any]) -> bool:
        return "k" in options

    def to_drawn(self, start: Infilling, tokens: Tensor, step: Tensor, ordered: bool) -> Drawn:
        rank = invert_order(start.order)
        known = (rank < start.begin[:, None]) | (rank >= start.end[:, None])
        laws = self.laws(start, tokens)
        tokens = torch.where(rank < start.end[:, None], tokens, 0)
        slot = np.take_along_axis(assign_slots(step.gather(1, start.order).numpy().astype(int)), rank.numpy(), 1)
        return Drawn(tokens.numpy(), laws.numpy(), known.numpy(), slot, ordered)

    def scored(self, drawn: Drawn, layer: str, whole: bool, **place: Any) -> list[Row]:
        rows = super().scored(drawn, layer, whole, **place)
        if whole and self.ends is not None:
            rows.append(order_row(layer, self.rule, drawn, self.ends, **place))
        return rows


def mirrored(rule: Rule, words: Tensor, prompt: Tensor) -> Tensor:
    """The law [n, N, V] of each of `words` [n, N] given those before it and the prompt, if the text had been filled in
    from right to left by a chain's rule. prompt [n, N]: its words, V elsewhere.

    Filled in this way, a text is a chain from the right, and so also one from the left: by the law of the word here
    (`here`) given the prompt alone, times the law of the word before given this one (`step`).
    """
    (n, N), V = words.shape, rule.words
    here, step, laws = torch.full((n, V), 1 / V, dtype=torch.float64), [], []
    for i in reversed(range(N)):
        line = prompt.repeat(V, 1)
        if i + 1 < N:
            line[:, i + 1] = torch.where(line[:, i + 1] < V, line[:, i + 1], torch.arange(V).repeat_interleave(n))
        step.append(rule.laws_given(line, torch.full((V * n,), i)).view(V, n, V))  # by the word behind
        here = torch.einsum("nw,wnv->nv", here, step[-1])
        known = prompt[:, i]
        certain = torch.nn.functional.one_hot(known.clamp(max=V - 1), V).double()
        here = torch.where((known < V)[:, None], certain, here)
        laws.append(here)
    laws, step = laws[::-1], step[::-1]
    for i in range(1, N):
        before = step[i - 1].gather(2, words[:, i - 1].expand(V, n)[..., None])[..., 0].T  # [n, V] by the word here
        laws[i] = torch.where((prompt[:, i - 1] < V)[:, None], laws[i], hidden.normalise(laws[i] * before))
    return torch.stack(laws, 1)


def order_row(layer: str, rule: Rule, drawn: Drawn, ends: Tensor, **place: Any) -> Row:
    """Whether words are likelier under the law of texts filled in from right to left than they should be: the log ratio
    of a word's two laws less its mean, over all words (most powerful against that order)."""
    words, behind = torch.from_numpy(drawn.tokens), torch.arange(drawn.tokens.shape[1]) >= ends[:, None]
    prompt = torch.where(torch.from_numpy(drawn.known) & ~behind, words, rule.words)
    asked, p = ~drawn.known, drawn.laws
    ratio = np.where(p > 0, np.log(mirrored(rule, words, prompt).numpy().clip(1e-12) / p.clip(1e-12)), 0)
    mean = (p * ratio).sum(2)
    score = (np.take_along_axis(ratio, drawn.tokens[..., None], 2)[..., 0] - mean)[asked].sum()
    count = int(asked.sum())
    error = math.sqrt(((p * ratio**2).sum(2) - mean**2)[asked].sum()) / count
    values = {"effect": abs(score) / count, "minimum_detectable_effect": detectable_z(error), **place}
    return normal(layer, "order", count, np.array([score / count / error]), str, **values)


def long_rules(length: int, period: int, seed: int) -> dict[str, Rule]:
    def laws(name: str) -> Callable[..., Tensor]:
        return partial(softmax, generator=generator_of(f"text {name}", seed))

    chain, copy, parity, states, sharpened = map(laws, ("chain", "copy", "parity", "hidden", "sharpened"))
    table, word = 0.6 * chain((1, 8), 0.7) + 0.4 * chain((8, 8), 2.0), torch.arange(8)
    table = torch.where((word[:, None] % 3 == 0) & (word == (word[:, None] + 3) % 8), 0.0, table)
    stay = 0.85 * torch.eye(3, dtype=torch.float64) + 0.15 * states((3, 3), 1.0)
    total = torch.tensor([0.8, 0.15, 0.05], dtype=torch.float64)
    return {
        "chain": Strided(table / table.sum(1, keepdim=True), length),
        "copy": Strided(0.6 * torch.eye(4, dtype=torch.float64) + 0.4 * copy((1, 4), 0.7), length, period),
        "parity": hidden.Parity(parity((3,), 0.5), total, period, length),
        "hidden": hidden.Hidden(torch.linalg.matrix_power(stay, 2**20)[0], stay, states((3, 6), 1.3)),
        "sharpened": Sharpened(Strided(sharpened((4, 4), 0.8), length), 1.3),
    }


def long_targets(reach: Mapping[str, int], size: int, seed: int = 0, which: str = "") -> list[LongTarget]:
    """Each is a function of its name, how far a pass looks (`parity.experiment.options.reach`) and the seed; about
    `size` words are filled in on each. Prompts are of the model's own law.

    chain      V = 8, laws that differ little from word to word, and a third of the words rule another out
    copy       V = 4, each word is mostly the one a period before it, and the period is longer than k
    parity     V = 3, only the sum of a block that is longer than k says anything
    hidden     V = 6, three states that stay for a while
    sharpened  V = 4, a chain's laws to a power: another order of decoding is another law. Rows are of three lengths
    far        V = 4, a chain of 256 words, where the others are shorter: faults that begin late
    """
    k = reach["positions"]
    length, result = min(LONGEST, max(64, 16 * -(-4 * k // 16))), []

    def add(name: str, rule: Rule, length: int = length, **more: Any) -> None:
        name, rows = f"{name} {rule.words}x{length}", max(100, size // length)
        result.append(LongTarget(name=name, rule=rule, length=length, n=rows, **more))

    for name, rule in long_rules(length, min(max(9, 2 * k - 1), length // 4), seed).items():
        add(name, rule, joint=name != "sharpened", alone=name == "chain")
    if length < LONGEST:
        add("far", Strided(softmax((4, 4), 0.8, generator_of("text far", seed)), LONGEST), LONGEST, far=True)
    return result
