"""What every any-subset decoder keeps to, whatever its options; a toy decoder breaks each rule once."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from parity_decoders.noise import Noise, counted_noise
from parity_decoders.protocols.anysubset import Infilling, next_ranks, write
from parity_decoders.steps import Fill
from parity_decoders.verification import race

from parity.base.errors import ParityError
from parity.decode.anysubset import record
from parity.experiment import options
from tests.tables import (
    Variant,
    draw_prompts,
    generate_variants,
    get_smallest_options,
    import_decoder,
    make_text_model,
    parametrize_rules,
    select_row,
)


@torch.inference_mode()
def toy(model: Any, start: Infilling, *, noise: Noise, fault: str = "none") -> Iterator[Fill]:
    """Plain decoding, a token a loop; or with a fault."""
    tokens, N = start.tokens, start.tokens.shape[1]
    keys = noise.keys + (noise.keys.sum() if fault == "reads its neighbours" else 0)
    n = start.begin - int(fault == "writes over its prompt")
    while bool((n < start.end).any()):
        here = next_ranks(start, n, 1)
        for _ in range(2 if fault == "asks twice" else 1):
            law = model.laws(tokens, start.order, start.begin, here.asked, here.rank)
        token = race(law, Noise(keys, noise.dtype).exponential("sample", here.rank * N, model.vocab))
        yield Fill(here.position, token, here.open, here.open[:, 0].long())
        tokens, n = write(tokens, here.position, token, here.open), n + here.open[:, 0]
    if fault == "goes on":
        yield Fill(here.position, token, here.open & False, 0 * n)


class Counted:
    """A model that counts the rows it is asked for."""

    def __init__(self, model: Any):
        self.model, self.vocab, self.mask, self.rows = model, model.vocab, model.mask, 0

    def laws(self, tokens, *rest):
        self.rows += len(tokens)
        return self.model.laws(tokens, *rest)


def filled(method, given, start, model, first=0):
    rows = range(first, first + len(start.tokens))
    return record(model, start, method(model, start, noise=counted_noise(9, rows), **given))


def a_row_alone_is_the_row_in_a_batch(method, variant):
    model = make_text_model(3, 6, 3)
    start = draw_prompts(model, 30, 5, variant.method)
    together = filled(method, variant.options, start, model)
    for b in (0, 7, 23):
        alone = filled(method, variant.options, select_row(start, b), model, first=b)
        assert torch.equal(alone.tokens[0], together.tokens[b]) and torch.equal(alone.step[0], together.step[b])
        assert alone.nfe[0] == together.nfe[b] and alone.aux[0] == together.aux[b]


def prompts_stand_and_all_else_is_filled(method, variant):
    """Known tokens anywhere, rows of several lengths; what lies behind a row's end stays as it was."""
    model = make_text_model(3, 6, 4)
    start = draw_prompts(model, 200, 6, variant.method)
    done = filled(method, variant.options, start, model)
    inside, known = torch.arange(6) < start.end[:, None], start.tokens != model.mask
    assert torch.equal(done.tokens[known | ~inside], start.tokens[known | ~inside])
    assert (done.tokens[inside] < model.words).all() and torch.equal(done.step > 0, inside & ~known)


def stopping_early_is_an_error(method, variant):
    model = make_text_model(3, 4)
    start = draw_prompts(model, 12, 0, variant.method)
    steps = list(method(model, start, noise=counted_noise(0, range(12)), **variant.options))
    record(model, start, iter(steps))
    with pytest.raises(ParityError, match=r"row \d+, position \d+: the decoder stopped"):
        record(model, start, iter(steps[:-1]))


def evaluations_are_those_of_the_model(method, variant):
    """Of a row alone: a row laid out in several orders is one for each."""
    for b in range(12):
        model = Counted(make_text_model(3, 6, b % 4))
        done = filled(
            method, variant.options, select_row(draw_prompts(model.model, 12, 7, variant.method), b), model, first=b
        )
        assert int(done.nfe[0]) == done.passes == model.rows


VARIANTS = list(generate_variants("anysubset"))
RULES = {
    a_row_alone_is_the_row_in_a_batch: ("reads its neighbours", VARIANTS),
    prompts_stand_and_all_else_is_filled: ("writes over its prompt", VARIANTS),
    stopping_early_is_an_error: ("goes on", VARIANTS),
    evaluations_are_those_of_the_model: ("asks twice", VARIANTS),
}


@parametrize_rules("anysubset", RULES)
def test_every_decoder(rule, method, variant):
    rule(method, variant)


@pytest.mark.parametrize(("rule", "fault"), [(rule, fault) for rule, (fault, _) in RULES.items()])
def test_a_toy_that_breaks_the_rule_is_noticed(rule, fault):
    rule(toy, Variant("", {}))
    with pytest.raises((AssertionError, ParityError, pytest.fail.Exception)):
        rule(partial(toy, fault=fault), Variant("", {}))


@pytest.mark.parametrize("method", options.methods("anysubset"))
def test_one_missing_token_is_one_loop(method):
    """Whatever a loop may draft, and where it may draft least."""
    model = make_text_model(3, 2)
    start = draw_prompts(model, 30, 0, method)
    for given in ({}, get_smallest_options("anysubset", method)):
        done = filled(import_decoder("anysubset", method), given, start, model)
        assert (start.end - start.begin == 1).all() and (done.step.amax(1) == done.step.sum(1)).all()
