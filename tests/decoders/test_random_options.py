"""Decoders of images at random options, batches and refills, on a random network: each row has the tokens and passes
that it has alone, and where it shares plain decoding's noise, plain decoding's tokens."""

import copy
import inspect
import random
from functools import cache, partial
from typing import Annotated, Literal, get_args, get_origin, get_type_hints

import pytest
import torch
from parity_decoders.distribution import TokenSampling
from parity_decoders.engine import Sampled
from parity_decoders.noise import Noise, counted_noise
from parity_decoders.speculators import EagleDrafter, FeatureHeads

from parity.base.errors import ConfigError
from parity.decode.discrete import record
from parity.decode.loop import Queue
from parity.experiment.options import declaration, is_coupled, methods, needs, options
from parity.models.discrete.llamagen import LlamaGen, LlamaGenConfig, Transformer, make_speculator
from tests.tables import import_decoder

SIZES = LlamaGenConfig(vocab=64, dim=32, layers=2, heads=2, grid=5, prefix=6, caption_dim=16, multiple_of=16)
CAPTIONS = torch.randn(6, 6, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
VALID = torch.arange(6) >= torch.tensor([[0], [3], [1], [5], [0], [2]])  # captions are padded on the left
LARGEST = 40  # of an option that is a whole number


@cache
def make_networks():
    """Make a network, a draft model that is the same except for some noise, heads and a drafter."""
    torch.manual_seed(0)
    nets = {"net": Transformer(SIZES), **{name: make_speculator(name, SIZES) for name in ("heads", "drafter")}}
    for net in nets.values():
        net.double().eval().requires_grad_(False)
        for weight in net.parameters():
            if weight.ndim > 1:
                torch.nn.init.normal_(weight, std=0.3)
    nets["draft"] = copy.deepcopy(nets["net"])
    for weight in nets["draft"].parameters():
        weight += 0.02 * torch.randn_like(weight)
    return nets


def make_model(rows, need, sampling, static, queue=None):
    """Make the model of some captions with the speculator `need`. static: with shapes fixed as on a GPU; queue: rows
    that wait for a place."""
    nets = make_networks()
    batch = CAPTIONS[rows], VALID[rows], sampling.guidance != 1
    model = LlamaGen(nets["net"], *batch)
    model.cache.static = static
    speculators = {}
    if need == "draft":
        speculators["draft"] = LlamaGen(nets["draft"], *batch)
        speculators["draft"].cache.static = static
    if need == "heads":
        speculators["heads"] = FeatureHeads(nets["heads"], model)
    if need == "drafter":
        speculators["drafter"] = EagleDrafter(nets["drafter"], model)
    return Sampled(model, sampling, speculators, queue)


def draw_option(rng, hint, default):
    """Draw a value of an option from its annotation: often its default or its least, else any within bounds."""
    hint, *notes = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    if get_origin(hint) is Literal:
        return rng.choice(get_args(hint))
    if hint is bool:
        return rng.random() < 0.5
    bounds = {key: getattr(note, key, None) for note in notes for key in ("ge", "gt", "le", "lt")}
    least = next((bounds[key] for key in ("ge", "gt") if bounds.get(key) is not None), 0)
    upper = next((bounds[key] for key in ("le", "lt") if bounds.get(key) is not None), LARGEST)
    if hint is int:
        return rng.choice([default, least, least + 1, rng.randint(least, max(least, min(upper, LARGEST)))])
    return rng.choice([default, least if bounds.get("gt") is None else least + 1e-3, rng.uniform(least, min(upper, 2))])


def draw_options(rng, method):
    """Draw options of a method that its schema takes, some of them at their defaults."""
    function = import_decoder("discrete", method)
    hints = get_type_hints(function, include_extras=True)
    keywords = [
        p for p in inspect.signature(function).parameters.values() if p.name in hints and p.kind is p.KEYWORD_ONLY
    ]
    while True:
        drawn = {p.name: draw_option(rng, hints[p.name], p.default) for p in keywords if p.name != "noise"}
        try:
            return options("discrete", method, {name: value for name, value in drawn.items() if rng.random() < 0.7})
        except ConfigError:
            continue


def decode(method, chosen, rows, at_once, sampling, static=False):
    """Decode captions, `at_once` of them in a batch that is refilled."""
    keys = counted_noise(5, range(6), torch.float64).keys[rows]
    noise = Noise(keys[:at_once].clone(), torch.float64)
    make = partial(make_model, need=needs("discrete", method), sampling=sampling, static=static)
    queue = Queue(noise, keys, lambda places: make(rows[places])) if at_once < len(rows) else None
    model, start = make(rows[:at_once], queue=queue), torch.zeros(at_once, dtype=torch.int64)
    return record(model, start, import_decoder("discrete", method)(model, start, noise=noise, **chosen))


# with the last two, tokens of a row that skips no verification were once another row's
CASES = [pytest.param(m, 0, marks=pytest.mark.long) for m in methods("discrete")] + [("vvs", 27), ("vvs", 37)]


@pytest.mark.parametrize(("method", "seed"), CASES)
def test_a_row_has_its_tokens_in_any_batch(method, seed):
    rng = random.Random(f"{method} {seed}")
    chosen = draw_options(rng, method)
    sampling = TokenSampling(
        guidance=rng.choice([1.0, 2.0]),
        temperature=rng.choice([0.5, 1.0]),
        top_k=rng.choice([0, 4]),
        top_p=rng.choice([1.0, 0.9]),
    )
    rows = rng.sample(range(6), 4)
    at_once = rng.randint(1, 4) if declaration("discrete", method).REFILLS else 4
    together = decode(method, chosen, rows, at_once, sampling, static=rng.random() < 0.4)
    for place, row in enumerate(rows):
        alone = decode(method, chosen, [row], 1, sampling)
        assert torch.equal(together.tokens[place], alone.tokens[0]), chosen
        assert together.nfe[place] == alone.nfe[0], chosen
    if is_coupled("discrete", method, chosen):
        assert torch.equal(together.tokens, decode("ar", {}, rows, 4, sampling).tokens), chosen
