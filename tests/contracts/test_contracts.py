"""Rules that every decoder of a kind keeps, whatever its options; a toy decoder of the kind breaks each rule once."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from parity_decoders.distribution import TokenSampling
from parity_decoders.noise import Noise, counted_noise
from parity_decoders.protocols.anysubset import Infilling, next_ranks, write
from parity_decoders.protocols.continuous import Pair, Start, draw_order, make_path_noise
from parity_decoders.steps import Draw, Fill, Step
from parity_decoders.verification import sample_token

from parity.base.errors import ParityError
from parity.decode import anysubset, continuous, discrete
from parity.equality.targets import Decoder
from parity.experiment import options
from parity.models.continuous.tabular import TabularMixture
from parity.models.discrete.tabular import TabularModel
from tests.tables import (
    Variant,
    decode_table,
    draw_prompts,
    generate_variants,
    get_smallest_options,
    import_decoder,
    make_mixtures,
    make_table,
    make_text_model,
    select_row,
)


def spoil_keys(noise: Noise, fault: str) -> Noise:
    """Return the noise, or with the fault "reads its neighbours" one that depends on the other rows' keys."""
    return Noise(noise.keys + (noise.keys.sum() if fault == "reads its neighbours" else 0), noise.dtype)


# --- image tokens

FORCED = torch.tensor([1, -1, 2, 0, -1, -1, 3])  # -1 where free; the first, the last and two together are forced


@torch.inference_mode()
def decode_image(model: Any, start: torch.Tensor, *, noise: Noise, fault: str = "none") -> Iterator[Step]:
    """Decode plainly, a token a pass, or with a fault that the rules must notice: an early stop, a hole, another row's
    noise, other numbers, or distributions that are not read."""
    token = start
    one = torch.ones_like(start)
    for n in range(model.length - (fault == "stops early")):
        position = n - n % 2 if fault == "leaves a hole" else n
        p = model.logits(token[:, None], (position - 1) * one[:, None])[:, 0].softmax(-1)
        p = torch.ones_like(p) if fault == "verifies nothing" else p
        index = n + (7 if fault == "draws other numbers" else 0)
        token = sample_token(p, spoil_keys(noise, fault).exponential("sample", index * one, model.vocab))
        yield Step(token[:, None], one, n * one)


def check_image_rows_do_not_depend_on_their_batch(method: Decoder, variant: Variant):
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
        drawn.append(discrete.record(model, start, steps).tokens)
    assert torch.equal(*drawn)


def check_coupled_tokens_are_plain_decodings(method: Decoder, variant: Variant):
    """Assert that a coupled method draws the tokens of plain decoding under the same noise."""
    plain = import_decoder("discrete", options.find_plain_method("discrete"))
    for logits, length, width in ((make_table(4, 6), 6, 2), (make_table(3, 7, seed=1), 7, 3)):
        coupled = decode_table(method, logits, length, 200, width=width, **variant.options)
        assert torch.equal(coupled.tokens, decode_table(plain, logits, length, 200, width=width).tokens)


@pytest.mark.parametrize("method", options.methods("discrete"))
def test_one_token_is_one_pass(method):
    """Also of a window, a draft, a tree of one."""
    decoder, smallest = import_decoder("discrete", method), get_smallest_options("discrete", method)
    for length, settings in ((1, {}), (1, smallest), (5, smallest)):
        decoded = decode_table(decoder, make_table(4, length), length, 30, width=1, **settings)
        assert (decoded.step > 0).all()
        assert length > 1 or (decoded.nfe == 1).all()


# --- texts


@torch.inference_mode()
def decode_text(model: Any, start: Infilling, *, noise: Noise, fault: str = "none") -> Iterator[Fill]:
    """Decode plainly, a token a loop, or with a fault that the rules must notice: another row's noise, a written
    prompt, or a pass asked twice."""
    tokens = start.tokens
    N = tokens.shape[1]
    n = start.begin - int(fault == "writes over its prompt")
    while bool((n < start.end).any()):
        ranks = next_ranks(start, n, 1)
        for _ in range(2 if fault == "asks twice" else 1):
            probs = model.probs(tokens, start.order, start.begin, ranks.asked, ranks.rank)
        token = sample_token(probs, spoil_keys(noise, fault).exponential("sample", ranks.rank * N, model.vocab))
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
    return anysubset.record(model, start, method(model, start, noise=counted_noise(9, rows), **settings))


def check_text_rows_do_not_depend_on_their_batch(method: Decoder, variant: Variant):
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


@pytest.mark.parametrize("method", options.methods("anysubset"))
def test_one_missing_token_is_one_loop(method):
    """Whatever a loop may draft, and where it may draft least."""
    model = make_text_model(3, 2)
    start = draw_prompts(model, 30, 0, method)
    assert (start.end - start.begin == 1).all()
    for settings in ({}, get_smallest_options("anysubset", method)):
        filled = fill(import_decoder("anysubset", method), settings, start, model)
        assert (filled.step.amax(1) == filled.step.sum(1)).all()


# --- vectors


@torch.inference_mode()
def decode_vectors(models: Pair, start: Start, *, noise: Noise, fault: str = "none") -> Iterator[Draw]:
    """Decode by the target alone, a token a step, or with a fault that the rules must notice: raster order in place of
    the given one, or another row's noise."""
    B, L = start.order.shape
    target = models.target
    order = torch.arange(L).expand(B, -1) if fault == "knows raster order alone" else start.order
    tokens = torch.zeros(B, L, target.dim, dtype=noise.dtype)
    for i in range(L):
        rank = torch.full((B, 1), i)
        path = make_path_noise(spoil_keys(noise, fault), "sample", rank, target.steps, target.dim)
        new = target.distribution(target.conditions(tokens, order, rank, rank), path).sample(path)
        tokens = tokens.scatter(1, order[:, i, None, None].expand(-1, 1, new.shape[1]), new[:, None])
        yield Draw(new[:, None], torch.ones(B, dtype=torch.int64))


def draw(method: Decoder, settings: dict[str, Any], rows: range, length: int = 5, shift: int = 0):
    """Decode the rows with these numbers, in random orders, by a method with options `settings`, on small mixtures
    whose means are moved by `shift` times the position."""
    noise = counted_noise(3, rows)
    start = Start(draw_order(noise, len(rows), length, False))
    mixtures = (m.mixture for m in make_mixtures(len(rows), length))
    moved = (m._replace(means=m.means + shift * torch.arange(length)[:, None].numpy()) for m in mixtures)
    models = Pair(*(TabularMixture(m, len(rows), raster=False) for m in moved))
    return continuous.record(models, start, method(models, start, noise=noise, **settings))


def check_vector_rows_do_not_depend_on_their_batch(method: Decoder, variant: Variant):
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
    drawn = draw(method, variant.options, range(40), shift=100)
    assert ((drawn.tokens - 100 * torch.arange(5)[:, None]).abs() < 50).all()
    assert (drawn.step > 0).all()
    assert (drawn.step.amax(1) == drawn.steps).all()


@pytest.mark.parametrize("method", options.methods("continuous"))
def test_one_vector_is_one_step(method):
    drawn = draw(import_decoder("continuous", method), get_smallest_options("continuous", method), range(30), length=1)
    assert (drawn.steps == 1).all()
    assert (drawn.step == 1).all()


# --- every decoder keeps the rules of its kind, and a toy that breaks one is noticed

VARIANTS = {kind: list(generate_variants(kind)) for kind in options.KINDS}
LOSSLESS = [v for v in VARIANTS["discrete"] if options.claim("discrete", v.method, v.options) == "lossless"]
COUPLED = [v for v in VARIANTS["discrete"] if options.is_coupled("discrete", v.method, v.options)]
TOYS = {"discrete": decode_image, "anysubset": decode_text, "continuous": decode_vectors}
RULES = {  # the kind of a rule, the fault of its toy that breaks it, and the variants that keep it
    check_image_rows_do_not_depend_on_their_batch: ("discrete", "reads its neighbours", VARIANTS["discrete"]),
    check_rows_are_whole_and_counts_add_up: ("discrete", "stops early", VARIANTS["discrete"]),
    check_forced_tokens_are_kept: ("discrete", "verifies nothing", LOSSLESS),
    check_no_hole_is_read: ("discrete", "leaves a hole", LOSSLESS),
    check_coupled_tokens_are_plain_decodings: ("discrete", "draws other numbers", COUPLED),
    check_text_rows_do_not_depend_on_their_batch: ("anysubset", "reads its neighbours", VARIANTS["anysubset"]),
    check_only_missing_tokens_are_filled: ("anysubset", "writes over its prompt", VARIANTS["anysubset"]),
    check_evaluations_are_counted: ("anysubset", "asks twice", VARIANTS["anysubset"]),
    check_vector_rows_do_not_depend_on_their_batch: ("continuous", "reads its neighbours", VARIANTS["continuous"]),
    check_tokens_are_of_their_positions: ("continuous", "knows raster order alone", VARIANTS["continuous"]),
}
CASES = [
    pytest.param(rule, kind, [v for v in variants if v.method == method], id=f"{rule.__name__}: {method}")
    for rule, (kind, _, variants) in RULES.items()
    for method in dict.fromkeys(v.method for v in variants)
]


@pytest.mark.parametrize(("rule", "kind", "variants"), CASES)
def test_every_decoder(rule, kind, variants):
    for variant in variants:
        try:
            rule(import_decoder(kind, variant.method), variant)
        except Exception as error:
            error.add_note(variant.name)
            raise


@pytest.mark.parametrize("rule", RULES)
def test_a_toy_that_breaks_the_rule_is_noticed(rule):
    kind, fault, _ = RULES[rule]
    rule(TOYS[kind], Variant("", {}))
    with pytest.raises((AssertionError, ParityError, pytest.fail.Exception)):
        rule(partial(TOYS[kind], fault=fault), Variant("", {}))
