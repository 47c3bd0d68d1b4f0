"""A decoder's pass is one function of buffers: its calls, made again on the same tensors, decode whole images, and it
compiles as one graph. A tape stands for a CUDA graph, which a CPU does not have."""

import pytest
import torch
from parity_decoders import captured, verification
from parity_decoders.discrete import mtj
from parity_decoders.noise import counted_noise
from parity_decoders.protocols.discrete import TreePass, find_ancestors
from parity_decoders.window import ProbsByPosition

from decoders.tests.tape import Calls
from parity.decode.discrete import record
from parity.decode.loop import Queue
from parity.experiment import options
from parity.models.discrete.tabular import TabularDrafter, TabularHeads
from tests.tables import import_decoder

V, L, WIDTH, K = 6, 40, 8, 97
GENERATORS = {"pjd", "zipar"}  # their passes differ in shape
WEIGHTS = torch.arange(L + 2) * 13 % K
DISTRIBUTIONS = 1.5 * torch.randn(2, K, V, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


class HashedModel:
    """A token model whose passes make the same calls whatever the tokens are: the sum of all tokens before, each
    weighted by its position, names a distribution."""

    vocab, length, width, prefix = V, L, WIDTH, 0
    codebook = raw_codebook = embeddings = torch.arange(V, dtype=torch.float64)[:, None] / V

    def __init__(self, rows, static, is_draft=False):
        self.probs = 0.7 * DISTRIBUTIONS[0] + 0.3 * DISTRIBUTIONS[1] if is_draft else DISTRIBUTIONS[0]
        self.static, self.reach = static, L
        self.memory = torch.zeros(rows, L + 2, dtype=torch.int64)  # the token at position i is in column i + 1
        self.forced = torch.full((L,), -1)
        self.forced[WIDTH - 1 :: WIDTH] = V - 1
        if not is_draft:
            self.draft = HashedModel(rows, static, is_draft=True)
            self.drafter, self.heads = TabularDrafter(self.draft), TabularHeads(self.draft)

    def attend(self, positions):
        self.reach = positions

    def join(self, rows, fresh):
        """Do nothing: what was fed is replaced."""

    def sum_tokens(self, places):
        """Sum the tokens before the columns `places` [B, S] of the memory, and in them."""
        return (self.memory * WEIGHTS)[:, : self.reach + 1].cumsum(1).gather(1, places)

    def logits(self, tokens, positions):
        self.memory.scatter_(1, positions + 1, tokens)
        return self.probs[self.sum_tokens(positions + 1) % K]

    def tree(self, tokens, positions, parents):
        places = (positions + 1).clamp(max=L + 1)
        added = torch.where(find_ancestors(parents), (tokens * WEIGHTS[places])[:, None], 0).sum(-1)
        probs = self.probs[(self.sum_tokens(positions[:, :1].clamp(min=0)) + added) % K]
        return TreePass(probs, tokens, positions, parents, state=places)

    def keep(self, tree, nodes):
        tokens, places = (x.gather(1, nodes.clamp(min=0)) for x in (tree.tokens, tree.state))
        self.memory.scatter_(1, places, tokens)


def start(method, changed, rows, waiting=0, static=True):
    """Start a decoder on `rows` rows; `waiting` ones take the places of those that are done. On fixed shapes as on a
    GPU, without numpy, whose calls no tape would hold."""
    chosen = options.cap_small("discrete", method, options.options("discrete", method, {}))
    model, noise, keys = (
        HashedModel(rows, static),
        counted_noise(3, range(rows)),
        counted_noise(3, range(rows + waiting)),
    )
    noise.array = not static
    if waiting:
        model.queue = Queue(noise, keys.keys, lambda places: HashedModel(places.stop - places.start, static))
    begun = torch.zeros(rows, dtype=torch.int64)
    return model, begun, import_decoder("discrete", method)(model, begun, noise=noise, **(chosen | changed))


@torch.inference_mode()
def repeat_a_pass(passes):
    """Yield the steps of a decoder, the first two as they are made, then those of the second one's calls."""
    yield next(passes)
    with Calls() as calls:
        step = passes.run()
    while True:
        yield type(step)(*(None if x is None else x.clone() for x in step))
        calls.spoil()
        passes.line.take_waiting_rows()
        if passes.line.is_done():
            return
        calls.repeat()


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """Take the branches of a GPU: nothing is skipped, and tokens are found by torch."""
    monkeypatch.setattr(verification, "is_idle_on_cpu", lambda rows: False)
    for module in (verification, mtj):
        monkeypatch.setattr(module, "find_largest", lambda x: x.argmax(-1))
    for method in options.methods("discrete"):
        module = __import__(f"parity_decoders.discrete.{method}", fromlist=["is_idle_on_cpu"])
        if hasattr(module, "is_idle_on_cpu"):
            monkeypatch.setattr(module, "is_idle_on_cpu", lambda rows: False)


REFILLING = [m for m in options.methods("discrete") if options.declaration("discrete", m).REFILLS]
METHODS = [m for m in options.methods("discrete") if m not in GENERATORS]
CASES = [(m, {}) for m in METHODS] + [
    ("sjd", {"window": 9, "init": "sample_above"}),
    ("sjd", {"window": 4, "init": "repeat_left", "refine": False}),
    ("sjd_coupled", {"window": 9, "coupling": "maximal", "warm": True, "store": "q"}),
    ("sjd_pp", {"window": 9, "store": "drawn", "init": "sample_left"}),
    ("sjd_sv", {"verify": "block"}),
    ("gsd", {"resample": "group"}),
    ("eagle", {"rank": "race"}),
    ("spec", {"gamma": 3, "verify": "block"}),
    ("vvs", {"schedule": "dynamic", "blend": True, "replace": 0.5}),
    ("mtj", {"window": 9, "branches": 7, "depth": 4}),
]
SAME = ("tokens", "step", "nfe", "nodes", "kept")


@pytest.mark.parametrize(("method", "changed"), CASES, ids=[" ".join(map(str, case)) for case in CASES])
def test_the_calls_of_a_pass_decode_whole_images(as_on_a_gpu, method, changed):
    waiting = 4 if method in REFILLING else 0
    model, begun, passes = start(method, changed, 3, waiting)
    repeated = record(model, begun, repeat_a_pass(passes))
    expected = record(*start(method, changed, 3 + waiting, static=False))
    for name in SAME:
        assert torch.equal(getattr(repeated, name), getattr(expected, name)), name


def test_what_cannot_be_captured_runs_as_it_is_and_the_log_says_why(as_on_a_gpu, capsys):
    def refuse(run, beside):
        raise RuntimeError("operation not permitted when stream is capturing")

    for steps in (iter(()), start("sjd", {}, 3, static=False)[2]):
        assert captured.capture("a method", steps) is steps
        assert "a method" in capsys.readouterr().err
    model, begun, passes = start("sjd", {}, 3)
    assert torch.equal(
        record(model, begun, captured.run_captured(passes, refuse)).step, record(*start("sjd", {}, 3)).step
    )
    assert "not permitted" in capsys.readouterr().err


def replace_values(self, positions, probs):
    """Write distributions to a copy, which takes the place of the buffer: a fault."""
    self.values = self.values.clone()
    self.values[self.rows, positions % self.values.shape[1]] = probs


def test_a_buffer_that_moves_is_noticed(as_on_a_gpu, monkeypatch):
    expected = record(*start("sjd", {}, 3))
    monkeypatch.setattr(ProbsByPosition, "write", replace_values)
    model, begun, passes = start("sjd", {}, 3)
    assert not torch.equal(record(model, begun, repeat_a_pass(passes)).tokens, expected.tokens)


@torch.inference_mode()
def read_late(passes, every):
    """Yield the steps of a decoder, of which is read after `every` passes whether rows are done."""
    while not passes.line.is_done():
        for _ in range(every):
            yield passes.run()
        passes.line.take_waiting_rows()


@pytest.mark.parametrize("method", METHODS)
def test_passes_of_rows_that_are_done_change_nothing(as_on_a_gpu, method):
    waiting = 4 if method in REFILLING else 0
    expected = record(*start(method, {}, 3, waiting))
    model, begun, passes = start(method, {}, 3, waiting)
    late = record(model, begun, read_late(passes, 8))
    assert late.passes > expected.passes
    for name in SAME:
        assert torch.equal(getattr(late, name), getattr(expected, name)), name


@pytest.mark.parametrize("method", ["sjd", *(pytest.param(m, marks=pytest.mark.long) for m in METHODS if m != "sjd")])
def test_a_pass_compiles_as_one_graph_for_all_batches_and_rows(method):
    """The first pass of a batch runs as it is."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    waiting = 4 if method in REFILLING else 0
    expected = record(*start(method, {}, 3, waiting))
    for _ in range(2):
        model, begun, passes = start(method, {}, 3, waiting)
        steps = [next(passes)]
        passes.run = torch.compile(passes.run, fullgraph=True, dynamic=False, backend="eager")
        compiled = record(model, begun, (step for some in (steps, passes) for step in some))
        assert torch.equal(compiled.tokens, expected.tokens)
        assert torch.equal(compiled.step, expected.step)
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
