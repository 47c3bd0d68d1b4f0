"""Rows that replace finished rows of a batch: each draws what it draws in a batch of all rows."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from parity_decoders import captured, verification
from parity_decoders.distribution import TokenSampling
from parity_decoders.engine import Network, Sampled
from parity_decoders.errors import DecodingError
from parity_decoders.noise import Noise, counted_noise
from parity_decoders.sequence_buffer import SequenceBuffer
from parity_decoders.speculators import EagleDrafter

from decoders.tests.tape import Tape
from parity.decode import loop
from parity.decode.discrete import record
from parity.decode.shard_io import TIMES
from parity.experiment import options
from parity.models import add, fetch
from parity.models.discrete.load import load, load_encoder
from parity.models.discrete.tabular import TabularModel
from parity.stand_ins.discrete import anole, anole_drafter
from tests.tables import generate_variants, import_decoder, make_table

N, AT_ONCE, L = 40, 6, 7
REFILLING = [m for m in options.methods("discrete") if options.declaration("discrete", m).REFILLS]
GRAMMAR = torch.tensor([-1, -1, 3, -1, -1, 3, 3])
DISTRIBUTIONS = {
    "guided": (make_table(4, L, pair=True), None, TokenSampling(guidance=1.8)),
    "grammar": (make_table(4, L), GRAMMAR, TokenSampling(top_k=3)),
}


def make_model(probs: str, rows: int) -> Sampled:
    """Make a tabular model of `rows` rows with the table, forced tokens and sampling of one of LAWS, by its name."""
    logits, forced, sampling = DISTRIBUTIONS[probs]
    return Sampled(TabularModel(logits, L, rows, width=3, forced=forced), sampling)


def decode_together(probs: str, method: str, method_options: dict[str, Any]) -> Any:
    """Decode N rows in one batch by a method, on the model of one of LAWS."""
    model = make_model(probs, N)
    start = torch.zeros(N, dtype=torch.int64)
    noise = counted_noise(2, range(N))
    return record(model, start, import_decoder("discrete", method)(model, start, noise=noise, **method_options))


def decode_refilled(probs: str, method: str, method_options: dict[str, Any]) -> Any:
    """Decode N rows by a method, on the model of one of LAWS, in a batch of AT_ONCE that is refilled from a queue."""
    model = make_model(probs, AT_ONCE)
    start = torch.zeros(AT_ONCE, dtype=torch.int64)
    noise = counted_noise(2, range(AT_ONCE))
    keys = counted_noise(2, range(N)).keys
    model.queue = loop.Queue(noise, keys, lambda rows: make_model(probs, rows.stop - rows.start))
    return record(model, start, import_decoder("discrete", method)(model, start, noise=noise, **method_options))


SAME = ("tokens", "step", "nfe", "nodes", "kept")
CASES = [v for v in generate_variants("discrete") if v.method in REFILLING]


@pytest.mark.parametrize("variant", CASES, ids=[v.name for v in CASES])
@pytest.mark.parametrize("probs", list(DISTRIBUTIONS))
def test_refilled_rows_equal_rows_of_one_batch(probs, variant):
    batched, refilled = (f(probs, variant.method, variant.options) for f in (decode_together, decode_refilled))
    for name in SAME:
        assert torch.equal(getattr(batched, name), getattr(refilled, name)), name
    assert refilled.passes >= batched.nfe.sum() / AT_ONCE > batched.passes


def keep_age(line: SequenceBuffer, rows: torch.Tensor) -> None:
    """Set rows [B] bool back to their start, but leave the number of their passes: a fault."""
    line.tokens[:, 1:].masked_fill_(rows[:, None], 0)
    line.frontier.masked_fill_(rows, 0)
    line.last_frontier.masked_fill_(rows, 0)


FORGETS = [
    ("jacobi", Noise, "replace", lambda self, rows, keys: None),
    ("sjd", SequenceBuffer, "_clear_rows", keep_age),
    ("sjd_coupled", SequenceBuffer, "_clear_rows", keep_age),
]


@pytest.mark.parametrize(("method", "owner", "name", "faulty"), FORGETS, ids=[f"{m}: {n}" for m, _, n, _ in FORGETS])
def test_state_of_the_row_before_is_noticed(method, owner, name, faulty, monkeypatch):
    """Must fail: noise or a window that keeps what it had for the row before."""
    method_options = options.cap_small("discrete", method, options.options("discrete", method, {}))
    batched = decode_together("guided", method, method_options)
    monkeypatch.setattr(owner, name, faulty)
    refilled = decode_refilled("guided", method, method_options)
    assert not torch.equal(batched.tokens, refilled.tokens) or not torch.equal(batched.nfe, refilled.nfe)


# --- on a network whose rows have prompts of different lengths


def make_spec(method: str) -> dict[str, Any]:
    """Make the specification of a discrete method at small options, in float64."""
    method_options = options.cap_small("discrete", method, options.options("discrete", method, {}))
    return {"method": method, "options": method_options, "sampling": {}, "seed": 0, "dtype": "float64"}


def assert_same_columns(one: Any, two: Any) -> None:
    """Assert that two shards have the same columns, apart from times and counts of whole batches."""
    of_batches = {*TIMES, "first_seconds", "passes", "draft_calls", "draft_tokens", "batch", "at_once"}
    for name in set(one.columns) - of_batches:
        assert np.array_equal(one.columns[name], two.columns[name]), name


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    """A loaded model that reads words, with its drafter, and the rows of nine captions of 3 to 63 words."""
    folder, drafter_folder = tmp_path_factory.mktemp("anole"), tmp_path_factory.mktemp("drafter")
    files, drafter = anole(folder), anole_drafter(drafter_folder)["drafter"]
    entry = add.find(str(folder / files["model"]), None, {"drafter": drafter_folder / drafter}).entry
    manifest = fetch.make_manifest("discrete", "m", entry, folder / "out")
    texts = [" ".join(["a", "red", "fox"] * (1 + 20 * (i % 4 == 3))) for i in range(9)]
    inputs = {k: v.numpy() for k, v in load_encoder(manifest)(texts).items()}
    ids = np.array([f"{i}" for i in range(9)])
    return load(manifest, dtype=torch.float64, needs="drafter"), {"ids": ids, "captions": ids, **inputs}


@pytest.mark.parametrize("method", ["sjd", "eagle", "lantern_pp"])
def test_a_longer_prompt_replaces_a_shorter_one(method, words):
    """Prompts end where the image begins, so the batch's are padded anew."""
    loaded, rows = words
    spec = make_spec(method) | {"sampling": {"guidance": 2.0, "temperature": 1.0, "top_k": 0, "top_p": 1.0}}
    assert_same_columns(*(loop.decode("discrete", loaded, spec, rows, 3, refill=refill) for refill in (False, True)))


def fix_shapes(loaded, monkeypatch):
    """Let loaded networks decode with shapes fixed as on a GPU."""
    draw = loop.batch_noise

    def make_model(rows, sampling, queue=None):
        model = type(loaded).model(loaded, rows, sampling, queue)
        model.static = model.network.cache.static = True
        return model

    def make_noise(*given):
        noise = draw(*given)
        noise.array = False
        return noise

    monkeypatch.setattr(loaded, "model", make_model)
    monkeypatch.setattr(loop, "batch_noise", make_noise)


@pytest.mark.parametrize("is_noticed", [True, False])
def test_a_longer_prompt_moves_buffers_and_passes_are_recorded_anew(is_noticed, words, monkeypatch):
    """Must fail: recordings that are kept."""
    loaded, rows = words
    monkeypatch.setattr(verification, "find_largest", lambda x: x.argmax(-1))
    monkeypatch.setattr(captured, "Captured", Tape)
    spec = make_spec("sjd_coupled") | {"sampling": {"guidance": 2.0, "temperature": 1.0, "top_k": 0, "top_p": 1.0}}
    rows = {name: column[:5] for name, column in rows.items()}  # the fourth has the longest prompt
    expected = loop.decode("discrete", loaded, spec, rows, 3)
    loaded = replace(loaded, captured=True)
    fix_shapes(loaded, monkeypatch)
    if not is_noticed:
        monkeypatch.setattr(Sampled, "prefix", 0)
    refilled = loop.decode("discrete", loaded, spec, rows, 3, refill=True)
    assert np.array_equal(refilled.tokens, expected.tokens) == is_noticed


@pytest.mark.parametrize("owner", [Network, EagleDrafter], ids=["target", "drafter"])
def test_a_prompt_of_the_row_before_is_noticed(owner, words, monkeypatch):
    """Must fail: a network, the target or the drafter, that keeps keys and values of the row that was done."""
    loaded, rows = words
    spec = make_spec("lantern_pp") | {"sampling": {"guidance": 2.0, "temperature": 1.0, "top_k": 0, "top_p": 1.0}}
    batched = loop.decode("discrete", loaded, spec, rows, 3)
    join = owner.join

    def keep_old_prompts(self: Any, which: Any, fresh: Any) -> None:
        """Let new rows join, but leave the keys and values of the old ones' prompts."""
        indices, prefix = which.nonzero()[:, 0], self.cache.prefix
        old = [(layer.keys.clone(), layer.values.clone()) for layer in self.cache.layers]
        join(self, which, fresh)
        start = self.cache.prefix - prefix
        for layer, (keys, values) in zip(self.cache.layers, old, strict=True):
            layer.keys[indices, start : start + prefix] = keys[indices, :prefix]
            layer.values[indices, start : start + prefix] = values[indices, :prefix]

    monkeypatch.setattr(owner, "join", keep_old_prompts)
    refilled = loop.decode("discrete", loaded, spec, rows, 3, refill=True)
    assert not np.array_equal(batched.tokens, refilled.tokens) or not np.array_equal(batched.nfe, refilled.nfe)


def spoil_logits(row, position, value):
    """Make a function that sets the logits after a position of one row, in each pass that computes them."""

    def spoil(logits, positions):
        logits = logits.clone()
        logits[row][positions[row] == position] = value
        return logits

    return spoil


@pytest.mark.parametrize("refills", [False, True])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("method", ["ar", "sjd", "sjd_coupled", "mtj", "spec"])
def test_logits_without_a_distribution_end_the_job(monkeypatch, method, value, refills):
    """A row whose token was drawn from them may have given its place to another."""
    table, _, sampling = DISTRIBUTIONS["guided"]
    spoil = spoil_logits(2, 3, value)
    logits, tree = TabularModel.logits, TabularModel.tree
    monkeypatch.setattr(TabularModel, "logits", lambda self, tokens, x: spoil(logits(self, tokens, x), x))

    def spoil_tree(self, tokens, positions, parents):
        found = tree(self, tokens, positions, parents)
        return found._replace(logits=spoil(found.logits, positions))

    monkeypatch.setattr(TabularModel, "tree", spoil_tree)
    monkeypatch.setitem(DISTRIBUTIONS, "guided", (table, None, sampling))
    decode = decode_refilled if refills and method != "spec" else decode_together
    with pytest.raises(DecodingError, match="row 2, position 4 are NaN or infinite, or allow no token"):
        decode("guided", method, {})
