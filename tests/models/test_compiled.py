"""Compiled passes compute what eager ones do, in batches that shrink as rows are done."""

import numpy as np
import pytest
import torch
from parity_decoders.compiling import CompiledPass
from parity_decoders.engine import Network

from parity.decode import loop
from parity.experiment.options import options
from parity.inputs.prompts import encode
from parity.models import fetch


@pytest.mark.parametrize("method", ["sjd_coupled", "mtj"])
def test_compiled_passes_draw_the_same_tokens(monkeypatch, tmp_path, method):
    """In float64, where near ties of two tokens are far rarer than bits that compiling changes. A pass of `mtj` is over
    a tree."""
    texts = ["a small red circle", "two large squares", "a green star above a blue ring"]
    manifest = fetch.make_manifest("discrete", "scenes", {"family": "llamagen", "grid": 8}, tmp_path)
    rows = {"ids": np.array(texts), "captions": np.array(texts), **encode(manifest, texts)}
    spec = {"method": method, "options": options("discrete", method, {"window": 5}), "seed": 0}
    spec |= {"sampling": {"guidance": 1.8, "temperature": 1.0, "top_k": 0, "top_p": 1.0}, "dtype": "float64"}
    real = torch.compile
    prepare = Network.prepare
    batches = []

    def trace(function, *, options, **settings):
        """Trace as torch.compile does, without minutes of a C++ compiler."""
        return real(function, backend="eager", options=options, **settings)

    def record_batch(self, inputs, slots, *arguments):
        """Prepare a pass, and note the number of rows."""
        batches.append(len(slots))
        return prepare(self, inputs, slots, *arguments)

    monkeypatch.setattr(Network, "prepare", record_batch)
    monkeypatch.setattr(torch, "compile", trace)
    loaded = (loop.load("discrete", manifest, spec, fast=fast) for fast in (False, True))
    eager, fast = (loop.decode("discrete", networks, spec, rows, 3) for networks in loaded)
    assert (eager.tokens == fast.tokens).all()
    assert (eager.nfe == fast.nfe).all()
    assert min(batches) < 6 == max(batches)  # three rows are six with guidance; finished ones were removed
    assert 0 < torch._dynamo.utils.counters["stats"]["unique_graphs"] < 6  # there are fewer graphs than batch sizes


@pytest.mark.long
def test_each_network_computes_with_its_own_weights():
    """A compiled pass holds its network's weights as constants, folded in for wide inputs."""

    def forward(net, x):
        return net(x)

    nets = [torch.nn.Linear(8, 8) for _ in range(2)]
    passes = [CompiledPass(forward, "cpu") for _ in nets]
    with torch.inference_mode():
        for rows in (64, 2):  # both networks share one graph at each size
            x = torch.randn(1, rows, 8)
            for net, run in zip(nets, passes, strict=True):
                torch.testing.assert_close(run(net, x), net(x))
