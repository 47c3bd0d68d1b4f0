"""A pass that is recorded once and repeated makes the tokens of passes that run, and so does one that is compiled. A
CPU has no graphs, so a tape stands for one: the calls of a pass, made again on the same tensors."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from parity_decoders import captured, verification
from parity_decoders.captured import run_captured
from parity_decoders.compiling import compile_passes
from parity_decoders.discrete import ar, mtj, sjd_coupled

from decoders.tests.tape import Tape
from parity.base.row_noise import batch_noise
from parity.decode import loop
from parity.decode.shard_io import TIMES
from parity.experiment.options import options
from parity.inputs.prompts import encode
from parity.models import fetch

TEXTS = ["a small red circle", "two large squares", "a green star above a blue ring", "a ring", "a blue star"]
DECODERS = {
    "ar": (ar.ar, {}),
    "sjd_coupled": (sjd_coupled.sjd_coupled, {"window": 16}),
    "maximal": (sjd_coupled.sjd_coupled, {"window": 8, "coupling": "maximal", "warm": True}),
    "mtj": (mtj.mtj, {"window": 8, "branches": 12, "depth": 4}),
}


SAMPLING = {"guidance": 1.8, "temperature": 1.0, "top_k": 0, "top_p": 1.0}
SPEC = {"method": "ar", "options": {}, "sampling": SAMPLING, "seed": 0, "dtype": "float64"}


def encode_texts(texts, manifest):
    """Make the rows of a job from captions, which are their ids, too."""
    return {"ids": np.array(texts), "captions": np.array(texts), **encode(manifest, texts)}


@pytest.fixture
def loaded(monkeypatch):
    """Networks of the embedded model, without numpy, whose calls no tape would hold."""
    largest = lambda x: x.argmax(-1)  # noqa: E731
    monkeypatch.setattr(verification, "find_largest", largest)
    monkeypatch.setattr(mtj, "find_largest", largest)
    manifest = fetch.make_manifest("discrete", "discrete", {"family": "llamagen", "grid": 8}, Path())
    return loop.load("discrete", manifest, SPEC)


def fix_model(model, static):
    """Let a model decode with shapes fixed as on a GPU."""
    model.static = model.network.cache.static = static
    for speculator in (model.speculators or {}).values():
        if hasattr(speculator, "cache"):
            speculator.cache.static = static
    return model


@pytest.fixture
def begin(loaded):
    """A function that starts a decoder as on a GPU, with fixed shapes."""

    def make_model(texts, static=True, queue=None):
        return fix_model(loaded.model(encode_texts(texts, loaded.manifest), SAMPLING, queue), static)

    def start(decoder, texts, waiting=(), static=True):
        noise = batch_noise(0, texts, dtype=torch.float64)
        noise.array = not static
        queue = None
        if waiting:
            keys = batch_noise(0, [*texts, *waiting], dtype=torch.float64).keys
            queue = loop.Queue(noise, keys, lambda rows: make_model([*texts, *waiting][rows]))
        model = make_model(texts, static, queue)
        function, options = DECODERS[decoder]
        return model, function(model, torch.zeros_like(noise.keys), noise=noise, **options)

    return start


def decode(model, steps):
    start = torch.zeros(len(model.network.last) // 2, dtype=torch.int64)
    return loop.import_kind("discrete").record(model, start, steps)


def decode_by_tapes(begin, decoder, static=True):
    """Decode by tapes; return what was decoded, what passes that run decode, and the number of tapes."""
    expected = decode(*begin(decoder, TEXTS[:2], static=static))
    model, passes = begin(decoder, TEXTS[:2])
    tapes = []

    def record(run, beside):
        tapes.append(Tape(run, beside))
        return tapes[-1]

    return decode(model, run_captured(passes, record)), expected, len(tapes)


@pytest.mark.parametrize("decoder", ["sjd_coupled", "maximal", "mtj", pytest.param("ar", marks=pytest.mark.long)])
def test_a_repeated_pass_makes_the_tokens_of_passes_that_run(begin, decoder):
    repeated, expected, n_tapes = decode_by_tapes(begin, decoder, static=False)
    assert n_tapes == 1
    for name in ("tokens", "step", "nfe", "nodes", "kept"):
        assert torch.equal(getattr(repeated, name), getattr(expected, name)), name
    assert repeated.passes == expected.passes


@pytest.mark.parametrize("decoder", ["sjd_coupled", "mtj", pytest.param("ar", marks=pytest.mark.long)])
def test_passes_attend_to_the_slots_that_are_written(begin, monkeypatch, decoder):
    monkeypatch.setattr(captured, "REACHES", (40, 56))
    repeated, expected, n_tapes = decode_by_tapes(begin, decoder)
    assert n_tapes > 1
    for name in ("tokens", "step", "nodes"):
        assert torch.equal(getattr(repeated, name), getattr(expected, name)), name


def test_a_pass_that_attends_to_too_few_slots_is_noticed(begin, monkeypatch):
    monkeypatch.setattr(captured, "choose_reach", lambda positions, length: 16)
    repeated, expected, _ = decode_by_tapes(begin, "sjd_coupled")
    assert not torch.equal(repeated.tokens, expected.tokens)


@pytest.mark.long
def test_a_job_whose_passes_are_captured_has_the_same_shard(loaded, monkeypatch):
    """Calls of networks are counted, too; their seconds are not known."""
    monkeypatch.setattr(captured, "Captured", Tape)
    networks = loaded, replace(loaded, captured=True)
    shards = [decode_job(x, monkeypatch, "mtj", 2) for x in networks]
    for name in set(shards[0].columns) - {*TIMES, "first_seconds"}:
        assert np.array_equal(*(shard.columns[name] for shard in shards)), name
    assert [bool(np.isnan(shard.network_seconds).all()) for shard in shards] == [False, True]


class Again:
    """Stands for a recorded pass: `replay` runs it."""

    def __init__(self, run, beside):
        self.replay = run


@pytest.fixture
def aot(monkeypatch):
    """Compile without inductor, whose code for a CPU takes a minute to make."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))


@pytest.mark.parametrize("decoder", ["sjd_coupled", *(pytest.param(d, marks=pytest.mark.long) for d in ("ar", "mtj"))])
def test_a_pass_compiles_as_one_graph_for_each_reach(begin, monkeypatch, aot, capsys, decoder):
    monkeypatch.setattr(captured, "REACHES", (40,))
    expected = decode(*begin(decoder, TEXTS[:2]))
    for _ in range(2):  # the second batch has the graphs of the first
        model, passes = begin(decoder, TEXTS[:2])
        compiled = decode(model, run_captured(compile_passes(passes), Again))
        for name in ("tokens", "step", "nodes"):
            assert torch.equal(getattr(compiled, name), getattr(expected, name)), name
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 2
    assert "compile" not in capsys.readouterr().err


@pytest.mark.long
def test_a_job_whose_passes_are_compiled_whole_has_the_same_shard(loaded, monkeypatch, aot):
    """Calls of networks are counted, too."""
    shards = [decode_job(loaded, monkeypatch, "mtj", 2)]
    monkeypatch.setattr(type(loaded), "compiles_whole", True)
    shards.append(decode_job(loaded, monkeypatch, "mtj", 2))
    for name in set(shards[0].columns) - {*TIMES, "first_seconds"}:
        assert np.array_equal(*(shard.columns[name] for shard in shards)), name
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_a_pass_that_cannot_be_compiled_runs_as_it_is(begin, monkeypatch, capsys):
    def refuse(run, **_):
        def fail():
            raise torch._dynamo.exc.Unsupported("call of a function that is not known")

        return fail

    monkeypatch.setattr(torch, "compile", refuse)
    expected = decode(*begin("sjd_coupled", TEXTS[:1]))
    model, passes = begin("sjd_coupled", TEXTS[:1])
    assert torch.equal(decode(model, compile_passes(passes)).step, expected.step)
    assert capsys.readouterr().err.count("is not known") == 1


def fix_shapes(loaded, monkeypatch):
    """Let loaded networks decode with shapes fixed as on a GPU."""
    draw = loop.batch_noise

    def make_model(rows, sampling, queue=None):
        return fix_model(type(loaded).model(loaded, rows, sampling, queue), True)

    def make_noise(*given):
        noise = draw(*given)
        noise.array = False
        return noise

    monkeypatch.setattr(loaded, "model", make_model)
    monkeypatch.setattr(loop, "batch_noise", make_noise)


def decode_job(loaded, monkeypatch, method, batch):
    """Decode two rows by a method, `batch` of them at once, with shapes fixed as on a GPU, and return the shard."""
    fix_shapes(loaded, monkeypatch)
    spec = SPEC | {"method": method, "options": options("discrete", method, DECODERS[method][1])}
    return loop.decode("discrete", loaded, spec, encode_texts(TEXTS[:2], loaded.manifest), batch)


def test_what_cannot_be_captured_runs_as_it_is_and_the_log_says_why(begin, capsys):
    for steps in (iter(()), begin("sjd_coupled", TEXTS[:1], static=False)[1]):
        assert captured.capture("a method", steps) is steps
        assert "a method" in capsys.readouterr().err


def test_a_pass_that_cannot_be_recorded_runs_as_it_is(begin, capsys):
    def refuse(run, beside):
        raise RuntimeError("operation not permitted when stream is capturing")

    expected = decode(*begin("sjd_coupled", TEXTS[:1]))
    model, passes = begin("sjd_coupled", TEXTS[:1])
    assert torch.equal(decode(model, run_captured(passes, refuse)).step, expected.step)
    assert "not permitted" in capsys.readouterr().err


@pytest.mark.long
def test_rows_join_a_repeated_pass(begin):
    expected = decode(*begin("mtj", TEXTS, static=False))
    model, passes = begin("mtj", TEXTS[:2], TEXTS[2:])
    tapes = []

    def record(run, beside):
        tapes.append(Tape(run, beside))
        return tapes[-1]

    assert torch.equal(decode(model, run_captured(passes, record)).tokens, expected.tokens)
    assert len(tapes) == 1
