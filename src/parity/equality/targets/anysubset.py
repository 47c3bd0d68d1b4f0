"""Models of known distribution for any-subset decoders, with prompts: small ones whose texts are all listed, and long
ones.

The distribution is that of the lattice order (Guo & Ermon 2025, Eq. 4). On the "random" targets, as on a network,
another order is another distribution. On the "consistent" ones all orders have the same distribution, so what is
rejected there is rejected for its arithmetic alone.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from parity_certify.result_rows import Row
from parity_certify.teacher_forced import assign_slots
from parity_decoders.noise import Noise
from parity_decoders.protocols.anysubset import Infilling, invert_order, make_infilling
from torch import Tensor

from parity.decode.anysubset import Filled, record
from parity.equality.martingale_tests import compute_detectable_z, make_z_row
from parity.equality.targets import Decoder, Enumerated, make_generator
from parity.equality.targets.long import Long, Sequences, draw_probs
from parity.experiment.options import LONGEST
from parity.models.anysubset import hidden
from parity.models.anysubset.hidden import LongSubset, Rule, Sharpened, Strided
from parity.models.anysubset.tabular import (
    TabularAnySubset,
    compute_joint_probs,
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

    def make_start(self, rows: int) -> Infilling:
        """Make texts that hold the prompt alone, for `rows` rows."""
        tokens = torch.full((rows, self.model.length), self.model.mask)
        for position, token in self.prompt.items():
            tokens[:, position] = token
        return make_infilling(tokens, tokens != self.model.mask, self.model.mask, self.model.vocab)

    @cached_property
    def probs(self) -> np.ndarray:
        """Compute the joint distribution of the missing tokens, by code; the token of the first rank is most
        significant."""
        return compute_joint_probs(self.model, self.make_start(1))

    def decode_codes(self, decoder: Decoder, noise: Noise, options: dict[str, Any]) -> np.ndarray:
        start = self.make_start(len(noise.keys))
        filled = record(self.model, start, decoder(self.model, start, noise=noise, **options))
        return encode_rows(self.model, start, filled.tokens)


def draw_flat_table(vocab: int, length: int, generator: torch.Generator) -> Tensor:
    """Draw logits of distributions that depend on the position alone, so that drafts are always right (p == q)."""
    probs = 1.5 * torch.randn(1, length, vocab, generator=generator, dtype=torch.float64)
    return probs.expand((vocab + 1) ** length, -1, -1)


MAKES: dict[str, tuple[Callable[[int, int, torch.Generator], Tensor], int, int, dict[int, int]]] = {
    "random 3x5": (random_table, 3, 5, {2: 1}),
    "random 2x6": (random_table, 2, 6, {0: 1, 4: 0}),
    "sharp 3x4": (partial(random_table, scale=4.0), 3, 4, {3: 2}),
    "consistent 3x5": (consistent_table, 3, 5, {1: 0}),
    "consistent 3x4": (consistent_table, 3, 4, {0: 2}),
    "flat 3x4": (draw_flat_table, 3, 4, {1: 1}),
}


def targets(which: str = "full") -> list[Target]:
    """Make the targets of MAKES; `which` belongs to the signature of all kinds and is not read."""
    return [
        Target(name, TabularAnySubset(table(vocab, length, make_generator(name, 0))), prompt)
        for name, (table, vocab, length, prompt) in MAKES.items()
    ]


# --- Models of long texts

KNOWN = 1 / 8  # share of a text's words that its prompt holds
SHORTER = 5  # number of words by which rows differ in length, on targets whose rows do


@dataclass(frozen=True, kw_only=True)
class LongTarget(Long):
    """A rule by which texts are filled in."""

    rule: Rule
    is_joint: bool = True  # whether all orders have one joint distribution, which also gives those of pairs

    @cached_property
    def model(self) -> LongSubset:
        return LongSubset(self.rule)

    @cached_property
    def probs(self) -> np.ndarray | None:
        """Compute the distribution [N, V, N, V] of every two words; None if orders differ in distribution or pairs are
        not tested."""
        if not self.is_joint or self.skips_pairs:
            return None
        return hidden.compute_pair_probs(self.rule, self.length).numpy()

    @property
    def ends(self) -> Tensor | None:
        """Return the number of words of each row [n]; None if all rows are of full length."""
        return None if self.is_joint else self.length - SHORTER * (torch.arange(self.n) % 3)

    def make_start(self, seed: int) -> Infilling:
        """Draw the prompts of all rows: words of the distribution at random positions, a function of name and seed
        alone."""
        generator = make_generator(f"prompts of {self.name}", seed)
        u = torch.rand(2, self.n, self.length, generator=generator, dtype=torch.float64)
        rule = self.rule.rule if isinstance(self.rule, Sharpened) else self.rule
        is_known = u[0] < KNOWN
        is_known[:, 3] |= ~is_known[:, : self.length // 2].any(1)
        return make_infilling(hidden.draw_texts(rule, u[1]), is_known, self.model.mask, self.model.vocab, self.ends)

    def compute_probs(self, start: Infilling, tokens: Tensor) -> Tensor:
        """Compute the distributions [n, N, V] of words [n, N], each given those of lower ranks."""
        ranks = torch.arange(self.length).expand_as(tokens)
        p = self.model.probs(tokens, start.order, start.begin, ranks, ranks)[..., : self.rule.words]
        return p.gather(1, invert_order(start.order)[..., None].expand_as(p))

    def record(self, decoder: Decoder, start: Infilling, options: dict[str, Any]) -> Filled:
        return record(self.model, start, decoder(self.model, start, **options))

    def has_predictable_slots(self, options: dict[str, Any]) -> bool:
        return "k" in options

    def to_drawn(self, start: Infilling, tokens: Tensor, step: Tensor, predictable: bool) -> Sequences:
        """Compute distributions and slots of decoded words [n, N]; mark those of the prompt and after a row's end as
        known."""
        rank = invert_order(start.order)
        in_row = rank < start.end[:, None]
        is_known = (rank < start.begin[:, None]) | ~in_row
        probs = self.compute_probs(start, tokens)
        slot = np.take_along_axis(assign_slots(step.gather(1, start.order).numpy().astype(int)), rank.numpy(), 1)
        return Sequences(torch.where(in_row, tokens, 0).numpy(), probs.numpy(), is_known.numpy(), slot, predictable)

    def make_token_rows(self, drawn: Sequences, layer: str, is_whole: bool, **columns: Any) -> list[Row]:
        """Make the rows of the tests of words; for a whole sample with rows of different length, also of the order."""
        rows = super().make_token_rows(drawn, layer, is_whole, **columns)
        if is_whole and self.ends is not None:
            rows.append(make_order_row(layer, self.rule, drawn, self.ends, **columns))
        return rows


def compute_backward_probs(rule: Rule, words: Tensor, prompt: Tensor) -> Tensor:
    """Compute the distribution [n, N, V] of each of `words` [n, N] given those before it and the prompt, if the text
    had been filled in from right to left by a chain's rule. prompt [n, N]: its words, V elsewhere.

    Filled in this way, a text is a chain from the right, and so also one from the left: by the distribution of a word
    given the prompt alone (`probs`), times the distribution of the word before given this one (`steps`).
    """
    (n, N), V = words.shape, rule.words
    prompted = torch.full((n, V), 1 / V, dtype=torch.float64)
    probs, steps = [], []
    for i in reversed(range(N)):
        line = prompt.repeat(V, 1)
        if i + 1 < N:
            line[:, i + 1] = torch.where(line[:, i + 1] < V, line[:, i + 1], torch.arange(V).repeat_interleave(n))
        # distributions by the next word: [V, n, V]
        steps.append(rule.probs_given(line, torch.full((V * n,), i)).view(V, n, V))
        prompted = torch.einsum("nw,wnv->nv", prompted, steps[-1])
        word = prompt[:, i]
        certain = torch.nn.functional.one_hot(word.clamp(max=V - 1), V).double()
        prompted = torch.where((word < V)[:, None], certain, prompted)
        probs.append(prompted)
    probs.reverse()
    steps.reverse()
    for i in range(1, N):
        # `likelihood` [n, V] is the probability of the word before, for each value of this word.
        likelihood = steps[i - 1].gather(2, words[:, i - 1].expand(V, n)[..., None])[..., 0].T
        probs[i] = torch.where((prompt[:, i - 1] < V)[:, None], probs[i], hidden.normalise(probs[i] * likelihood))
    return torch.stack(probs, 1)


def make_order_row(layer: str, rule: Rule, drawn: Sequences, ends: Tensor, **columns: Any) -> Row:
    """Make the row that tests whether words are likelier under the distribution of texts filled in from right to left
    than they should be: the log ratio of a word's two distributions less its mean, over all words (most powerful
    against that order). ends [n]: words of each row."""
    words = torch.from_numpy(drawn.tokens)
    in_row = torch.arange(words.shape[1]) < ends[:, None]
    prompt = torch.where(torch.from_numpy(drawn.is_known) & in_row, words, rule.words)
    is_drawn, p = ~drawn.is_known, drawn.probs
    backward = compute_backward_probs(rule, words, prompt).numpy()
    ratio = np.where(p > 0, np.log(backward.clip(1e-12) / p.clip(1e-12)), 0)
    mean = (p * ratio).sum(2)
    score = (np.take_along_axis(ratio, drawn.tokens[..., None], 2)[..., 0] - mean)[is_drawn].sum()
    count = int(is_drawn.sum())
    error = math.sqrt(((p * ratio**2).sum(2) - mean**2)[is_drawn].sum()) / count
    values = {"effect": abs(score) / count, "minimum_detectable_effect": compute_detectable_z(error), **columns}
    return make_z_row(layer, "order", count, np.array([score / count / error]), str, **values)


def make_long_rules(length: int, period: int, seed: int) -> dict[str, Rule]:
    """Make the rules of the long targets, by name, for texts of `length` words; period: that of "copy" and "parity"."""

    def seed_probs(name: str) -> Callable[..., Tensor]:
        return partial(draw_probs, generator=make_generator(f"text {name}", seed))

    chain, copy, parity, states, sharpened = map(seed_probs, ("chain", "copy", "parity", "hidden", "sharpened"))
    table = 0.6 * chain((1, 8), 0.7) + 0.4 * chain((8, 8), 2.0)
    word = torch.arange(8)
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
    """Make the long targets. Each is a function of its name, of how far a pass looks (reach, see
    `parity.experiment.options.measure_reach`) and of the seed; about `size` words are filled in on each. Prompts are of
    the model's own distribution.

    chain      V = 8, distributions that differ little from word to word, and a third of the words rule another out
    copy       V = 4, each word is mostly the one a period before it, and the period is longer than k
    parity     V = 3, only the sum of a block that is longer than k says anything
    hidden     V = 6, three states that stay for a while
    sharpened  V = 4, a chain's distributions to a power: another order of decoding is another distribution. Rows are of
               three lengths
    far        V = 4, a chain of 256 words, where the others are shorter: faults that begin late
    """
    k = reach["positions"]
    length = min(LONGEST, max(64, 16 * -(-4 * k // 16)))
    result: list[LongTarget] = []

    def add(name: str, rule: Rule, length: int = length, **settings: Any) -> None:
        name = f"{name} {rule.words}x{length}"
        result.append(LongTarget(name=name, rule=rule, length=length, n=max(100, size // length), **settings))

    for name, rule in make_long_rules(length, min(max(9, 2 * k - 1), length // 4), seed).items():
        add(name, rule, is_joint=name != "sharpened", tests_batches=name == "chain")
    if length < LONGEST:
        table = draw_probs((4, 4), 0.8, make_generator("text far", seed))
        add("far", Strided(table, LONGEST), LONGEST, skips_pairs=True)
    return result
