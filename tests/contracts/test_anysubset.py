"""Rules that every any-subset decoder keeps, whatever its options; a toy decoder breaks each rule once."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from parity_decoders.noise import Noise, counted_noise
from parity_decoders.protocols.anysubset import Infilling, next_ranks, write
from parity_decoders.steps import Fill
from parity_decoders.verification import sample_token

from parity.base.errors import ParityError
from parity.decode.anysubset import record
from parity.equality.targets import Decoder
from parity.experiment import options
from tests.tables import (
    Variant,
    check_rule,
    draw_prompts,
    generate_variants,
    get_smallest_options,
    import_decoder,
    make_text_model,
    parametrize_rules,
    select_row,
)


@torch.inference_mode()
def decode_plainly(model: Any, start: Infilling, *, noise: Noise, fault: str = "none") -> Iterator[Fill]:
    """Decode plainly, a token a loop, or with a fault that the rules must notice: another row's noise, a written
    prompt, or a pass asked twice."""
    tokens = start.tokens
    N = tokens.shape[1]
    keys = noise.keys + (noise.keys.sum() if fault == "reads its neighbours" else 0)
    n = start.begin - int(fault == "writes over its prompt")
    while bool((n < start.end).any()):
        ranks = next_ranks(start, n, 1)
        for _ in range(2 if fault == "asks twice" else 1):
            probs = model.probs(tokens, start.order, start.begin, ranks.asked, ranks.rank)
        token = sample_token(probs, Noise(keys, noise.dtype).exponential("sample", ranks.rank * N, model.vocab))
        yield Fill(ranks.position, token, ranks.open, ranks.open[:, 0].long())
        tokens = write(tokens, ranks.position, token, ranks.open)
        n = n + ranks.open[:, 0]


class CountingModel:
    """A model that adds up in `rows` how many rows it is asked for, over all calls."""

    def __init__(self, model: Any):
        self.model, self.vocab, self.mask, self.rows = model, model.vocab, model.mask, 0

    def probs(self, tokens, *rest):
        self.rows += len(tokens)
        return self.model.probs(tokens, *rest)


def fill(method: Decoder, settings: dict[str, Any], start: Infilling, model: Any, first: int = 0) -> Any:
    """Decode rows by a method with options `settings`; row b has the noise of number first + b."""
    rows = range(first, first + len(start.tokens))
    return record(model, start, method(model, start, noise=counted_noise(9, rows), **settings))


def check_rows_do_not_depend_on_their_batch(method: Decoder, variant: Variant):
    """Assert that rows decoded alone have the tokens and counts that they have in a batch of 30."""
    model = make_text_model(3, 6, 3)
    start = draw_prompts(model, 30, 5, variant.method)
    batch = fill(method, variant.options, start, model)
    for b in (0, 7, 23):
        single = fill(method, variant.options, select_row(start, b), model, first=b)
        for column in ("tokens", "step", "nfe", "aux"):
            assert torch.equal(getattr(single, column)[0], getattr(batch, column)[b]), column


def check_only_missing_tokens_are_filled(method: Decoder, variant: Variant):
    """Assert that all missing tokens are filled and nothing else is written: neither known tokens, in rows of several
    lengths, nor what is after a row's end."""
    model = make_text_model(3, 6, 4)
    start = draw_prompts(model, 200, 6, variant.method)
    filled = fill(method, variant.options, start, model)
    in_row = torch.arange(6) < start.end[:, None]
    is_missing = in_row & (start.tokens == model.mask)
    assert torch.equal(filled.tokens[~is_missing], start.tokens[~is_missing])
    assert (filled.tokens[in_row] < model.words).all()
    assert torch.equal(filled.step > 0, is_missing)


def check_evaluations_are_counted(method: Decoder, variant: Variant):
    """Assert that NFE and passes of a row are the rows asked of the model, one for each order it is laid out in."""
    for b in range(12):
        model = CountingModel(make_text_model(3, 6, b % 4))
        start = select_row(draw_prompts(model.model, 12, 7, variant.method), b)
        filled = fill(method, variant.options, start, model, first=b)
        assert int(filled.nfe[0]) == filled.passes == model.rows


VARIANTS = list(generate_variants("anysubset"))
RULES = {
    check_rows_do_not_depend_on_their_batch: ("reads its neighbours", VARIANTS),
    check_only_missing_tokens_are_filled: ("writes over its prompt", VARIANTS),
    check_evaluations_are_counted: ("asks twice", VARIANTS),
}


@parametrize_rules(RULES)
def test_every_decoder(rule, variants):
    check_rule("anysubset", rule, variants)


@pytest.mark.parametrize(("rule", "fault"), [(rule, fault) for rule, (fault, _) in RULES.items()])
def test_a_toy_that_breaks_the_rule_is_noticed(rule, fault):
    rule(decode_plainly, Variant("", {}))
    with pytest.raises((AssertionError, ParityError, pytest.fail.Exception)):
        rule(partial(decode_plainly, fault=fault), Variant("", {}))


@pytest.mark.parametrize("method", options.methods("anysubset"))
def test_one_missing_token_is_one_loop(method):
    """Whatever a loop may draft, and where it may draft least."""
    model = make_text_model(3, 2)
    start = draw_prompts(model, 30, 0, method)
    assert (start.end - start.begin == 1).all()
    for settings in ({}, get_smallest_options("anysubset", method)):
        filled = fill(import_decoder("anysubset", method), settings, start, model)
        assert (filled.step.amax(1) == filled.step.sum(1)).all()
