"""Enumerable models of every kind, the variants of every decoder, and the columns of a shard."""

import importlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple, get_args, get_origin

import numpy as np
import torch
from annotated_types import Interval
from parity_decoders.distribution import TokenSampling
from parity_decoders.engine import Sampled
from parity_decoders.noise import Noise, counted_noise
from parity_decoders.protocols.anysubset import Infilling, make_infilling
from parity_decoders.protocols.continuous import Pair
from pydantic.fields import FieldInfo
from scipy import stats

from parity.decode.discrete import Decoded, record
from parity.decode.shard_io import NEEDED
from parity.experiment import options
from parity.models.anysubset.tabular import TabularAnySubset
from parity.models.anysubset.tabular import random_table as random_texts
from parity.models.continuous.tabular import TabularMixture, random_mixture
from parity.models.discrete.tabular import TabularModel, random_table


def make_shard_columns(n: int, length: int) -> dict[str, Any]:
    """Make the columns that a shard of any kind has, of n rows of `length` tokens in one batch: each took a second, and
    drafted nothing."""
    columns = {name: np.ones(n) for name in NEEDED} | {"ids": np.array([str(i) for i in range(n)])}
    columns |= {"tokens": np.zeros((n, length), np.int32), "step": np.tile(np.arange(1, length + 1), (n, 1))}
    columns |= {name: np.zeros(n) for name in ("draft_calls", "draft_tokens")}
    return columns | {"batch": np.full(n, n), "at_once": np.full(n, n), "passes": np.full(n, length)}


# --- variants of decoders


def import_decoder(kind: str, method: str) -> Callable[..., Iterator[Any]]:
    return getattr(importlib.import_module(f"parity_decoders.{kind}.{method}"), method)


def list_minimum(field: FieldInfo) -> list[Any]:
    """List the least value an option may take; an empty list if it has no lower bound."""
    return [field.annotation(m.ge) for m in field.metadata if isinstance(m, Interval) and m.ge is not None]


def list_values(field: FieldInfo) -> list[Any]:
    """List all values of an option where they can be listed, else the least."""
    if get_origin(field.annotation) is Literal:
        return list(get_args(field.annotation))
    return [False, True] if field.annotation is bool else list_minimum(field)


class Variant(NamedTuple):
    """A method with all its options, for models of a few positions."""

    method: str
    options: dict[str, Any]
    name: str = ""


def generate_variants(kind: str) -> Iterator[Variant]:
    """Yield every decoder of a kind with its defaults, then with each option in turn at its other values."""
    for method in options.methods(kind):
        base = options.cap_small(kind, method, options.options(kind, method, {}))
        yield Variant(method, base, method)
        for name, field in options.make_option_schema(kind, method).model_fields.items():
            for value in (v for v in list_values(field) if v != base[name]):
                yield Variant(method, base | {name: value}, f"{method} {name}={value}")


def get_smallest_options(kind: str, method: str) -> dict[str, Any]:
    """Return a method's options with those that count at their least: windows of one, one draft, one step."""
    fields = options.make_option_schema(kind, method).model_fields
    minima = {name: value for name, field in fields.items() for value in list_minimum(field)}
    return options.options(kind, method, minima)


# --- models of image tokens


def make_table(vocab: int, length: int, seed: int = 0, pair: bool = False, scale: float = 1.5) -> torch.Tensor:
    """Make a random table of logits for a tabular model; with `pair` distributions depend on the last two tokens."""
    return random_table(vocab, length, torch.Generator().manual_seed(seed), scale, pair)


def decode_table(
    method, logits, length, rows, *,
    width=2, noise: Noise | None = None, seed=1, forced=None, sampling=None, drafts=None, **method_options,
) -> Decoded:  # fmt: skip
    """Decode `rows` sequences of a tabular model by a method or its name, row b with the noise of number b. `logits` is
    its table, `drafts` that of its draft model, `width` its image's."""
    method = import_decoder("discrete", method) if isinstance(method, str) else method
    model: Any = TabularModel(logits, length, rows, width=width, forced=forced, drafts=drafts)
    if sampling is not None or forced is not None:
        model = Sampled(model, sampling or TokenSampling())
    noise = noise or counted_noise(seed, range(rows))
    start = torch.zeros(rows, dtype=torch.int64)
    return record(model, start, method(model, start, noise=noise, **method_options))


def compute_joint(model: Any, vocab: int, length: int) -> torch.Tensor:
    """Compute the distribution of all sequences, float64 [V^L], first token most significant; `model` must hold V^L
    rows."""
    sequences = torch.tensor(list(itertools.product(range(vocab), repeat=length)))
    inputs = torch.cat([torch.zeros(len(sequences), 1, dtype=torch.int64), sequences[:, :-1]], 1)
    probs = model.logits(inputs, torch.arange(-1, length - 1).expand(len(sequences), -1)).double().softmax(-1)
    return probs.gather(-1, sequences[..., None])[..., 0].prod(1)


def compute_probs(logits: torch.Tensor, vocab: int, length: int) -> torch.Tensor:
    """Compute the distribution of a tabular model's sequences [vocab^length], first token most significant."""
    return compute_joint(TabularModel(logits, length, vocab**length), vocab, length)


def count_sequences(tokens: torch.Tensor, vocab: int) -> torch.Tensor:
    """Count how often each sequence was drawn [vocab^length], first token most significant."""
    length = tokens.shape[1]
    code = (tokens * vocab ** torch.arange(length - 1, -1, -1)).sum(1)
    return torch.bincount(code, minlength=vocab**length).double()


def compute_p_value(observed: torch.Tensor, probs: torch.Tensor) -> float:
    """Test counts against the exact distribution by chi-square, with cells below ten pooled; 0 for an impossible
    sequence."""
    o, e = observed.numpy(), probs.numpy() * float(observed.sum())
    if o[e == 0].any():
        return 0.0
    big = e >= 10
    o, e = np.append(o[big], o[~big].sum()), np.append(e[big], e[~big].sum())
    if e[-1] < 1:
        o, e = o[:-1], e[:-1] * o[:-1].sum() / e[:-1].sum()
    return float(stats.chisquare(o, e).pvalue)


# --- models of texts


def make_text_model(vocab: int, length: int, seed: int = 0, scale: float = 1.5) -> TabularAnySubset:
    return TabularAnySubset(random_texts(vocab, length, torch.Generator().manual_seed(seed), scale))


def draw_prompts(model: TabularAnySubset, rows: int, seed: int = 0, method: str = "") -> Infilling:
    """Draw rows of unequal length with some tokens known and some missing, anywhere or as a `method` requires."""
    rng = np.random.default_rng(seed)
    end = torch.from_numpy(rng.integers(2, model.length + 1, rows))
    position = torch.arange(model.length)
    keys = torch.from_numpy(rng.random((rows, model.length))).masked_fill(position >= end[:, None], 2)
    count = torch.from_numpy(1 + (rng.random(rows) * (end.numpy() - 1)).astype(np.int64))
    known_mask = torch.zeros(keys.shape, dtype=torch.bool).scatter_(1, keys.argsort(1), position < count[:, None])
    if method and options.declaration("anysubset", method).PROMPT == "prefix":
        known_mask = position < count[:, None]
    tokens = torch.from_numpy(rng.integers(0, model.words, (rows, model.length)))
    return make_infilling(tokens, known_mask, model.mask, model.vocab, end)


def select_row(start: Any, b: int) -> Any:
    return type(start)(*(x[b : b + 1] for x in start))


# --- models of vectors


def keep_drafts(models: Pair, start: Any, *, noise: Noise) -> Iterator[Any]:
    """Decode vectors by the draft model alone, without verification: a fault."""
    return import_decoder("continuous", "mar")(Pair(models.draft), start, noise=noise)


def make_mixtures(rows: int, length: int = 5, dim: int = 2) -> Pair:
    """Make a target and a draft model of vectors [length, dim], Gaussian mixtures, whose drafts are often wrong."""
    probs = (random_mixture(np.random.default_rng(seed), 3, length, dim) for seed in (0, 1))
    return Pair(*(TabularMixture(m, rows, raster=False) for m in probs))
