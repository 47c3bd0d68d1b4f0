"""Figures of texts: perplexity under a judge, entropy, ROUGE, unit tests, and the accuracy of a model itself."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from parity.metrics import accuracy, sandbox, text_likelihood, text_quality
from parity.metrics.estimates import columns_of


class Uniform:
    """A judge of ten words and a mask that finds every word as likely."""

    config = SimpleNamespace(n_positions=9)

    def __call__(self, x):
        return SimpleNamespace(logits=torch.zeros(*x.shape, 11))


class Words:
    """Numbers written out; 1 separates."""

    mask, separator = 0, 1

    def encode(self, text):
        return [int(word) for word in text.split()]


def text(**given) -> SimpleNamespace:
    """What a metric sees of a cell of three rows."""
    shard = SimpleNamespace(tokens=np.arange(60).reshape(3, 20) % 10 + 1, end=np.array([20, 7, 13]))
    return SimpleNamespace(shard=shard, rows={}, logp=None, extra=[None] * 3, **given)


def test_perplexity_is_read_in_pieces_and_stops_at_the_rows_end():
    found = text_likelihood.perplexities(Uniform(), torch.randint(1, 11, (3, 20)), torch.tensor([20, 7, 13]), 0, 1)
    assert np.allclose(found, 10)  # the mask has no share


@pytest.mark.parametrize("one", [True, False])
def test_a_judge_of_another_vocabulary_reads_the_text(one):
    """Whose rows are then as long as it takes; an empty text is one token."""
    loaded = SimpleNamespace(one_vocabulary=one, words=Words(), judge_words=Words(), gpt2=Uniform(), device="cpu")
    cell = text(loaded=loaded, texts=["3 4 5", "6 7", ""])
    found = text_likelihood.rows(cell)["perplexity"]
    assert np.allclose(found, 10)
    tokens, end = text_likelihood.reread(cell.texts, Words())
    assert tokens.tolist() == [[3, 4, 5], [6, 7, 1], [1, 1, 1]]
    assert end.tolist() == [3, 2, 1]


def test_figures_are_means_of_the_columns():
    cell = text()
    cell.rows = {"perplexity": np.array([1.0, 2.0, 3.0]), **text_quality.rows(cell)}
    assert columns_of(text_likelihood.measure(cell)) == {"perplexity": 2, "perplexity_se": pytest.approx(1 / 3**0.5)}
    assert columns_of(text_quality.measure(cell))["entropy"] == pytest.approx(np.mean(cell.rows["entropy"]))
    cell.logp = np.array([-1.0, -3.0, -2.0])
    assert columns_of(text_likelihood.measure(cell))["logp"] == -2
    assert text_likelihood.arrays(cell)["logp"] is cell.logp


def test_entropy_is_of_a_rows_own_words():
    assert text_quality.entropy(np.array([1, 1, 2, 2, 3, 3, 4, 4])) == pytest.approx(2.0)
    assert text_quality.rows(text())["entropy"][1] == pytest.approx(np.log2(7))  # what lies past its end does not count


def test_rouge_is_of_words_shared():
    """By hand: four of five words, three of four pairs."""
    found = text_quality.rouge("she went to the market", "she went to the bakery")
    assert found == {"rouge1": pytest.approx(0.8), "rouge2": pytest.approx(0.75), "rougeL": pytest.approx(0.8)}
    assert set(text_quality.rows(text())) == {"entropy"}  # a task that does not say what stood there
    cell = text(filled=["a b", "a b", "c d"])
    cell.extra = ["a b", "b a", "e f"]
    cell.rows = text_quality.rows(cell)
    assert text_quality.measure(cell)["rouge1"].value == pytest.approx(2 / 3)
    assert cell.rows["rougeL"].tolist() == [1, 0.5, 0]


def code(run: bool) -> SimpleNamespace:
    """Three completions of a published function: right, wrong, no Python."""
    cell = text(run_code=run, texts=[""] * 3, filled=["return x + 1", "return x", "return ("])
    cell.extra = [{"before": "def f(x):\n    ", "after": "\n", "tests": "assert f(1) == 2\n"}] * 3
    return cell


@pytest.mark.skipif(bool(sandbox.probe()), reason=sandbox.probe() or "works")
def test_the_share_that_passes_its_unit_tests():
    cell = code(run=True)
    cell.rows = text_quality.rows(cell)
    assert cell.rows["passed"].tolist() == [True, False, False]
    assert "SyntaxError" in cell.rows["why"][2]
    assert columns_of(text_quality.measure(cell))["passed"] == pytest.approx(1 / 3)


def test_code_is_not_run_unasked():
    cell = code(run=False)
    assert set(text_quality.rows(cell)) == {"entropy"}
    assert columns_of(text_quality.measure(cell)) == {"code_not_run": "run_generated_code is off"}


def laws(*rows: tuple[list[float], list[bool]]):
    """Laws of two values: the probability of the token that stands there, and whether one does."""
    for p, inside in rows:
        own = torch.tensor([p])
        yield torch.stack([1 - own, own], -1), torch.ones(1, len(p), dtype=torch.long), torch.tensor([inside])


def test_a_last_word_is_right_if_all_its_tokens_are_the_likeliest():
    given = laws(([0.9, 0.6], [True, True]), ([0.9, 0.4], [True, True]), ([0.9, 0.4], [True, False]))
    assert accuracy.score_last_words(given, [True, False, None]) == [(True, True), (False, False), (True, None)]


def test_a_choice_is_of_the_likeliest_end_per_token():
    """The second question's right end is the longer one: less likely as a whole, likelier per token."""
    both = [True, True]
    given = laws(([0.5, 0.5], both), ([0.4, 0.4], both), ([0.5, 0.5], both), ([0.3, 0.9], [True, False]))
    extra = [(0, True, False), (0, False, False), (1, True, True), (1, False, True)]
    assert accuracy.score_choices(given, extra) == [(True, False), (True, True)]
