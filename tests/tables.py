"""Enumerable models of every kind for the tests, and the variants of every decoder."""

import importlib
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple, get_args, get_origin

import numpy as np
import pytest
import torch
from annotated_types import Interval
from parity_decoders.noise import Noise, counted_noise
from parity_decoders.protocols.anysubset import Infilling, make_infilling
from parity_decoders.protocols.continuous import Pair
from parity_decoders.sampling import Sampled, TokenSampling
from pydantic.fields import FieldInfo
from scipy import stats

from parity.decode.discrete import Decoded, record
from parity.experiment import options
from parity.models.anysubset.tabular import TabularAnySubset
from parity.models.anysubset.tabular import random_table as random_texts
from parity.models.continuous.tabular import TabularMixture, random_mixture
from parity.models.discrete.tabular import TabularModel, compute_joint, random_table

# --- variants


def decoder(kind: str, method: str) -> Callable[..., Iterator[Any]]:
    return getattr(importlib.import_module(f"parity_decoders.{kind}.{method}"), method)


def lowest(field: FieldInfo) -> list[Any]:
    """The least value an option may take, if its bounds say so."""
    return [field.annotation(m.ge) for m in field.metadata if isinstance(m, Interval) and m.ge is not None]


def others(field: FieldInfo) -> list[Any]:
    """Values of an option: all there are, where they can be listed, else the least."""
    if get_origin(field.annotation) is Literal:
        return list(get_args(field.annotation))
    return [False, True] if field.annotation is bool else lowest(field)


class Variant(NamedTuple):
    method: str
    given: dict[str, Any]  # its options, complete, for a few positions
    name: str = ""


def variants(kind: str) -> Iterator[Variant]:
    """Every decoder of a kind, by listing: with its defaults, then with each option in turn at its other values."""
    for method in options.methods(kind):
        base = options.cap_small(kind, method, options.options(kind, method, {}))
        yield Variant(method, base, method)
        for name, field in options.make_option_schema(kind, method).model_fields.items():
            for value in (v for v in others(field) if v != base[name]):
                yield Variant(method, base | {name: value}, f"{method} {name}={value}")


def keeps_to(kind: str, rules: dict[Any, tuple[str, list[Variant]]]) -> Any:
    """Parameters of a test of every rule on every variant it is a rule for."""
    cases = [(rule, v) for rule, (_, of) in rules.items() for v in of]
    each = [pytest.param(rule, decoder(kind, v.method), v, id=f"{rule.__name__}: {v.name}") for rule, v in cases]
    return pytest.mark.parametrize(("rule", "method", "variant"), each)


def shortest(kind: str, method: str) -> dict[str, Any]:
    """Options that count at their least: windows of one, a draft, an order, a step."""
    fields = options.make_option_schema(kind, method).model_fields
    least = {name: value for name, field in fields.items() for value in lowest(field)}
    return options.options(kind, method, least)


# --- discrete


def table(vocab: int, length: int, seed: int = 0, pair: bool = False, scale: float = 1.5) -> torch.Tensor:
    return random_table(vocab, length, torch.Generator().manual_seed(seed), scale, pair)


def run(
    method,
    logits,
    length,
    rows,
    *,
    width=2,
    noise: Noise | None = None,
    seed=1,
    forced=None,
    sampling=None,
    drafts=None,
    **given,
) -> Decoded:
    """Decode `rows` sequences of a tabular model, row b with the noise of number b."""
    model: Any = TabularModel(logits, length, rows, width=width, forced=forced, drafts=drafts)
    if sampling is not None or forced is not None:
        model = Sampled(model, sampling or TokenSampling())
    noise, start = noise or counted_noise(seed, range(rows)), torch.zeros(rows, dtype=torch.int64)
    return record(model, start, method(model, start, noise=noise, **given))


def law(logits: torch.Tensor, vocab: int, length: int) -> torch.Tensor:
    """Of the sequences of a tabular model, first token most significant."""
    return compute_joint(TabularModel(logits, length, vocab**length), vocab, length)


def counts(tokens: torch.Tensor, vocab: int) -> torch.Tensor:
    """Histogram over the sequences, first token most significant."""
    length = tokens.shape[1]
    code = (tokens * vocab ** torch.arange(length - 1, -1, -1)).sum(1)
    return torch.bincount(code, minlength=vocab**length).double()


def p_value(observed: torch.Tensor, law: torch.Tensor) -> float:
    """Chi-square of counts against the exact law; cells expected fewer than ten times are pooled, an impossible one
    that was seen is 0."""
    o, e = observed.numpy(), law.numpy() * float(observed.sum())
    if o[e == 0].any():
        return 0.0
    big = e >= 10
    o, e = np.append(o[big], o[~big].sum()), np.append(e[big], e[~big].sum())
    if e[-1] < 1:
        o, e = o[:-1], e[:-1] * o[:-1].sum() / e[:-1].sum()
    return float(stats.chisquare(o, e).pvalue)


# --- any-subset


def texts(vocab: int, length: int, seed: int = 0, scale: float = 1.5) -> TabularAnySubset:
    return TabularAnySubset(random_texts(vocab, length, torch.Generator().manual_seed(seed), scale))


def prompts(model: TabularAnySubset, rows: int, seed: int = 0, method: str = "") -> Infilling:
    """Rows of unequal length, some of their tokens known, one at least and not all: anywhere, or as the prompts of a
    `method` must be."""
    rng = np.random.default_rng(seed)
    end = torch.from_numpy(rng.integers(2, model.length + 1, rows))
    place = torch.arange(model.length)
    keys = torch.from_numpy(rng.random((rows, model.length))).masked_fill(place >= end[:, None], 2)
    count = torch.from_numpy(1 + (rng.random(rows) * (end.numpy() - 1)).astype(np.int64))
    known = torch.zeros(rows, model.length, dtype=torch.bool).scatter_(1, keys.argsort(1), place < count[:, None])
    if method and options.declaration("anysubset", method).PROMPT == "prefix":
        known = place < count[:, None]
    tokens = torch.from_numpy(rng.integers(0, model.words, (rows, model.length)))
    return make_infilling(tokens, known, model.mask, model.vocab, end)


def row(start: Any, b: int) -> Any:
    """One row of a batch's start."""
    return type(start)(*(x[b : b + 1] for x in start))


# --- continuous


def mixtures(rows: int, length: int = 5, dim: int = 2) -> Pair:
    """A target and a draft model of which the drafts are often wrong."""
    laws = (random_mixture(np.random.default_rng(seed), 3, length, dim) for seed in (0, 1))
    return Pair(*(TabularMixture(m, rows, raster=False) for m in laws))
