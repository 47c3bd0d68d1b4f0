"""Rules that every discrete decoder keeps, whatever its options; a toy decoder breaks each rule once."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from parity_decoders.distribution import TokenSampling
from parity_decoders.noise import Noise, counted_noise
from parity_decoders.steps import Step
from parity_decoders.verification import sample_token

from parity.base.errors import ParityError
from parity.decode.discrete import record
from parity.equality.targets import Decoder
from parity.experiment import options
from parity.models.discrete.tabular import TabularModel
from tests.tables import (
    Variant,
    check_rule,
    decode_table,
    generate_variants,
    get_smallest_options,
    import_decoder,
    make_table,
    parametrize_rules,
)

FORCED = torch.tensor([1, -1, 2, 0, -1, -1, 3])  # -1 where free; the first, the last and two together are forced


@torch.inference_mode()
def decode_plainly(model: Any, start: torch.Tensor, *, noise: Noise, fault: str = "none") -> Iterator[Step]:
    """Decode plainly, a token a pass, or with a fault that the rules must notice: an early stop, a hole, another row's
    noise, other numbers, or distributions that are not read."""
    token = start
    one = torch.ones_like(start)
    keys = noise.keys + (noise.keys.sum() if fault == "reads its neighbours" else 0)
    for n in range(model.length - (fault == "stops early")):
        position = n - n % 2 if fault == "leaves a hole" else n
        p = model.logits(token[:, None], (position - 1) * one[:, None])[:, 0].softmax(-1)
        p = torch.ones_like(p) if fault == "verifies nothing" else p
        index = n + (7 if fault == "draws other numbers" else 0)
        token = sample_token(p, Noise(keys, noise.dtype).exponential("sample", index * one, model.vocab))
        yield Step(token[:, None], one, n * one)


def check_rows_do_not_depend_on_their_batch(method: Decoder, variant: Variant):
    """Assert that rows decoded alone have the tokens and counts that they have in a batch of 24."""
    logits = make_table(4, 6)
    batch = decode_table(method, logits, 6, 24, **variant.options)
    for b in (0, 7, 23):
        single = decode_table(method, logits, 6, 1, noise=counted_noise(1, range(b, b + 1)), **variant.options)
        for column in ("tokens", "step", "nfe", "nodes"):
            assert torch.equal(getattr(single, column)[0], getattr(batch, column)[b]), column


def check_rows_are_whole_and_counts_add_up(method: Decoder, variant: Variant):
    """Assert that every position is decoded once and that kept tokens, passes and nodes agree with each other."""
    L = 7
    # At this width the image's last row is short.
    decoded = decode_table(method, make_table(3, L), L, 40, width=3, **variant.options)
    assert (decoded.step > 0).all()
    assert (decoded.kept.sum(1) == L).all()
    assert torch.equal((decoded.kept > 0).sum(1), decoded.nfe)
    assert (decoded.nodes >= decoded.nfe).all()
    assert decoded.passes == decoded.nfe.max() == decoded.step.max()


def check_forced_tokens_are_kept(method: Decoder, variant: Variant):
    """Assert that all tokens of FORCED are where they must be, under guidance and top-k."""
    settings = {"width": 3, "forced": FORCED, "sampling": TokenSampling(2.0, 0.9, 3)}
    decoded = decode_table(method, make_table(4, 7, pair=True), 7, 40, **settings, **variant.options)
    assert (decoded.tokens[:, FORCED >= 0] == FORCED[FORCED >= 0]).all()
    assert (decoded.kept.sum(1) <= 7).all()


def check_no_hole_is_read(method: Decoder, variant: Variant):
    """Assert that the tokens do not depend on what a model remembers in empty cache slots, so that none is read."""
    drawn = []
    for seed in (0, 1):
        model = TabularModel(make_table(4, 6), 6, 40, width=2)
        for network in (model, model.draft):
            network.memory[:] = torch.randint(4, network.memory.shape, generator=torch.Generator().manual_seed(seed))
        start = torch.zeros(40, dtype=torch.int64)
        steps = method(model, start, noise=counted_noise(1, range(40)), **variant.options)
        drawn.append(record(model, start, steps).tokens)
    assert torch.equal(*drawn)


def check_coupled_tokens_are_plain_decodings(method: Decoder, variant: Variant):
    """Assert that a coupled method draws the tokens of plain decoding under the same noise."""
    plain = import_decoder("discrete", options.find_plain_method("discrete"))
    for logits, length, width in ((make_table(4, 6), 6, 2), (make_table(3, 7, seed=1), 7, 3)):
        coupled = decode_table(method, logits, length, 200, width=width, **variant.options)
        assert torch.equal(coupled.tokens, decode_table(plain, logits, length, 200, width=width).tokens)


VARIANTS = list(generate_variants("discrete"))
LOSSLESS = [v for v in VARIANTS if options.claim("discrete", v.method, v.options) == "lossless"]
COUPLED = [v for v in VARIANTS if options.is_coupled("discrete", v.method, v.options)]
RULES = {
    check_rows_do_not_depend_on_their_batch: ("reads its neighbours", VARIANTS),
    check_rows_are_whole_and_counts_add_up: ("stops early", VARIANTS),
    check_forced_tokens_are_kept: ("verifies nothing", LOSSLESS),
    check_no_hole_is_read: ("leaves a hole", LOSSLESS),
    check_coupled_tokens_are_plain_decodings: ("draws other numbers", COUPLED),
}


@parametrize_rules(RULES)
def test_every_decoder(rule, variants):
    check_rule("discrete", rule, variants)


@pytest.mark.parametrize(("rule", "fault"), [(rule, fault) for rule, (fault, _) in RULES.items()])
def test_a_toy_that_breaks_the_rule_is_noticed(rule, fault):
    rule(decode_plainly, Variant("", {}))
    with pytest.raises((AssertionError, ParityError, pytest.fail.Exception)):
        rule(partial(decode_plainly, fault=fault), Variant("", {}))


@pytest.mark.parametrize("method", options.methods("discrete"))
def test_one_token_is_one_pass(method):
    """Also of a window, a draft, a tree of one."""
    decoder, smallest = import_decoder("discrete", method), get_smallest_options("discrete", method)
    for length, settings in ((1, {}), (1, smallest), (5, smallest)):
        decoded = decode_table(decoder, make_table(4, length), length, 30, width=1, **settings)
        assert (decoded.step > 0).all()
        assert length > 1 or (decoded.nfe == 1).all()
