"""Any-subset decoders: laws on enumerable models, the paper's theorem and lemma, rows that do not see one another, bad input."""

from functools import partial

import numpy as np
import pytest
import torch

from parity.base.noise import Noise, counted_noise
from parity.decode.anysubset import fill
from parity.decoders.anysubset.assd import assd
from parity.decoders.anysubset.assd_ngram import assd_ngram, bigram_laws
from parity.decoders.anysubset.diffusion import diffusion
from parity.decoders.anysubset.gpt2 import gpt2
from parity.decoders.anysubset.sequential import sequential
from parity.decoders.anysubset.sigma_gpt import sigma_gpt
from parity.equality import anyorder, verdict
from parity.models.anysubset.protocol import infilling, lattice, write
from parity.models.anysubset.tabular import TabularAnySubset, random_table

DECODERS = {
    "sequential": sequential,
    "assd": partial(assd, k=3),
    "assd_ngram": partial(assd_ngram, k=3),
    "sigma_gpt": partial(sigma_gpt, orders=2),
    "diffusion": partial(diffusion, steps=4),
}


def tabular(vocab: int, length: int, seed: int = 0, scale: float = 1.5) -> TabularAnySubset:
    return TabularAnySubset(random_table(vocab, length, torch.Generator().manual_seed(seed), scale))


def ragged(model: TabularAnySubset, rows: int, seed: int = 0):
    """Rows of unequal length with random prompts of at least one token, and something to fill in."""
    rng = np.random.default_rng(seed)
    end = torch.from_numpy(rng.integers(2, model.length + 1, rows))
    order = (
        torch.from_numpy(rng.random((rows, model.length)))
        .masked_fill(torch.arange(model.length) >= end[:, None], 2)
        .argsort(1)
    )
    count = torch.from_numpy(1 + (rng.random(rows) * (end.numpy() - 1)).astype(np.int64))
    known = torch.zeros(rows, model.length, dtype=torch.bool).scatter_(
        1, order, torch.arange(model.length) < count[:, None]
    )
    tokens = torch.from_numpy(rng.integers(0, model.words, (rows, model.length)))
    return infilling(tokens, known, model.mask, model.vocab, end)


class Recorder:
    """A model that remembers what it was asked."""

    def __init__(self, model):
        self.model, self.vocab, self.mask, self.calls = model, model.vocab, model.mask, []

    def laws(self, tokens, order, begin, ranks, seen):
        found = self.model.laws(tokens, order, begin, ranks, seen)
        self.calls.append((tokens, ranks, seen, found))
        return found


# --- the order


def test_order_is_prompt_then_the_rest_from_left_to_right():
    known = torch.tensor([[0, 1, 0, 0, 1, 0], [1, 0, 0, 1, 0, 0]]).bool()
    order, begin, end = lattice(known, torch.tensor([6, 4]))
    assert order.tolist() == [[1, 4, 0, 2, 3, 5], [0, 3, 1, 2, 4, 5]]
    assert begin.tolist() == [2, 2] and end.tolist() == [6, 4]


def test_write_leaves_slots_past_the_end_alone():
    """A slot past a row's end repeats the last position; only the slot that is final may write there."""
    values = torch.tensor([[7, 8, 9]])
    positions, new = torch.tensor([[2, 2, 2]]), torch.tensor([[5, 0, 1]])
    assert write(values, positions, new, torch.tensor([[True, False, False]])).tolist() == [[7, 8, 5]]
    assert values.tolist() == [[7, 8, 9]]


# --- laws


@pytest.mark.parametrize("name", ["sequential", "assd", "assd_ngram"])
def test_lossless_decoders_are_certified(name):
    rows = anyorder.exact(
        DECODERS[name], method=name, n=40_000, names=["random 3x5", "random 2x6", "consistent 3x4"], draws=999
    )
    found = verdict.verdicts(rows, {name: "lossless"}, margin=0.03)[0]
    assert found["verdict"] == "certified lossless", found


@pytest.mark.parametrize(
    ("name", "decoder"),
    [("assd", partial(assd, k=3, tolerance=0.1)), ("sigma_gpt", sigma_gpt), ("diffusion", DECODERS["diffusion"])],
)
def test_lossy_decoders_are_rejected_with_their_distance(name, decoder):
    rows = anyorder.exact(decoder, method=name, n=20_000, names=["random 3x5", "consistent 3x4"], draws=999)
    found = verdict.verdicts(rows, {name: "lossy"}, margin=0.03)[0]
    assert found["verdict"].startswith("lossy: TV = ") and found["tv_low"] > 0, found


def test_another_order_is_another_law():
    """Sequential decoding from right to left, of the same network: what the lattice order rules out (Eq. 3)."""

    def backwards(model, start, *, noise):
        ranks = torch.arange(start.order.shape[1])
        span = (start.begin[:, None] + start.end[:, None] - 1 - ranks).clamp(min=0)
        turned = torch.where((ranks >= start.begin[:, None]) & (ranks < start.end[:, None]), span, ranks)
        return sequential(model, start._replace(order=start.order.gather(1, turned)), noise=noise)

    rows = anyorder.exact(backwards, method="backwards", n=10_000, names=["random 3x5"], draws=499)
    assert verdict.verdicts(rows, {"backwards": "lossless"}, margin=0.03)[0]["verdict"].startswith("lossy")
    rows = anyorder.exact(backwards, method="backwards", n=10_000, names=["consistent 3x5"], draws=499)
    assert not verdict.verdicts(rows, {"backwards": "lossless"}, margin=0.03)[0]["verdict"].startswith("lossy")


# --- Theorem 1 and Lemma 1


@pytest.mark.parametrize("k", [2, 3, 5])
def test_assd_never_needs_more_passes_than_tokens(k):
    """10,000 rows of random models, prompts, lengths (four models of 2,500 for each k)."""
    for seed in range(4):
        model = tabular(3, 6, seed, scale=[0.3, 1.5, 4.0, 1.5][seed])
        start = ragged(model, 2500 if k < 5 else 5000, seed)
        done = fill(start, assd(model, start, noise=counted_noise(seed, range(len(start.tokens))), k=k))
        tokens = start.end - start.begin
        assert (done.nfe <= tokens).all()
        assert (done.nfe[tokens == 1] == 1).all()  # line 9: one token left needs no verification
        assert k > 2 or (done.nfe == tokens).all()  # and 2 can never win
    assert k == 2 or (done.nfe < tokens).any()


def test_the_controls_break_the_theorem():
    model = tabular(3, 6, 1)
    start = ragged(model, 2000)
    tokens = start.end - start.begin
    done = fill(start, sigma_gpt(model, start, noise=counted_noise(0, range(2000)), orders=2))
    assert (done.nfe > tokens).any()
    done = fill(start, assd_ngram(model, start, noise=counted_noise(0, range(2000)), k=3))
    assert (done.nfe <= tokens).all() and (done.nfe + done.aux > tokens).any() and (done.aux == done.nfe).all()


@pytest.mark.parametrize("name", DECODERS)
def test_evaluations_are_counted_as_the_network_does_them(name):
    """Of a row alone: what the model was asked for, a row laid out in several orders once for each."""
    for row in range(20):
        model = Recorder(tabular(3, 6, row % 4))
        one = type(start := ragged(model.model, 20, 7))(*(x[row : row + 1] for x in start))
        done = fill(one, DECODERS[name](model, one, noise=counted_noise(0, range(row, row + 1))))
        assert int(done.nfe[0]) == done.passes == sum(len(tokens) for tokens, *_ in model.calls)


def test_more_orders_cost_more_evaluations():
    model = Recorder(tabular(3, 6, 1))
    one = type(start := ragged(model.model, 20, 7))(*(x[:1] for x in start))
    done = fill(one, sigma_gpt(model, one, noise=counted_noise(0, range(1)), orders=3))
    assert int(done.nfe[0]) == 4 * int(done.loops[0]) == 2 * len(model.calls)  # not the two batches of a loop


def test_first_draft_is_always_accepted():
    """Lemma 1: its draft law is the law it would be verified against; and it stands in the result as it was drawn."""
    model = Recorder(tabular(3, 6, 2))
    start = ragged(model.model, 2000, 1)
    noise = counted_noise(0, range(2000))
    accepted = 0
    for step in assd(model, start, noise=noise, k=4):
        line, ranks, _, p = next(c for c in reversed(model.calls) if (c[1].shape[1] == 4))
        alive = ranks[:, 0] < start.order.shape[1]
        again = model.model.laws(
            line, start.order, start.begin, ranks[:, :1], ranks[:, :1].clamp(max=5)
        )  # its joint-density term
        assert torch.equal(again[alive, 0], p[alive, 0])
        u = noise.uniform("accept", ranks[:, :1])
        own = p[:, 0].gather(-1, step.tokens[:, :1])
        assert (u * own < again[:, 0].gather(-1, step.tokens[:, :1]))[alive].all() and step.final[alive, 0].all()
        accepted += int(alive.sum())
    assert accepted > 2000


def test_first_bigram_draft_is_not_always_accepted():
    model = tabular(3, 6, 2)
    start = ragged(model, 2000, 1)
    rejected = 0
    for step in assd_ngram(model, start, noise=counted_noise(0, range(2000)), k=4):
        alone = step.final.sum(1) == 1
        rejected += int((alone & (start.end - start.begin > 1)).sum())
    assert rejected > 0


# --- rows


@pytest.mark.parametrize("name", DECODERS)
def test_a_row_alone_is_the_row_in_a_batch(name):
    model = tabular(3, 6, 3)
    start = ragged(model, 40, 5)
    keys = counted_noise(9, range(40)).keys
    together = fill(start, DECODERS[name](model, start, noise=Noise(keys, torch.float64)))
    for row in (0, 7, 23):
        one = type(start)(*(x[row : row + 1] for x in start))
        alone = fill(one, DECODERS[name](model, one, noise=Noise(keys[row : row + 1], torch.float64)))
        assert torch.equal(alone.tokens[0], together.tokens[row]) and alone.nfe[0] == together.nfe[row]


def test_a_row_that_sees_its_neighbours_is_found_out():
    """Noise that belongs to the place in the batch instead of the row, or to all rows together."""
    model = tabular(3, 6, 3)
    start = ragged(model, 40, 5)

    def alone_and_together(decoder):
        whole = fill(start, decoder(model, start, noise=counted_noise(9, range(40))))
        rows = [type(start)(*(x[r : r + 1] for x in start)) for r in range(20)]
        ones = [fill(one, decoder(model, one, noise=counted_noise(9, range(r, r + 1)))) for r, one in enumerate(rows)]
        return all(torch.equal(one.tokens[0], whole.tokens[r]) for r, one in enumerate(ones))

    def by_place(model, start, *, noise):
        return assd(model, start, noise=counted_noise(9, range(len(start.tokens))), k=3)

    def neighbours(model, start, *, noise):
        return assd(model, start, noise=Noise(noise.keys + noise.keys.sum(), noise.dtype), k=3)

    assert alone_and_together(DECODERS["assd"])
    assert not alone_and_together(by_place) and not alone_and_together(neighbours)


@pytest.mark.parametrize("name", DECODERS)
def test_prompts_stand_and_everything_else_is_filled(name):
    model = tabular(3, 6, 4)
    start = ragged(model, 200, 6)
    done = fill(start, DECODERS[name](model, start, noise=counted_noise(1, range(200))))
    inside = torch.arange(6) < start.end[:, None]
    given = start.tokens != model.mask
    assert torch.equal(done.tokens[given], start.tokens[given])
    assert (
        (done.tokens[inside] < model.words).all()
        and (done.loop[given] == 0).all()
        and (done.loop[inside & ~given] > 0).all()
    )


def test_a_decoder_that_stops_early_is_an_error():
    model = tabular(3, 4)
    start = ragged(model, 3)
    with pytest.raises(ValueError, match="stopped before it was filled in"):
        fill(start, iter(list(sequential(model, start, noise=counted_noise(0, range(3))))[:1]))


# --- bigrams


def test_bigrams_are_counted_from_neighbouring_known_tokens():
    M = 9
    tokens = torch.tensor([[1, 2, 1, 3, 1, 2, M, 4]])
    law = bigram_laws(tokens, torch.tensor([1]), M, 10, torch.float64)[0]
    assert law[2] == pytest.approx(2 / 3) and law[3] == pytest.approx(1 / 3)
    law = bigram_laws(tokens, torch.tensor([4]), M, 10, torch.float64)[0]  # nothing follows 4: single tokens
    assert law[1] == pytest.approx(3 / 7) and law[M] == 0
    law = bigram_laws(torch.full((1, 4), M), torch.tensor([M]), M, 10, torch.float64)[0]
    assert law[M] == 0 and law[0] == pytest.approx(1 / 9)


# --- bad input


@pytest.mark.parametrize(
    ("tokens", "known", "message"),
    [
        ([[1, 2, 0]], [[1, 1, 1]], "row 0: no masked position among 3"),
        ([[1, 2, 0]], [[0, 0, 0]], "row 0: all 3 positions are masked"),
        ([[1, 2, 0], [1, 7, 0]], [[1, 0, 0], [0, 1, 0]], "row 1, position 1: known token 7; allowed: 0 to 3"),
        ([[1, -1, 0]], [[0, 1, 0]], "row 0, position 1: known token -1"),
        ([[1, 3, 0]], [[0, 1, 0]], r"row 0, position 1: known token 3 \(the mask\)"),
    ],
)
def test_bad_prompts_are_named(tokens, known, message):
    with pytest.raises(ValueError, match=message):
        infilling(torch.tensor(tokens), torch.tensor(known).bool(), mask=3, vocab=4)


def test_gpt2_takes_a_prefix_alone():
    model = tabular(3, 4)
    start = infilling(torch.tensor([[1, 0, 2, 0]]), torch.tensor([[True, False, True, False]]), 3, 4)
    with pytest.raises(ValueError, match="row 0: known tokens behind masked ones"):
        gpt2(model, start, noise=counted_noise(0, range(1)))
