"""Models of known distribution for discrete decoders: tables whose sequences are all listed, and long ones."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from parity_certify import result_rows as R
from parity_certify.joint_tests import digits
from parity_certify.result_rows import Row
from parity_certify.seeding import derive_row_key
from parity_certify.teacher_forced import assign_slots
from parity_decoders.distribution import TokenSampling
from parity_decoders.engine import Sampled
from parity_decoders.noise import Noise, counted_noise
from parity_decoders.protocols.discrete import TokenModel
from scipy import stats
from torch import Tensor

from parity.base.errors import ParityError
from parity.decode.discrete import Decoded, record
from parity.equality.martingale_tests import compute_log_scores, make_sequence_rows, make_support_row
from parity.equality.targets import Decoder, Enumerated, make_generator
from parity.equality.targets.long import Long, Sequences, draw_probs
from parity.experiment.options import LONGEST
from parity.models.discrete.tabular import (
    HashedTable,
    HiddenDistribution,
    HiddenMarkov,
    TabularModel,
    make_chain,
    make_counter,
    pair_distributions,
    random_table,
)

DRAWS = 9999
MANY = 16  # largest vocabulary whose tokens are tested one by one
PARTS = 8  # number of parts that the distribution of a larger vocabulary is cut into
FAMILY = "targets"
PLAIN = TokenSampling()
GUIDED = TokenSampling(guidance=2.0, top_k=5)  # of the model "guided"
SHAPES = ((2, 4), (3, 4), (3, 5))
SMALL = ("random-0 3x5", "disjoint 3x4", "one-hot 2x4", "top-k 3x5", "forced 3x4", "guided 3x5")


@dataclass(frozen=True)
class Target(Enumerated):
    """A table of distributions, and how it is sampled."""

    name: str
    table: Tensor  # [N, V] logits by prefix, float64; [2, N, V], conditional and unconditional ones, under guidance
    length: int
    width: int
    forced: Tensor | None = None  # [L] token that the grammar forces at each position, -1 for none
    sampling: TokenSampling = PLAIN

    @property
    def vocab(self) -> int:
        return self.table.shape[-1]

    @property
    def shape(self) -> tuple[int, int]:
        return self.vocab, self.length

    def make_model(self, rows: int, dtype: torch.dtype = torch.float64) -> TokenModel:
        model = TabularModel(self.table.to(dtype), self.length, rows, self.width, self.forced)
        return model if self.sampling == PLAIN and self.forced is None else Sampled(model, self.sampling)

    @cached_property
    def probs(self) -> np.ndarray:
        """Compute the joint distribution [V^L], float64. Raises ParityError if a conditional that can be reached is no
        distribution."""
        sequences = torch.from_numpy(digits(self.vocab, self.length))
        return compute_sequence_probs(self.name, self.make_model(len(sequences)), sequences)

    def decode_codes(self, decoder: Decoder, noise: Noise, options: dict[str, Any]) -> np.ndarray:
        model = self.make_model(len(noise.keys), noise.dtype)
        start = torch.zeros(len(noise.keys), dtype=torch.int64)
        tokens = record(model, start, decoder(model, start, noise=noise, **options)).tokens
        return (tokens * self.vocab ** torch.arange(self.length - 1, -1, -1)).sum(1).numpy()


def compute_conditionals(model: TokenModel, tokens: Tensor) -> Tensor:
    """Compute the distributions [n, L, V], float64, of tokens [n, L], each given those before it, by a fresh model of n
    rows."""
    inputs = torch.cat([torch.zeros(len(tokens), 1, dtype=torch.int64), tokens[:, :-1]], 1)
    return model.logits(inputs, torch.arange(-1, tokens.shape[1] - 1).expand_as(tokens)).double().softmax(-1)


def compute_sequence_probs(name: str, model: TokenModel, sequences: Tensor) -> np.ndarray:
    """Compute the probabilities [K], float64, that a model of K rows gives to sequences [K, L]. Raises ParityError if a
    conditional that they reach is not a distribution."""
    p = compute_conditionals(model, sequences)
    token_p = p.gather(-1, sequences[..., None])[..., 0]
    prefix_p = torch.cat([torch.ones(len(sequences), 1, dtype=p.dtype), token_p[:, :-1].cumprod(1)], 1)
    total = p.sum(-1)
    is_distribution = p.isfinite().all(-1) & ((total - 1).abs() <= 1e-9) & (p >= 0).all(-1)
    bad = ~is_distribution & (prefix_p != 0)  # conditionals after an impossible prefix may be anything
    if bad.any():
        position, row = bad.T.nonzero()[0].tolist()
        problem = f"p is not a distribution (sum {float(total[row, position]):.6g})"
        raise ParityError(f"model {name}, row {row}, position {position}: {problem}")
    return torch.where(prefix_p == 0, 0.0, token_p).prod(1).numpy()


Table = Callable[[int, int, torch.Generator], Tensor]  # draws logits [N, V] or [2, N, V], given V and L


def draw_disjoint_table(vocab: int, length: int, generator: torch.Generator) -> Tensor:
    """Draw logits [N, V] of distributions that nearly exclude a token each, another after each token: old drafts rarely
    fit."""
    table = random_table(vocab, length, generator, 1.0)
    return table.scatter_(1, (torch.arange(len(table)) % vocab)[:, None], -8.0)


def draw_one_hot_table(vocab: int, length: int, generator: torch.Generator) -> Tensor:
    """Draw logits [N, V] of distributions of which half are certain of one token and the others are random."""
    table = random_table(vocab, length, generator)
    is_certain = torch.rand(len(table), 1, generator=generator, dtype=torch.float64) < 0.5
    is_certain[0] = False
    hot = torch.nn.functional.one_hot(torch.randint(vocab, (len(table),), generator=generator), vocab).bool()
    return torch.where(is_certain & ~hot, float("-inf"), table)


def draw_flat_table(vocab: int, length: int, generator: torch.Generator) -> Tensor:
    """Draw logits [N, V] of distributions that depend on the position alone: p == q wherever a draft came from this
    position."""
    probs = 1.5 * torch.randn(length, vocab, generator=generator, dtype=torch.float64)  # 1.5 as in `random_table`
    return probs.repeat_interleave(torch.tensor([vocab**i for i in range(length)]), 0)


guided_table = partial(random_table, scale=1.0, pair=True)  # draws conditional and unconditional logits
MAKES: dict[str, tuple[Table, dict[str, Any]]] = {  # by name, how a table is drawn, and how it is sampled
    **{f"random-{k}": (random_table, {}) for k in range(3)},
    "sharp": (partial(random_table, scale=4.0), {}),
    "disjoint": (draw_disjoint_table, {}),
    "flat": (draw_flat_table, {}),
    "one-hot": (draw_one_hot_table, {}),
    "forced": (random_table, {}),  # its second and last tokens are forced, see `list_forced_tokens`
    "guided": (guided_table, {"guidance": 2.0}),
    "top-k": (random_table, {"top_k": 2}),  # made for V > 2 alone, as "all" is
    "all": (guided_table, {"guidance": 3.0, "temperature": 0.9, "top_k": 2}),  # its third token is forced too
}


def list_forced_tokens(make: str, vocab: int, length: int) -> Tensor | None:
    """List the tokens [L] that the grammar of the target `make` forces, -1 elsewhere; None if it forces none."""
    forced = {"forced": {1: vocab - 1, length - 1: vocab - 1}, "all": {2: 0}}.get(make)
    return None if forced is None else torch.tensor([forced.get(i, -1) for i in range(length)])


def targets(which: str = "full", seed: int = 0) -> list[Target]:
    """Make all targets ("full"), or six of them ("small"); each is a function of its name and the seed alone."""
    if which not in ("full", "small"):
        raise ParityError(f"models = {which!r}: allowed: 'full' or 'small'")
    result = []
    for V, L in SHAPES:
        for make, (table, settings) in MAKES.items():
            name = f"{make} {V}x{L}"
            sampling = TokenSampling(**settings)
            if sampling.top_k < V and (which == "full" or name in SMALL):
                logits = table(V, L, make_generator(name, seed))
                result.append(Target(name, logits, L, 2, list_forced_tokens(make, V, L), sampling))
    return result


# --- Models of long sequences

Make = Callable[[int, int, int, Tensor], TokenModel]  # makes a model, given (length, rows, width, forced)


@dataclass(frozen=True, kw_only=True)
class LongTarget(Long):
    """A model of a distribution of any length."""

    make: Make
    width: int
    forced: Tensor  # [L] token that the grammar forces at each position, -1 for none
    # hidden Markov distribution from which pairs are computed; None if they are not tested
    pair_source: HiddenDistribution | None = None

    def make_model(self, rows: int) -> TokenModel:
        return self.make(self.length, rows, self.width, self.forced)

    @cached_property
    def probs(self) -> np.ndarray | None:
        """Compute the distribution [L, V, L, V] of every two tokens, by the forward algorithm; None without a
        `pair_source`."""
        if self.pair_source is None:
            return None
        initial, step, emit = self.pair_source.begin, self.pair_source.step, self.pair_source.emit
        L, V = self.length, emit.shape[1]
        certain = torch.nn.functional.one_hot(self.forced.clamp(min=0), V).double()
        free = (self.forced < 0).tolist()
        emits = [emit if free[i] else certain[i].expand_as(emit) for i in range(L)]
        pair_probs = torch.zeros(L, V, L, V, dtype=torch.float64)
        belief = initial
        for i in range(L):
            pair_probs[i, :, i] = torch.diag(belief @ emits[i])
            joint = (emits[i].T * belief) @ step  # [V, H] joint distribution of token i and the next state
            for j in range(i + 1, L):
                pair_probs[i, :, j] = joint @ emits[j]
                pair_probs[j, :, i] = pair_probs[i, :, j].T
                joint = joint @ step
            belief = belief @ step
        return pair_probs.numpy()

    def compute_probs(self, tokens: Tensor) -> Tensor:
        return compute_conditionals(self.make_model(len(tokens)), tokens)

    def make_start(self, seed: int) -> Tensor:
        return torch.zeros(self.n, dtype=torch.int64)

    def record(self, decoder: Decoder, start: Tensor, options: dict[str, Any]) -> Decoded:
        model = self.make_model(len(start))
        return record(model, start, decoder(model, start, **options))

    def to_drawn(self, start: Tensor, tokens: Tensor, step: Tensor, predictable: bool) -> Sequences:
        probs = self.compute_probs(tokens).numpy()
        slot = assign_slots(step.numpy().astype(int))
        return Sequences(tokens.numpy(), probs, np.zeros(tokens.shape, bool), slot, predictable)

    def make_token_rows(self, drawn: Sequences, layer: str, is_whole: bool, **columns: Any) -> list[Row]:
        """Make the rows; of a token of a large vocabulary, most tests see only the eighth of its distribution that it
        is in."""
        tokens, p = drawn.tokens, drawn.probs
        slot = drawn.slot if drawn.predictable else None
        if p.shape[2] <= MANY:
            return super().make_token_rows(drawn, layer, is_whole, **columns)
        is_forced = (p.max(2) == 1).all(0) & np.ones(tokens.shape, bool)
        scores = compute_log_scores(tokens, np.where(is_forced[..., None], 0, p), ~is_forced)
        eighth_of = np.minimum(((p.cumsum(2) - p / 2) * PARTS).astype(np.int8), PARTS - 1)
        eighths = np.stack([np.where(eighth_of == k, p, 0).sum(2) for k in range(PARTS)], 2)
        eighth = np.take_along_axis(eighth_of, tokens[..., None], 2)[..., 0].astype(int)
        rows = make_sequence_rows(layer, eighth, eighths, None, slot, is_forced, scores, **columns)
        is_impossible = np.take_along_axis(p, tokens[..., None], 2)[..., 0] == 0
        return rows + ([make_support_row(layer, is_impossible, **columns)] if is_impossible.any() else [])


def mix_contexts(probs: Tensor) -> Tensor:
    """Make a draft model's distributions from a target's, probs [contexts, ...]: mix each context's with the previous
    one's."""
    return 0.7 * probs + 0.3 * probs.roll(1, 0)


def draw_chain_table(generator: torch.Generator) -> Tensor:
    return 0.8 * draw_probs((1, 8), 1.0, generator) + 0.2 * draw_probs((8, 8), 3.0, generator)


def draw_order_two_table(generator: torch.Generator) -> Tensor:
    """Draw distributions [4, 4, 4] of a token given the two before, a third of which exclude their least likely
    token."""
    table = draw_probs((4, 4, 4), 1.5, generator)
    excludes = torch.arange(16).view(4, 4, 1) % 3 == 0
    table = torch.where(excludes & (table == table.amin(-1, keepdim=True)), 0.0, table)
    return table / table.sum(-1, keepdim=True)


def draw_hidden_distribution(generator: torch.Generator) -> tuple[Callable[[Tensor], HiddenDistribution], Tensor]:
    """Draw a hidden Markov distribution of five states. Returns a function that makes the distribution from a table of
    what the states emit, and this table [5, 8]."""
    step = 0.9 * torch.eye(5, dtype=torch.float64) + 0.1 * draw_probs((5, 5), 1.0, generator)
    return partial(HiddenDistribution, torch.full((5,), 0.2, dtype=torch.float64), step), draw_probs(
        (5, 8), 1.5, generator
    )


def make_hidden_markov(distribution: HiddenDistribution, drafts: HiddenDistribution) -> Make:
    return lambda length, rows, width, forced: Sampled(
        HiddenMarkov(distribution, length, rows, width, forced, drafts), TokenSampling()
    )


def make_hashed(generator: torch.Generator) -> Make:
    """Make the model "hash": a hash of all tokens before picks one of TABLES distributions, which exclude 3/4 of the
    tokens."""
    base = draw_probs((1, MOST), 1.0, generator)
    is_excluded = torch.rand(TABLES, MOST, generator=generator) < 0.75
    probs = torch.where(is_excluded, 0.0, base)
    drafts = torch.where(is_excluded & is_excluded.roll(1, 0), 0.0, base)
    return lambda length, rows, width, forced: Sampled(
        HashedTable(probs.log(), length, rows, width, forced, drafts.log()), TokenSampling()
    )


def make_guided(generator: torch.Generator) -> Make:
    """Make the model "guided": two chains of 8 tokens, combined by guidance 2 and top-k 5, and their draft model."""
    tables = [draw_chain_table(generator) for _ in range(2)]
    distribution = pair_distributions(*map(make_chain, tables))
    drafts = pair_distributions(*(make_chain(mix_contexts(t)) for t in tables))
    return lambda length, rows, width, forced: Sampled(
        HiddenMarkov(distribution, length, rows, width, forced, drafts), GUIDED
    )


FORCED = ("hidden", "hash")
MOST = 256  # vocabulary of the model "hash"
TABLES = 256
DISTRIBUTIONS = 1 << 25  # probabilities that are held of a model longer than LONGEST, 256 MiB


def choose_sizes(reach: Mapping[str, int], longest: int = LONGEST) -> tuple[int, int]:
    """Choose length and width of a token grid: at least four rows, each twice as wide as the lag between rows, and
    twice as many tokens as a pass looks ahead; `longest` at most."""
    width = max(16, 2 * reach["lag"])
    length = max(4 * width, width * math.ceil(2 * max(reach.values()) / width))
    return min(length, longest), min(width, longest // 4)


def long_targets(
    reach: Mapping[str, int], size: int, seed: int = 0, which: str = "", longest: int = LONGEST
) -> list[LongTarget]:
    """Make the long targets. Each is a function of its name, of its length and of the seed. How long they are follows
    from how far a pass looks (reach, see `parity.experiment.options.measure_reach`) and from `longest`, the tokens of
    the images that are decoded. size: tokens that are drawn of each; which belongs to the signature of all kinds and
    is not read here. Pairs of positions are tested up to LONGEST tokens, as their number grows with the square.

    chain    V = 8, distributions that differ little from token to token: drafts are mostly right, windows run to their
             border
    order 2  V = 4, a third of the distributions rule a token out
    hidden   V = 8, five states that stay for a while, which no few tokens tell; the last token of a row is forced
    counter  V = 4, the distribution depends on the sum of all tokens before, modulo 3: nothing is ever forgotten
    far      order 2 on `longest` tokens, where the others are shorter: faults that begin late
    hash     V = 256, a hash of all tokens before rules three quarters of them out: what is drawn from elsewhere
             shows. Tests see which eighth of its distribution a token is of. A sixteenth of the tokens; the last of a
             row is forced
    guided   V = 8, of two chains by guidance 2 and top-k 5: the distribution is known token by token, not that of pairs
    """
    length, width = choose_sizes(reach, longest)
    result: list[LongTarget] = []

    def add(name: str, make: Make, V: int, length: int = length, share: int = 1, **settings: Any) -> None:
        """Append a target of V tokens, on which size / share are drawn, or 100 rows if that is more. If its name is in
        FORCED, token V - 1 ends grid rows. settings: further fields of LongTarget."""
        forced = torch.full((length,), -1)
        if name in FORCED:
            forced[width - 1 :: width] = V - 1
        rows = max(100, size // length // share)
        if length > LONGEST:
            rows = min(rows, DISTRIBUTIONS // (length * V))
            settings |= {"skips_pairs": True, "pair_source": None}
        name = f"{name} {V}x{length}"
        result.append(LongTarget(name=name, make=make, length=length, width=width, forced=forced, n=rows, **settings))

    def seed_generator(name: str) -> torch.Generator:
        return make_generator(name, seed)

    distribution_of_table: dict[str, tuple[Callable[[Tensor], HiddenDistribution], Tensor]] = {
        "chain": (make_chain, draw_chain_table(seed_generator("chain"))),
        "order 2": (make_chain, draw_order_two_table(seed_generator("order 2"))),
        "hidden": draw_hidden_distribution(seed_generator("hidden")),
        "counter": (make_counter, draw_probs((3, 4), 1.0, seed_generator("counter"))),
    }
    for name, (hide, table) in distribution_of_table.items():
        make = make_hidden_markov(hide(table), hide(mix_contexts(table)))
        add(name, make, table.shape[-1], pair_source=hide(table), tests_batches=name == "chain")
    if length < longest:
        table = draw_order_two_table(seed_generator("far"))
        make = make_hidden_markov(make_chain(table), make_chain(mix_contexts(table)))
        add("far", make, 4, longest, skips_pairs=True)
    add("hash", make_hashed(seed_generator("hash")), MOST, share=16)
    add("guided", make_guided(seed_generator("guided")), 8, share=2)
    return result


# --- A vocabulary of a real size, in float32

SIZE = 65_536  # of the vocabulary
PLACES = 2048  # tokens that are drawn; an error of 24 bits shows at one place in 200
REST = 1e-9  # probability of all tokens but two
ROWS = 2  # rows that are decoded at once, because a distribution takes a quarter of a megabyte


class RealVocabulary(LongTarget):
    """A distribution over SIZE tokens, in float32 and the same at all positions: the first and the last have one half
    each, the others REST together. The draft model's distribution differs from it in the last bits."""

    def draw(
        self, decoder: Decoder, n: int, seed: int, options: dict[str, Any], threads: int = 1, strict: bool = False
    ) -> Sequences:
        """Draw `self.n` sequences (n and threads are not read), ROWS at once. No token has probability zero."""
        key = derive_row_key(seed, self.name)
        tokens = []
        for first in range(0, self.n, ROWS):
            noise = counted_noise(key, range(first, min(first + ROWS, self.n)), torch.float32)
            tokens.append(self.record(decoder, torch.zeros_like(noise.keys), {"noise": noise, **options}).tokens)
        nothing = np.empty(0)
        return Sequences(torch.cat(tokens).numpy(), nothing, nothing, nothing, strict)

    def make_rows(self, drawn: Sequences, layer: str, seed: int, draws: int) -> list[Row]:
        """Make the rows of the tests "tail", how often one of the REST is drawn, and "ties", whether the two equal
        tokens are drawn equally often. Both are exact; the effect of "tail" is the upper end of its interval."""
        n, columns = drawn.tokens.size, {"model": self.name, "seed": seed}
        first, last = (int((drawn.tokens == token).sum()) for token in (0, SIZE - 1))
        n_rest = n - first - last
        bound = stats.beta.ppf(1 - R.get_alpha(), n_rest + 1, n - n_rest) if n_rest < n else 1.0
        note = f"{n_rest} of {n} tokens are of the {SIZE - 2} that have {REST:g} together: arithmetic in float32 "
        note += f"gives them at most {bound:.1e} ({R.describe_confidence(R.get_alpha())})"
        limit = 1 - (1 - R.POWER) ** (1 / n)
        p = float(stats.binom.sf(n_rest - 1, n, REST))
        tail = R.make_row(
            layer, "tail", n, p_value=p, effect=bound, minimum_detectable_effect=limit, note=note, **columns
        )
        pair = max(first + last, 1)
        p = float(stats.binomtest(first, pair).pvalue)
        note = f"{first} and {last} of two equal tokens"
        return [tail, R.make_row(layer, "ties", n, p_value=p, effect=abs(first / pair - 0.5), note=note, **columns)]


def make_real_vocabulary(reach: Mapping[str, int]) -> RealVocabulary:
    """Make the target whose distribution only a vocabulary of a real size shows; reach as in `long_targets`."""
    length, width = choose_sizes(reach)
    logits = torch.full((1, SIZE), math.log(REST / (SIZE - 2)), dtype=torch.float32)
    logits[:, [0, -1]] = math.log(0.5)
    drafts = logits * (1 + 2**-22 * torch.arange(SIZE).remainder(3).sub(1))

    def make(length: int, rows: int, width: int, forced: Tensor) -> TokenModel:
        return Sampled(HashedTable(logits, length, rows, width, forced, drafts), PLAIN)

    forced = torch.full((length,), -1)
    rows = max(1, PLACES // length)
    return RealVocabulary(name=f"real {SIZE}x{length}", make=make, length=length, width=width, forced=forced, n=rows)
