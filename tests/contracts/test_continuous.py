"""What every decoder of continuous tokens keeps to, whatever its options; a toy decoder breaks each rule once."""

from collections.abc import Iterator
from functools import partial

import pytest
import torch
from parity_decoders.noise import Noise, counted_noise
from parity_decoders.protocols.continuous import Pair, Start, draw_order, make_path_noise
from parity_decoders.steps import Draw

from parity.base.errors import ParityError
from parity.decode.continuous import record
from parity.experiment import options
from parity.models.continuous.tabular import TabularMixture
from tests.tables import (
    Variant,
    generate_variants,
    get_smallest_options,
    import_decoder,
    make_mixtures,
    parametrize_rules,
)


@torch.inference_mode()
def toy(models: Pair, start: Start, *, noise: Noise, fault: str = "none") -> Iterator[Draw]:
    """The target alone, a token a step; or with a fault."""
    order, (B, L) = start.order, start.order.shape
    keys = noise.keys + (noise.keys.sum() if fault == "reads its neighbours" else 0)
    tokens, ones = torch.zeros(B, L, models.target.dim, dtype=noise.dtype), torch.ones(B, dtype=torch.int64)
    if fault == "knows raster order alone":
        order = torch.arange(L).expand(B, -1)
    for place in range(L):
        at = torch.full((B, 1), place)
        path = make_path_noise(Noise(keys, noise.dtype), "sample", at, models.target.steps, models.target.dim)
        new = models.target.law(models.target.conditions(tokens, order, at, at), path).sample(path)
        tokens = tokens.scatter(1, order[:, place, None, None].expand(-1, 1, new.shape[1]), new[:, None])
        yield Draw(new[:, None], ones)
    if fault == "goes on":
        yield Draw(new[:, None], 0 * ones)


def started(rows: range, length: int = 5):
    noise = counted_noise(3, rows)
    return noise, Start(draw_order(noise, len(rows), length, False))


def drawn(method, given, rows: range, length: int = 5):
    noise, start = started(rows, length)
    models = make_mixtures(len(rows), length)
    return record(models, start, method(models, start, noise=noise, **given))


def a_row_alone_is_the_row_in_a_batch(method, variant):
    together = drawn(method, variant.options, range(24))
    for b in (0, 7, 23):
        alone = drawn(method, variant.options, range(b, b + 1))
        assert (alone.tokens[0] - together.tokens[b]).abs().max() < 1e-9  # a sum may be taken in another order
        for column in ("step", "accepted", "steps", "tries", "gave_up"):
            assert torch.equal(getattr(alone, column)[0], getattr(together, column)[b])


def a_token_stands_where_the_order_has_it(method, variant):
    """Of models whose positions lie far apart: every token is one of its own position's, whatever the order."""
    noise, start = started(range(40))
    apart = 100.0 * torch.arange(5)[:, None].numpy()
    models = Pair(*(TabularMixture(m.mixture._replace(means=m.mixture.means + apart), 40) for m in make_mixtures(40)))
    done = record(models, start, method(models, start, noise=noise, **variant.options))
    assert ((done.tokens - 100 * torch.arange(5)[:, None]).abs() < 50).all()
    assert (done.step > 0).all() and (done.step.amax(1) == done.steps).all()


def stopping_early_is_an_error(method, variant):
    noise, start = started(range(12))
    models = make_mixtures(12)
    steps = list(method(models, start, noise=noise, **variant.options))
    record(models, start, iter(steps))
    with pytest.raises(ParityError, match=r"row \d+, position \d+: the decoder stopped"):
        record(models, start, iter(steps[:-1]))


VARIANTS = list(generate_variants("continuous"))
RULES = {
    a_row_alone_is_the_row_in_a_batch: ("reads its neighbours", VARIANTS),
    a_token_stands_where_the_order_has_it: ("knows raster order alone", VARIANTS),
    stopping_early_is_an_error: ("goes on", VARIANTS),
}


@parametrize_rules("continuous", RULES)
def test_every_decoder(rule, method, variant):
    rule(method, variant)


@pytest.mark.parametrize(("rule", "fault"), [(rule, fault) for rule, (fault, _) in RULES.items()])
def test_a_toy_that_breaks_the_rule_is_noticed(rule, fault):
    rule(toy, Variant("", {}))
    with pytest.raises((AssertionError, ParityError, pytest.fail.Exception)):
        rule(partial(toy, fault=fault), Variant("", {}))


@pytest.mark.parametrize("method", options.methods("continuous"))
def test_one_token_is_one_step(method):
    done = drawn(import_decoder("continuous", method), get_smallest_options("continuous", method), range(30), length=1)
    assert (done.steps == 1).all() and (done.step == 1).all()
