"""Every decoder on a CUDA device: the tokens of the CPU. Skipped where there is none, except for the steps of diffusion
heads, which run on pretended tensors."""

from pathlib import Path

import numpy as np
import pytest
import torch
from parity_decoders import captured, transformers
from parity_decoders.captured import run_captured
from parity_decoders.noise import counted_noise
from torch._subclasses.fake_tensor import FakeTensorMode

from decoders.tests.architectures import make_model
from parity.decode import loop
from parity.decode.discrete import record
from parity.experiment.options import KINDS, cap_small, declaration, methods, options
from parity.inputs.prompts import encode
from parity.models import fetch
from parity.models.continuous import diffusion, xar

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
# every method that the embedded models run; `gpt2` needs a network of its own
CASES = [(kind, method) for kind in KINDS for method in methods(kind) if method != "gpt2"]
V = 65_536  # tokens of a real vocabulary
TEXTS = ["a small red circle", "two large squares", "a blue ring"]


@pytest.fixture(scope="module")
def wide_cells(cells):
    """Cells of each kind; that of image tokens is on the 16x16 grid, which has a drafter and a draft model."""
    manifest = fetch.make_manifest("discrete", "discrete", {"family": "llamagen", "grid": 16}, Path())
    rows = {"ids": np.array(["0", "1", "2"]), "captions": np.array(TEXTS), **encode(manifest, TEXTS)}
    spec = cells["discrete"][0]
    return {**cells, "discrete": (spec, manifest, rows)}


def decode(cell, kind, method, device, at_once, fast=False, captured=False):
    """Decode three rows by a method at small options, in float64, `at_once` in a batch; return the shard's columns."""
    spec, manifest, rows = cell
    chosen = cap_small(kind, method, options(kind, method, {}))
    spec = {**spec, "method": method, "options": chosen, "dtype": "float64"}
    if rows is None:
        rows = {"ids": np.array([str(i) for i in range(3)])}
    loaded = loop.load(kind, manifest, spec, device, fast, captured)
    return loop.decode_batch(kind, loaded, spec, rows, at_once, (0, 3))


@needs_cuda
@pytest.mark.parametrize(("kind", "method"), CASES)
def test_tokens_on_cuda_are_those_of_the_cpu(wide_cells, kind, method):
    cpu = decode(wide_cells[kind], kind, method, "cpu", 3)
    cuda = decode(wide_cells[kind], kind, method, "cuda", 3)
    for name, column in cpu.items():
        if name == "tokens":
            np.testing.assert_allclose(cuda[name], column, rtol=1e-6, atol=1e-6)
        elif column.dtype.kind in "iub":  # columns of counts and steps are exactly equal
            np.testing.assert_array_equal(cuda[name], column, err_msg=name)


@needs_cuda
@pytest.mark.parametrize(
    ("method", "fast"),
    [
        ("ar", False),
        ("sjd_coupled", False),
        ("mtj", False),
        pytest.param("sjd_coupled", True, marks=pytest.mark.long),
        pytest.param("mtj", True, marks=pytest.mark.long),
    ],
)
def test_captured_passes_have_the_steps_of_the_cpu(wide_cells, method, fast, monkeypatch, capsys):
    monkeypatch.setattr(captured, "REACHES", (96, 160))
    spec, manifest, rows = wide_cells["discrete"]
    chosen = options("discrete", method, {})
    spec = {**spec, "method": method, "options": chosen, "dtype": "float64"}
    decoded = {}
    for device, run in (("cpu", iter), ("cuda", run_captured)):
        loaded = loop.load("discrete", manifest, spec, device, fast and device == "cuda")
        model, start, steps = loop.start_decoding("discrete", loaded, spec)(rows, loop.noise_of(rows, loaded, spec))
        decoded[device] = record(model, start, run(steps))
    assert torch.equal(decoded["cuda"].tokens.cpu(), decoded["cpu"].tokens)
    assert torch.equal(decoded["cuda"].step.cpu(), decoded["cpu"].step)
    assert "compile:" not in (log := capsys.readouterr().err) and "capture:" not in log


@needs_cuda
@pytest.mark.parametrize("method", [m for m in methods("discrete") if m != "gpt2"])
def test_a_job_whose_passes_are_captured_has_the_same_columns(wide_cells, method):
    """A third row joins the batch of two, whose captures are made anew; what cannot be captured runs as it is."""
    at_once = 2 if declaration("discrete", method).REFILLS else 3
    cell = wide_cells["discrete"]
    cuda, graphs = (decode(cell, "discrete", method, "cuda", at_once, captured=c) for c in (False, True))
    for name in set(cuda) - {"seconds", "first_seconds"}:
        np.testing.assert_array_equal(graphs[name], cuda[name], err_msg=name)


@needs_cuda
@pytest.mark.parametrize("method", ["ar", "sjd_coupled", "mtj"])
@pytest.mark.parametrize("flags", [{"capture": True}, {"compile": True}, {"compile": True, "capture": True}])
def test_passes_inside_generate_have_the_tokens_of_the_cpu(method, flags, monkeypatch, capsys):
    monkeypatch.setattr(captured, "REACHES", (12, 28))
    model, ids = make_model("llama").double(), torch.tensor([[3, 4, 5, 7]])
    keywords = {"do_sample": True, "top_k": 0, "max_new_tokens": 40, "eos_token_id": None, "pad_token_id": 0, "seed": 3}
    keywords["custom_generate"] = getattr(transformers, method)
    expected = model.generate(ids, **keywords)
    assert torch.equal(model.cuda().generate(ids.cuda(), **keywords, **flags).cpu(), expected)
    assert "compile:" not in (log := capsys.readouterr().err) and "capture:" not in log


@needs_cuda
@pytest.mark.long
@pytest.mark.parametrize("method", ["ar", "sjd", "mtj", "eagle"])
def test_compiled_passes_change_no_token(wide_cells, method):
    eager = decode(wide_cells["discrete"], "discrete", method, "cuda", 3)
    fast = decode(wide_cells["discrete"], "discrete", method, "cuda", 3, fast=True)
    assert np.array_equal(eager["tokens"], fast["tokens"])


@needs_cuda
@pytest.mark.parametrize("method", ["sjd", "mtj"])
def test_a_row_that_joins_a_batch_on_cuda_has_its_tokens(wide_cells, method):
    together = decode(wide_cells["discrete"], "discrete", method, "cuda", 3)
    joined = decode(wide_cells["discrete"], "discrete", method, "cuda", 2)
    assert np.array_equal(together["tokens"], joined["tokens"])


def draw(noise, convert):
    """Draw numbers of a real vocabulary, [2, 3, 65536], from words as `convert` makes them of centred numbers."""
    return noise._draw("sample", torch.tensor([[0, 7, -1]], device=noise.keys.device), V, noise.dtype, convert)


@needs_cuda
@pytest.mark.long
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_noise_on_cuda_is_that_of_the_cpu(dtype):
    """Words are equal, so are uniforms; logarithms, compiled or not, up to the last bits."""
    cpu, cuda, fused = (counted_noise(3, range(2), dtype, device) for device in ("cpu", "cuda", "cuda"))
    assert torch.equal(draw(cuda, lambda x: x).cpu(), draw(cpu, lambda x: x))
    index = torch.arange(V)[None]
    assert torch.equal(cuda.uniform("accept", index.cuda()).cpu(), cpu.uniform("accept", index))
    index = torch.tensor([[0, 7, -1]])
    expected = cpu.exponential("sample", index, V)
    close = {"rtol": 4 * torch.finfo(dtype).eps, "atol": 0}
    torch.testing.assert_close(cuda.exponential("sample", index.cuda(), V).cpu(), expected, **close)
    compiled = torch.compile(fused.exponential, dynamic=False)("sample", index.cuda(), V)  # with its counters
    torch.testing.assert_close(compiled.cpu(), expected, **close)


@pytest.mark.parametrize("family", ["mar", "xar"])
def test_a_step_of_a_head_is_of_its_predictions_device(family):
    """Coefficients of one step are scalars of the CPU: as wide tensors they could not meet those of a GPU."""
    sampling = diffusion.HeadSampling(5)
    steps = {"mar": diffusion.Steps(None, sampling, None), "xar": xar.Flow(None, sampling, 4, None)}[family]
    width = {"mar": 6, "xar": 3}[family]  # a head's outputs for tokens of 3 numbers: MAR's gives variances, too
    steps.gaussian(2, torch.zeros(4, width))  # schedules are cached for all tests: made here, they are not pretended
    with FakeTensorMode(allow_non_fake_inputs=True):
        x = torch.zeros(4, 3, device="cuda")
        step = steps.gaussian(2, torch.zeros(4, width, device="cuda"))
        assert (step.mean(x) + step.std * x).device.type == "cuda"
