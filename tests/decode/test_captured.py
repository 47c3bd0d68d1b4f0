"""A pass that is recorded once and repeated makes the tokens of passes that run, and so does one that is compiled. A
CPU has no graphs, so a tape stands for one: the calls of a pass, made again on the same tensors."""

from pathlib import Path

import numpy as np
import pytest
import torch
from parity_decoders import captured, verification
from parity_decoders.captured import run_captured
from parity_decoders.discrete import ar, mtj, sjd_coupled

from decoders.tests.tape import Tape
from parity.base.row_noise import batch_noise
from parity.decode import loop
from parity.inputs.prompts import encode
from parity.models import fetch

TEXTS = ["a small red circle", "two large squares"]
DECODERS = {
    "ar": (ar.ar, {}),
    "sjd_coupled": (sjd_coupled.sjd_coupled, {"window": 16}),
    "mtj": (mtj.mtj, {"window": 8, "branches": 12, "depth": 4}),
}
SAMPLING = {"guidance": 1.8, "temperature": 1.0, "top_k": 0, "top_p": 1.0}
SPEC = {"method": "ar", "options": {}, "sampling": SAMPLING, "seed": 0, "dtype": "float64"}


def fix_model(model, static):
    """Let a model decode with shapes fixed as on a GPU."""
    model.static = model.network.cache.static = static
    for speculator in (model.speculators or {}).values():
        if hasattr(speculator, "cache"):
            speculator.cache.static = static
    return model


@pytest.fixture
def begin(monkeypatch):
    """A function that starts a decoder on the embedded model as on a GPU, with fixed shapes, and without numpy, whose
    calls no tape would hold."""
    for module in (verification, mtj):
        monkeypatch.setattr(module, "find_largest", lambda x: x.argmax(-1))
    manifest = fetch.make_manifest("discrete", "discrete", {"family": "llamagen", "grid": 8}, Path())
    loaded = loop.load("discrete", manifest, SPEC)

    def start(decoder, texts, static=True):
        noise = batch_noise(0, texts, dtype=torch.float64)
        noise.array = not static
        rows = {"ids": np.array(texts), "captions": np.array(texts), **encode(manifest, texts)}
        model = fix_model(loaded.model(rows, SAMPLING), static)
        function, options = DECODERS[decoder]
        return model, function(model, torch.zeros_like(noise.keys), noise=noise, **options)

    return start


def decode(model, steps):
    start = torch.zeros(len(model.network.last) // 2, dtype=torch.int64)
    return loop.import_kind("discrete").record(model, start, steps)


def decode_by_tapes(begin, decoder):
    """Decode by tapes; return what was decoded, what passes that run decode, and the number of tapes."""
    expected = decode(*begin(decoder, TEXTS))
    model, passes = begin(decoder, TEXTS)
    tapes = []

    def record(run, beside):
        tapes.append(Tape(run, beside))
        return tapes[-1]

    return decode(model, run_captured(passes, record)), expected, len(tapes)


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
