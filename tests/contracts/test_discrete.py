"""What every discrete decoder keeps to, whatever its options; a toy decoder breaks each rule once."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from parity_decoders.noise import Noise, counted_noise
from parity_decoders.sampling import TokenSampling
from parity_decoders.steps import Step
from parity_decoders.verification import race

from parity.base.errors import ParityError
from parity.decode.discrete import record
from parity.experiment import options
from parity.models.discrete.tabular import TabularModel
from tests.tables import (
    Variant,
    decode_table,
    generate_variants,
    get_smallest_options,
    import_decoder,
    make_table,
    parametrize_rules,
)

FORCED = torch.tensor([1, -1, 2, 0, -1, -1, 3])  # the first, the last, two together
STARTS = torch.zeros(12, dtype=torch.int64)


@torch.inference_mode()
def toy(model: Any, start: torch.Tensor, *, noise: Noise, fault: str = "none") -> Iterator[Step]:
    """Plain decoding, a token a pass; or with a fault."""
    last, ones = start, torch.ones_like(start)
    keys = noise.keys + (noise.keys.sum() if fault == "reads its neighbours" else 0)
    for n in range(model.length - (fault == "stops early")):
        shown = n - n % 2 if fault == "leaves a hole" else n
        p = model.logits(last[:, None], (shown - 1) * ones[:, None])[:, 0].softmax(-1)
        p = torch.ones_like(p) if fault == "verifies nothing" else p
        number = n + (7 if fault == "draws other numbers" else 0)
        last = race(p, Noise(keys, noise.dtype).exponential("sample", number * ones, model.vocab))
        yield Step(last[:, None], ones, n * ones)
    if fault == "goes on":
        yield Step(last[:, None], 0 * ones, n * ones)


def a_row_alone_is_the_row_in_a_batch(method, variant):
    logits = make_table(4, 6)
    together = decode_table(method, logits, 6, 24, **variant.options)
    for b in (0, 7, 23):
        alone = decode_table(method, logits, 6, 1, noise=counted_noise(1, range(b, b + 1)), **variant.options)
        assert torch.equal(alone.tokens[0], together.tokens[b]) and torch.equal(alone.step[0], together.step[b])
        assert alone.nfe[0] == together.nfe[b] and alone.nodes[0] == together.nodes[b]


def ragged_rows_are_whole_and_their_counts_add_up(method, variant):
    L = 7
    done = decode_table(method, make_table(3, L), L, 40, width=3, **variant.options)  # the picture's last row is short
    assert (done.step > 0).all() and (done.kept.sum(1) == L).all()
    assert torch.equal((done.kept > 0).sum(1), done.nfe) and (done.nodes >= done.nfe).all()
    assert done.passes == done.nfe.max() == done.step.max()


def stopping_early_is_an_error(method, variant):
    model = TabularModel(make_table(4, 6), 6, 12, width=2)
    steps = list(method(model, STARTS, noise=counted_noise(1, range(12)), **variant.options))
    record(model, STARTS, iter(steps))
    with pytest.raises(ParityError, match=r"row \d+, position \d+: the decoder stopped"):
        record(model, STARTS, iter(steps[:-1]))


def forced_tokens_stand(method, variant):
    done = decode_table(
        method,
        make_table(4, 7, pair=True),
        7,
        40,
        width=3,
        forced=FORCED,
        sampling=TokenSampling(2.0, 0.9, 3),
        **variant.options,
    )
    assert (done.tokens[:, FORCED >= 0] == FORCED[FORCED >= 0]).all() and (done.kept.sum(1) <= 7).all()


def no_hole_is_left(method, variant):
    """The model remembers something else there. A method may leave holes, or what is forced unverified, if it claims no
    more than to be lossy."""
    drawn = []
    for seed in (0, 1):
        model = TabularModel(make_table(4, 6), 6, 40, width=2)
        for part in (model, model.draft):
            part.memory[:] = torch.randint(4, part.memory.shape, generator=torch.Generator().manual_seed(seed))
        start = torch.zeros(40, dtype=torch.int64)
        drawn.append(
            record(model, start, method(model, start, noise=counted_noise(1, range(40)), **variant.options)).tokens
        )
    assert torch.equal(*drawn)


def coupled_tokens_are_plain_decodings(method, variant):
    plain = import_decoder("discrete", options.find_plain_method("discrete"))
    for logits, length, width in ((make_table(4, 6), 6, 2), (make_table(3, 7, seed=1), 7, 3)):
        own, theirs = (
            decode_table(d, logits, length, 200, width=width, **o) for d, o in ((method, variant.options), (plain, {}))
        )
        assert torch.equal(own.tokens, theirs.tokens)


VARIANTS = list(generate_variants("discrete"))
LOSSLESS = [v for v in VARIANTS if options.claim("discrete", v.method, v.options) == "lossless"]
COUPLED = [v for v in VARIANTS if options.is_coupled("discrete", v.method, v.options)]
RULES = {
    a_row_alone_is_the_row_in_a_batch: ("reads its neighbours", VARIANTS),
    ragged_rows_are_whole_and_their_counts_add_up: ("stops early", VARIANTS),
    stopping_early_is_an_error: ("goes on", VARIANTS),
    forced_tokens_stand: ("verifies nothing", LOSSLESS),
    no_hole_is_left: ("leaves a hole", LOSSLESS),
    coupled_tokens_are_plain_decodings: ("draws other numbers", COUPLED),
}


@parametrize_rules("discrete", RULES)
def test_every_decoder(rule, method, variant):
    rule(method, variant)


@pytest.mark.parametrize(("rule", "fault"), [(rule, fault) for rule, (fault, _) in RULES.items()])
def test_a_toy_that_breaks_the_rule_is_noticed(rule, fault):
    rule(toy, Variant("", {}))
    with pytest.raises((AssertionError, ParityError, pytest.fail.Exception)):
        rule(partial(toy, fault=fault), Variant("", {}))


@pytest.mark.parametrize("method", options.methods("discrete"))
def test_one_token_is_one_pass(method):
    """Also of a window, a draft, a tree of one."""
    smallest = get_smallest_options("discrete", method)
    for length, least in ((1, {}), (1, smallest), (5, smallest)):
        done = decode_table(import_decoder("discrete", method), make_table(4, length), length, 30, width=1, **least)
        assert (done.step > 0).all() and (length > 1 or (done.nfe == 1).all())
