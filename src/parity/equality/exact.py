"""Layer 1, exact: a discrete decoder on models whose joint law can be written down.

    exact(decoder, options, claim="lossless", n=1_000_000, models="full", seeds=[0, 1], threads=1) -> rows
    certify(decoder, n=100_000, **options) -> Certificate      the same for a decoder of your own, with its verdict

decoder   any callable f(model, start, *, noise, **options) that yields `parity.steps.Step` (see parity.decoders)
models    "full" (every target below), "small" (six of them), or a list of `Target`

All in float64. The seeds are a fixed list: the first is the run, the second repeats what it rejected; both are kept (column `repeat`).
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from parity.base.noise import counted_noise, row_key
from parity.decode.discrete import decode
from parity.decoders.steps import Step
from parity.equality import counts as discrete
from parity.equality import rows as R
from parity.equality.rows import Row
from parity.models.discrete.protocol import TokenModel
from parity.models.discrete.sampling import Sampled, Sampling
from parity.models.discrete.tabular import TabularModel, random_table

Decoder = Callable[..., Iterator[Step]]
CHUNK = 8192  # sequences decoded at once: their tensors stay in the processor's cache
SHAPES = ((2, 4), (3, 4), (3, 5))
SMALL = ("random-0 3x5", "disjoint 3x4", "one-hot 2x4", "top-k 3x5", "forced 3x4", "guided 3x5")


class Target(NamedTuple):
    """An enumerable target: `table` and how it is sampled."""

    name: str
    table: Tensor  # [N, V] or [2, N, V] logits, float64
    length: int
    width: int
    forced: Tensor | None = None  # [L]
    sampling: Sampling = Sampling()

    def model(self, rows: int, dtype: torch.dtype = torch.float64) -> TokenModel:
        model = TabularModel(self.table.to(dtype), self.length, rows, self.width, self.forced)
        return model if self.sampling == Sampling() and self.forced is None else Sampled(model, self.sampling)

    @property
    def vocab(self) -> int:
        return self.table.shape[-1]


def disjoint_table(vocab: int, length: int, generator: torch.Generator) -> Tensor:
    """Laws [N, V] that nearly exclude one token each, another one after every token: old drafts seldom fit a new prefix."""
    table = random_table(vocab, length, generator, 1.0)
    return table.scatter_(1, (torch.arange(len(table)) % vocab)[:, None], -8.0)


def one_hot_table(vocab: int, length: int, generator: torch.Generator) -> Tensor:
    """Half of the laws [N, V] are certain of one token, the others are random."""
    table = random_table(vocab, length, generator)
    certain = torch.rand(len(table), 1, generator=generator, dtype=torch.float64) < 0.5
    certain[0] = False
    hot = torch.nn.functional.one_hot(torch.randint(vocab, (len(table),), generator=generator), vocab).bool()
    return torch.where(certain & ~hot, float("-inf"), table)


def flat_table(vocab: int, length: int, generator: torch.Generator) -> Tensor:
    """Laws [N, V] that depend on the position alone: p == q wherever a draft came from this position."""
    laws = 1.5 * torch.randn(length, vocab, generator=generator, dtype=torch.float64)  # the scale of random_table
    return laws.repeat_interleave(torch.tensor([vocab**i for i in range(length)]), 0)


KINDS: dict[str, tuple[Callable[[int, int, torch.Generator], Tensor], Sampling]] = {
    **{f"random-{k}": (random_table, Sampling()) for k in range(3)},
    "sharp": (partial(random_table, scale=4.0), Sampling()),
    "disjoint": (disjoint_table, Sampling()),
    "flat": (flat_table, Sampling()),
    "one-hot": (one_hot_table, Sampling()),
    "forced": (random_table, Sampling()),  # the second and the last token
    "guided": (partial(random_table, scale=1.0, pair=True), Sampling(guidance=2.0)),
    "top-k": (random_table, Sampling(top_k=2)),  # these two for V > 2
    "all": (
        partial(random_table, scale=1.0, pair=True),
        Sampling(guidance=3.0, temperature=0.9, top_k=2),
    ),  # and the third token forced
}


def forced_tokens(kind: str, vocab: int, length: int) -> Tensor | None:
    """[L] tokens that the grammar of a kind of target forces, -1 where it forces none."""
    places = {"forced": {1: vocab - 1, length - 1: vocab - 1}, "all": {2: 0}}.get(kind)
    return None if places is None else torch.tensor([places.get(i, -1) for i in range(length)])


def targets(which: str = "full", seed: int = 0) -> list[Target]:
    """The targets of the exact layer; each is a function of (its name, seed) alone."""
    found = []
    for V, L in SHAPES:
        for kind, (table, sampling) in KINDS.items():
            if sampling.top_k >= V:
                continue
            name = f"{kind} {V}x{L}"
            generator = torch.Generator().manual_seed(row_key(seed, name) % 2**63)
            found.append(Target(name, table(V, L, generator), L, 2, forced_tokens(kind, V, L), sampling))
    if which == "full":
        return found
    if which == "small":
        return [t for t in found if t.name in SMALL]
    raise ValueError(f"models: {which!r}, expected 'full' or 'small'")


def exact_law(target: Target) -> np.ndarray:
    """The joint law [V^L] of a target, float64; ValueError if one of its reachable conditionals is not a law."""
    cells = torch.from_numpy(discrete.digits(target.vocab, target.length))
    inputs = torch.cat([torch.zeros(len(cells), 1, dtype=torch.int64), cells[:, :-1]], 1)
    positions = torch.arange(-1, target.length - 1).expand(len(cells), -1)
    p = target.model(len(cells)).logits(inputs, positions).double().softmax(-1)
    own = p.gather(-1, cells[..., None])[..., 0]
    reached = torch.cat([torch.ones(len(cells), 1, dtype=own.dtype), own[:, :-1].cumprod(1)], 1)
    for i in range(target.length):
        sound = torch.where(
            (reached[:, i] == 0)[:, None], 1 / target.vocab, p[:, i]
        )  # what cannot be reached need not be a law
        R.check_laws(sound.numpy(), target.name, i, 1e-9)
    return torch.where(reached == 0, 0.0, own).prod(1).numpy()


def name_of(decoder: Decoder) -> str:
    """The function's name, also under functools.partial."""
    return getattr(getattr(decoder, "func", decoder), "__name__", type(decoder).__name__)


def check_support(code: np.ndarray, law: np.ndarray, target: Target, first: int) -> None:
    """ValueError that names model, position and row if a sequence of code [B] has a token of probability zero."""
    bad = np.flatnonzero(law[code] == 0)
    if len(bad):
        V, L = target.vocab, target.length
        tokens = discrete.digits(V, L)[code[bad[0]]]
        position = next(i for i in range(L) if law.reshape([V] * L)[tuple(tokens[: i + 1])].sum() == 0)
        token = tokens[position]
        raise ValueError(
            f"model {target.name}, position {position}, row {first + bad[0]}: token {token} of probability zero was sampled"
        )


def draw(
    decoder: Decoder,
    target: Target,
    n: int,
    seed: int,
    options: dict[str, Any],
    *,
    threads: int = 1,
    law: np.ndarray | None = None,
    dtype: torch.dtype = torch.float64,
) -> np.ndarray:
    """Codes [n] of n decoded sequences (first token most significant). With `law`, impossible ones are an error."""
    V, L = target.vocab, target.length
    weights = V ** torch.arange(L - 1, -1, -1)
    key = row_key(seed, target.name)

    def chunk(first: int) -> np.ndarray:
        rows = min(CHUNK, n - first)
        model, noise = target.model(rows, dtype), counted_noise(key, range(first, first + rows), dtype)
        done = decode(model, decoder(model, torch.zeros(rows, dtype=torch.int64), noise=noise, **options), rows)
        open_ = (done.step == 0) & (model.forced < 0)
        wrong = open_ | (done.tokens < 0) | (done.tokens >= V)
        if wrong.any():
            row, position = wrong.nonzero()[0].tolist()
            what = (
                "never decided"
                if open_[row, position]
                else f"token {int(done.tokens[row, position])} is not in the vocabulary"
            )
            raise ValueError(f"model {target.name}, position {position}, row {first + row}: {what}")
        code = (done.tokens * weights).sum(1).numpy()
        if law is not None:
            check_support(code, law, target, first)
        return code

    torch.set_num_threads(1)  # the tensors are small: whole chunks run side by side instead
    with ThreadPoolExecutor(threads) as pool:
        return np.concatenate(list(pool.map(chunk, range(0, n, CHUNK))))


def exact(
    decoder: Decoder,
    options: dict[str, Any] | None = None,
    *,
    method: str = "",
    key: str = "",
    claim: str = "lossless",
    n: int = 1_000_000,
    models: str | Sequence[Target] = "full",
    seeds: Sequence[int] = (0, 1),
    draws: int = 9999,
    threads: int = 1,
) -> list[Row]:
    """Rows of one decoder on every target. A decoder that claims to be lossless may not sample a token of probability zero (an error);
    for a lossy one such sequences are rejections, and the note counts them. Holm over targets: `all four` decides."""
    options = options or {}
    chosen = targets(models) if isinstance(models, str) else list(models)

    def run(target: Target, seed: int, repeat: int) -> list[Row]:
        law = exact_law(target)
        code = draw(decoder, target, n, seed, options, threads=threads, law=law if claim == "lossless" else None)
        counts = np.bincount(code, minlength=len(law))
        outside = int(counts[law == 0].sum())
        note = f"{outside} of {n} sequences have probability zero" if outside else ""
        rng = np.random.default_rng([seed, row_key(seed, target.name) % 2**32])
        place = {
            "model": target.name,
            "method": method or name_of(decoder),
            "key": key,
            "seed": seed,
            "repeat": repeat,
            "note": note,
        }
        return discrete.joint_rows("exact", counts, law, target.vocab, target.length, rng=rng, draws=draws, **place)

    found = [r for target in chosen for r in run(target, seeds[0], 0)]
    for test in (*discrete.TESTS, "all four", "e-value"):
        R.family(r for r in found if r["test"] == test)
    failed = {r["model"] for r in found if r["test"] == "all four" and r["verdict"] == "rejected"}
    again = [r for seed in seeds[1:2] for target in chosen if target.name in failed for r in run(target, seed, 1)]
    for test in (*discrete.TESTS, "all four", "e-value"):
        R.family(r for r in again if r["test"] == test)
    return found + again
