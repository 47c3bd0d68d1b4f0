"""Rules that every decoder of continuous tokens keeps, whatever its options; a toy decoder breaks each rule once."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from parity_decoders.noise import Noise, counted_noise
from parity_decoders.protocols.continuous import Pair, Start, draw_order, make_path_noise
from parity_decoders.steps import Draw

from parity.base.errors import ParityError
from parity.decode.continuous import record
from parity.equality.targets import Decoder
from parity.experiment import options
from parity.models.continuous.tabular import TabularMixture
from tests.tables import (
    Variant,
    check_rule,
    generate_variants,
    get_smallest_options,
    import_decoder,
    make_mixtures,
    parametrize_rules,
)


@torch.inference_mode()
def decode_plainly(models: Pair, start: Start, *, noise: Noise, fault: str = "none") -> Iterator[Draw]:
    """Decode by the target alone, a token a step, or with a fault that the rules must notice: raster order in place of
    the given one, or another row's noise."""
    B, L = start.order.shape
    order = torch.arange(L).expand(B, -1) if fault == "knows raster order alone" else start.order
    keys = noise.keys + (noise.keys.sum() if fault == "reads its neighbours" else 0)
    tokens = torch.zeros(B, L, models.target.dim, dtype=noise.dtype)
    one = torch.ones(B, dtype=torch.int64)
    for i in range(L):
        rank = torch.full((B, 1), i)
        path = make_path_noise(Noise(keys, noise.dtype), "sample", rank, models.target.steps, models.target.dim)
        new = models.target.distribution(models.target.conditions(tokens, order, rank, rank), path).sample(path)
        tokens = tokens.scatter(1, order[:, i, None, None].expand(-1, 1, new.shape[1]), new[:, None])
        yield Draw(new[:, None], one)


def make_start(rows: range, length: int = 5):
    """Make the noise of the rows with these numbers, and the random orders in which they are decoded."""
    noise = counted_noise(3, rows)
    return noise, Start(draw_order(noise, len(rows), length, False))


def draw(method: Decoder, settings: dict[str, Any], rows: range, length: int = 5):
    """Decode the rows with these numbers on small mixtures by a method with options `settings`."""
    noise, start = make_start(rows, length)
    models = make_mixtures(len(rows), length)
    return record(models, start, method(models, start, noise=noise, **settings))


def check_rows_do_not_depend_on_their_batch(method: Decoder, variant: Variant):
    """Assert that rows decoded alone have the tokens, to rounding, and the counts that they have in a batch of 24."""
    batch = draw(method, variant.options, range(24))
    for b in (0, 7, 23):
        single = draw(method, variant.options, range(b, b + 1))
        # Tokens agree to rounding, since a sum may be taken in another order.
        assert (single.tokens[0] - batch.tokens[b]).abs().max() < 1e-9
        for column in ("step", "accepted", "steps", "tries", "gave_up"):
            assert torch.equal(getattr(single, column)[0], getattr(batch, column)[b]), column


def check_tokens_are_of_their_positions(method: Decoder, variant: Variant):
    """Assert that each token is drawn by the distribution of its position, in random orders, on models under which
    tokens of different positions are far apart; and that all are drawn."""
    noise, start = make_start(range(40))
    centre = 100 * torch.arange(5)[:, None]
    models = Pair(
        *(TabularMixture(m.mixture._replace(means=m.mixture.means + centre.numpy()), 40) for m in make_mixtures(40))
    )
    drawn = record(models, start, method(models, start, noise=noise, **variant.options))
    assert ((drawn.tokens - centre).abs() < 50).all()
    assert (drawn.step > 0).all()
    assert (drawn.step.amax(1) == drawn.steps).all()


VARIANTS = list(generate_variants("continuous"))
RULES = {
    check_rows_do_not_depend_on_their_batch: ("reads its neighbours", VARIANTS),
    check_tokens_are_of_their_positions: ("knows raster order alone", VARIANTS),
}


@parametrize_rules(RULES)
def test_every_decoder(rule, variants):
    check_rule("continuous", rule, variants)


@pytest.mark.parametrize(("rule", "fault"), [(rule, fault) for rule, (fault, _) in RULES.items()])
def test_a_toy_that_breaks_the_rule_is_noticed(rule, fault):
    rule(decode_plainly, Variant("", {}))
    with pytest.raises((AssertionError, ParityError, pytest.fail.Exception)):
        rule(partial(decode_plainly, fault=fault), Variant("", {}))


@pytest.mark.parametrize("method", options.methods("continuous"))
def test_one_token_is_one_step(method):
    drawn = draw(import_decoder("continuous", method), get_smallest_options("continuous", method), range(30), length=1)
    assert (drawn.steps == 1).all()
    assert (drawn.step == 1).all()
