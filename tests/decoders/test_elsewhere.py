"""Every decoder on a simulated device (`tests.elsewhere`) draws the tokens of the CPU, with one read a pass."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from parity_decoders.distribution import TokenSampling
from parity_decoders.engine import Sampled
from parity_decoders.noise import Noise, counted_noise
from parity_decoders.protocols.continuous import Pair, Start, draw_order
from parity_decoders.steps import Step

from parity.decode import anysubset, continuous, discrete
from parity.experiment import options
from parity.models.anysubset.causal import Causal
from parity.models.anysubset.causal import build as gpt2
from parity.models.anysubset.xlnet import CachedXLNet
from parity.models.anysubset.xlnet import build as xlnet
from parity.models.continuous import gmm, mar, xar
from parity.models.continuous.diffusion import HeadSampling
from parity.models.discrete.llamagen import LlamaGenConfig, Transformer, embed_conditions, make_canvas, make_speculator
from parity.models.discrete.prompts import condition_networks
from tests.elsewhere import DEVICE, simulate_device, unwrap
from tests.tables import draw_prompts, import_decoder, make_text_model

ROWS = 3
SETUP = 2  # a decoder may read the host so often before its first pass, for the forced tokens
RECORD = {"discrete": discrete.record, "anysubset": anysubset.record, "continuous": continuous.record}
LLAMAGEN = LlamaGenConfig(vocab=16, dim=16, layers=2, heads=2, grid=3, prefix=3, caption_dim=4, multiple_of=16)
SHARED = {"classes": 6, "dim": 2, "width": 16, "heads": 2}
FAMILIES = {  # of vectors: module, network, its sampling and the deviation of its weights
    "mar": (
        mar, mar.MARNet(mar.MARConfig(**SHARED, grid=3, encoder=1, decoder=1, buffer=2, head_width=16, head_depth=1)),
        # a linear guidance differs in scale on a CPU if the last positions of all rows coincide
        HeadSampling(3, guidance=2.0, guidance_schedule="constant"), 0.1,
    ),
    "xar": (
        xar, xar.XARNet(xar.XARConfig(**SHARED, grid=4, cell=2, encoder=1, decoder=1)),
        HeadSampling(3, guidance=2.0), 0.1,
    ),
    "gmm": (gmm, gmm.GMMNet(gmm.GMMConfig(**SHARED, grid=2, blocks=1, components=2)), HeadSampling(), 0.3),
}  # fmt: skip


def randomize(net: Any, seed: int = 0, spread: float = 0.3) -> Any:
    """Draw all weights of a network, normal with deviation `spread`, and make it float64, in place; return it."""
    generator = torch.Generator().manual_seed(seed)
    for p in net.double().eval().parameters():
        p.data = spread * torch.randn(p.shape, generator=generator, dtype=torch.float64)
    return net


Put = Callable[[Any], Any]  # a function that moves tensors to a device, or leaves them


class Nets:
    """Small random networks of every kind, in float64."""

    def __init__(self) -> None:
        self.net, self.small = (randomize(Transformer(LLAMAGEN), seed) for seed in (0, 1))
        self.drafter = randomize(make_speculator("drafter", LLAMAGEN), 2)
        self.heads = randomize(make_speculator("heads", LLAMAGEN), 3)
        sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 16}
        self.gpt2 = randomize(gpt2({"vocab_size": 9, **sizes}))
        self.families = {
            name: [randomize(copy.deepcopy(net), seed, spread) for seed in (0, 1)]
            for name, (_, net, _, spread) in FAMILIES.items()
        }

    def list_networks(self) -> list[Any]:
        """List all networks but XLNet, which is built when it is asked for."""
        of_vectors = [net for two in self.families.values() for net in two]
        return [self.net, self.small, self.drafter, self.heads, self.gpt2, *of_vectors]

    def make_llamagen(self, put: Put) -> Sampled:
        """Make a guided image model of ROWS captions, with all speculators; `put` moves its inputs."""
        generator = torch.Generator().manual_seed(5)
        condition = put(torch.randn(ROWS, 3, 4, generator=generator, dtype=torch.float64))
        captions = torch.tensor([[True] * 3, [False, True, True], [False, False, True]])
        valid = put(captions)
        codes = torch.randn(16, 2, generator=generator, dtype=torch.float64)
        canvas = make_canvas(self.net, (put(torch.nn.functional.normalize(codes)), put(codes)))
        nets = {"net": self.net, "drafter": self.drafter, "draft": self.small, "heads": self.heads}
        model, speculators = condition_networks(nets, lambda net: embed_conditions(net, condition, valid, True), canvas)
        return Sampled(model, TokenSampling(guidance=1.8, top_k=12), speculators)

    def make_xlnet(self, put: Put) -> CachedXLNet:
        sizes = {"d_model": 16, "n_layer": 2, "n_head": 2, "d_inner": 32, "vocab_size": 9}
        return CachedXLNet(put(dict(randomize(xlnet(sizes), 3).state_dict())), sizes, 8)

    def make_pair(self, family: str, put: Put) -> Pair:
        """Make target and draft model of vectors of a family, for ROWS labels, which `put` moves."""
        module, _, sampling, _ = FAMILIES[family]
        labels = put(torch.arange(ROWS))
        return Pair(*(module.Model(net, labels, sampling) for net in self.families[family]))


def start_decoding(family: str, nets: Nets, put: Put, kind: str, method: str) -> tuple[Any, Any, Noise]:
    """Make a model of ROWS rows of a kind, where it starts, and its noise; `put` moves all to the device."""
    noise = counted_noise(1, range(ROWS))
    noise.keys = put(noise.keys)
    noise = Noise(noise.keys, noise.dtype)
    if kind == "discrete":
        return nets.make_llamagen(put), torch.zeros_like(noise.keys), noise
    if kind == "anysubset":
        shape = make_text_model(8, 2)
        shape.length = 5
        start = put(draw_prompts(shape, ROWS, 3, method))
        return Causal(nets.gpt2, 8, 0, True) if method == "gpt2" else nets.make_xlnet(put), start, noise
    pair = nets.make_pair(family, put)
    order = draw_order(noise, ROWS, pair.target.length, pair.target.raster)
    return pair, Start(order), noise


def record_reads(steps: Iterator[Any], device: Any, reads: list[list[str]]) -> Iterator[Any]:
    """Yield the steps and append to `reads` the lines of each that made the host wait for the device."""
    while True:
        n_reads = len(device.reads) if device else 0
        step = next(steps, None)
        reads.append(device.reads[n_reads:] if device else [])
        if step is None:
            return
        yield step


def decode_on(device: Any, family: str, nets: Nets, kind: str, method: Any, **method_options: Any) -> tuple[Any, list]:
    """Decode by a method on a device, or on the CPU if it is None; return the result and the reads of each step."""
    name = method if isinstance(method, str) else method.__name__
    put = device.put if device else lambda x: x
    model, start, noise = start_decoding(family, nets, put, kind, name)
    decode = import_decoder(kind, method) if isinstance(method, str) else method
    reads: list[list[str]] = []
    steps = record_reads(decode(model, start, noise=noise, **method_options), device, reads)
    return RECORD[kind](model, start, steps), reads


PASSES = {"assd": 2, "cspd": 3}  # passes of a step, where it has more than one: of drafts and of their verification
MODELS = {"discrete": ("network",), "anysubset": ("network",), "continuous": ("mar", "xar", "gmm")}
CASES = [(kind, family, method) for kind in MODELS for family in MODELS[kind] for method in options.methods(kind)]


@pytest.fixture
def nets() -> Nets:
    return Nets()


@pytest.mark.parametrize(("kind", "family", "method"), CASES)
def test_a_decoder_runs_on_another_device(kind, family, method, nets):
    method_options = options.cap_small(kind, method, options.options(kind, method, {}))
    method_options |= {"gamma": 2} if method == "cspd" else {}
    on_cpu, _ = decode_on(None, family, nets, kind, method, **method_options)
    with simulate_device() as device:
        for net in nets.list_networks():
            device.put(net)
        on_device, reads = decode_on(device, family, nets, kind, method, **method_options)
    if kind == "continuous":
        torch.testing.assert_close(unwrap(on_device.tokens), on_cpu.tokens, rtol=1e-9, atol=1e-9)
    else:
        assert torch.equal(unwrap(on_device.tokens), on_cpu.tokens)
    assert torch.equal(unwrap(on_device.step), on_cpu.step)
    if options.declaration(kind, method).TARGETS == "walks":
        return  # coupling draws by rejection, which reads values on the host: docs/explanation/heads.md
    for number, step_reads in enumerate(reads):
        assert len(step_reads) <= PASSES.get(method, 1) + (0 if number else SETUP), f"step {number}: {step_reads}"


def decode_with_two_reads(model: Any, start: Any, *, noise: Noise) -> Iterator[Step]:
    """Decode plainly, but read tokens on the host twice a pass: a fault that the test must find."""
    tokens = start
    for n in range(model.length):
        p = model.logits(tokens[:, None], torch.full_like(tokens[:, None], n - 1))[:, 0].softmax(-1)
        tokens = (p / noise.exponential("sample", torch.full_like(tokens, n), model.vocab)).argmax(-1)
        if tokens.max() > model.vocab or tokens.min().item() < 0:
            return
        yield Step(tokens[:, None], torch.ones_like(tokens), torch.full_like(tokens, n))


def decode_on_two_devices(model: Any, start: Any, *, noise: Noise) -> Iterator[Step]:
    """Draw one token with positions that stay on the CPU: a fault that the test must find."""
    p = model.logits(start[:, None], torch.full((len(start), 1), -1))[:, 0].softmax(-1)
    yield Step(p.argmax(-1)[:, None], torch.ones_like(start), torch.zeros_like(start))


def test_reads_and_two_devices_are_noticed_with_their_line(nets):
    with simulate_device() as device:
        for net in nets.list_networks():
            device.put(net)
        _, reads = decode_on(device, "network", nets, "discrete", decode_with_two_reads)
        assert all(len(step_reads) == 2 for step_reads in reads[1:-1])
        assert "test_elsewhere.py" in reads[1][0]
        with pytest.raises(AssertionError, match=r"two devices, at .*cache\.py"):
            decode_on(device, "network", nets, "discrete", decode_on_two_devices)
        x = torch.arange(3, device=DEVICE)
        for read in (lambda: x[x > 1], (x > 1).nonzero, x.tolist, x.cpu, lambda: bool(x[0])):
            n_reads = len(device.reads)
            read()
            assert len(device.reads) == n_reads + 1
        with pytest.raises(AssertionError, match="random numbers"):
            torch.rand(3, device=DEVICE)
        with pytest.raises(AssertionError, match="two devices"):
            x + torch.arange(3)
        assert (x + torch.tensor(1)).tolist() == [1, 2, 3]  # a tensor without dimensions may be on the CPU
