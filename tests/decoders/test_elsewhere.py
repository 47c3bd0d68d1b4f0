"""Every decoder on a device that is not there (`tests.elsewhere`): the tokens of the CPU, no op of two devices, and at
most one read of the host a pass."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from parity_decoders.noise import Noise, counted_noise
from parity_decoders.protocols.continuous import Pair, Start, draw_order
from parity_decoders.sampling import Sampled, TokenSampling
from parity_decoders.steps import Step

from parity.decode import anysubset, continuous, discrete
from parity.experiment import options
from parity.models.anysubset.causal import Causal
from parity.models.anysubset.causal import build as gpt2
from parity.models.anysubset.xlnet import CachedXLNet
from parity.models.continuous import gmm, mar, xar
from parity.models.continuous.diffusion import HeadSampling
from parity.models.discrete.cached import EagleDrafter
from parity.models.discrete.llamagen import FeatureDrafter, LlamaGen, LlamaGenConfig, Transformer
from tests.elsewhere import DEVICE, simulate_device, unwrap
from tests.tables import draw_prompts, import_decoder, make_text_model

ROWS = 3
SETUP = 2  # reads before the first pass: what the grammar forces
RECORD = {"discrete": discrete.record, "anysubset": anysubset.record, "continuous": continuous.record}
LLAMAGEN = LlamaGenConfig(vocab=16, dim=16, layers=2, heads=2, grid=3, prefix=3, caption_dim=4, multiple_of=16)
MAR = mar.MARConfig(
    classes=6, grid=3, dim=2, width=16, encoder=1, decoder=1, heads=2, buffer=2, head_width=16, head_depth=1
)
XAR = xar.XARConfig(classes=6, grid=4, cell=2, dim=2, width=16, encoder=1, decoder=1, heads=2)
GMM = gmm.GMMConfig(classes=6, grid=2, dim=2, width=16, blocks=1, heads=2, components=2)


def random(net: Any, seed: int = 0, spread: float = 0.3) -> Any:
    """A network in float64, its weights random."""
    generator = torch.Generator().manual_seed(seed)
    for p in net.double().eval().parameters():
        p.data = spread * torch.randn(p.shape, generator=generator, dtype=torch.float64)
    return net


Put = Callable[[Any], Any]  # moves tensors to a device, or leaves them


@dataclass
class Nets:
    """Small random networks of every kind."""

    def __post_init__(self) -> None:
        self.net, self.small = random(Transformer(LLAMAGEN)), random(Transformer(LLAMAGEN), 1)
        self.drafter = random(FeatureDrafter(LLAMAGEN), 2)
        self.families = {
            "mar": [random(mar.MARNet(MAR), s, 0.1) for s in (0, 1)],
            "xar": [random(xar.XARNet(XAR), s, 0.1) for s in (0, 1)],
            "gmm": [random(gmm.GMMNet(GMM), s) for s in (0, 1)],
        }
        sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 16}
        self.gpt2 = random(gpt2({"vocab_size": 9, **sizes}))
        self.xlnet = {"d_model": 16, "n_layer": 2, "n_head": 2, "d_inner": 32, "vocab_size": 9}

    def everything(self) -> list[Any]:
        return [self.net, self.small, self.drafter, self.gpt2, *(n for two in self.families.values() for n in two)]

    def llamagen(self, put: Put) -> Sampled:
        generator = torch.Generator().manual_seed(5)
        condition = put(torch.randn(ROWS, 3, 4, generator=generator, dtype=torch.float64))
        captions = torch.tensor([[True] * 3, [False, True, True], [False, False, True]])
        valid = put(captions)
        model = LlamaGen(self.net, condition, valid, True)
        codes = torch.randn(16, 2, generator=generator, dtype=torch.float64)
        model.raw_codebook, model.codebook = put(codes), put(torch.nn.functional.normalize(codes))
        model.drafter = EagleDrafter(self.drafter, model)
        model.draft = LlamaGen(self.small, condition, valid, True, returns=True)
        return Sampled(model, TokenSampling(guidance=1.8, top_k=12))

    def cached_xlnet(self, put: Put) -> CachedXLNet:
        from parity.models.anysubset.xlnet import build

        weights = random(build(self.xlnet), 3).state_dict()
        return CachedXLNet(put(dict(weights)), self.xlnet, 8)

    def pair(self, family: str, put: Put) -> Pair:
        module = {"mar": mar, "xar": xar, "gmm": gmm}[family]
        labels = put(torch.arange(ROWS))
        return Pair(*(module.Model(net, labels, SAMPLING[family]) for net in self.families[family]))


# mar: a linear scale is another on a CPU where the last places of all rows fall together
SAMPLING = {
    "mar": HeadSampling(3, guidance=2.0, guidance_schedule="constant"),
    "xar": HeadSampling(3, guidance=2.0),
    "gmm": HeadSampling(),
}


def begin(model: str, nets: Nets, put: Put, kind: str, method: str) -> tuple[Any, Any, Noise]:
    """A model, where it starts, and the noise of three rows."""
    noise = counted_noise(1, range(ROWS))
    noise.keys = put(noise.keys)
    noise = Noise(noise.keys, noise.dtype)
    if kind == "discrete":
        return nets.llamagen(put), torch.zeros_like(noise.keys), noise
    if kind == "anysubset":
        shape = make_text_model(8, 2)
        shape.length = 5
        start = put(draw_prompts(shape, ROWS, 3, method))
        made = Causal(nets.gpt2, 8, 0, True) if method == "gpt2" else nets.cached_xlnet(put)
        return made, start, noise
    pair = nets.pair(model, put)
    order = draw_order(noise, ROWS, pair.target.length, pair.target.raster)
    return pair, Start(order), noise


def noted(steps: Iterator[Any], device: Any, looks: list[list[str]]) -> Iterator[Any]:
    """The steps; in `looks` the reads of each."""
    while True:
        before = len(device.reads) if device else 0
        step = next(steps, None)
        looks.append(device.reads[before:] if device else [])
        if step is None:
            return
        yield step


def run(model: str, nets: Nets, kind: str, method: Any, given: dict[str, Any], device: Any = None) -> tuple[Any, list]:
    name, looks = method if isinstance(method, str) else method.__name__, []
    made, start, noise = begin(model, nets, device.put if device else lambda x: x, kind, name)
    decode = import_decoder(kind, method) if isinstance(method, str) else method
    return RECORD[kind](made, start, noted(decode(made, start, noise=noise, **given), device, looks)), looks


PASSES = {"assd": 2, "cspd": 3}  # of a step, where they are not one: drafts and their verification
MODELS = {"discrete": ("network",), "anysubset": ("network",), "continuous": ("mar", "xar", "gmm")}
CASES = [(kind, model, method) for kind in MODELS for model in MODELS[kind] for method in options.methods(kind)]


@pytest.fixture
def nets() -> Nets:
    return Nets()


@pytest.mark.parametrize(("kind", "model", "method"), CASES)
def test_a_decoder_elsewhere(kind, model, method, nets):
    given = options.cap_small(kind, method, options.options(kind, method, {}))
    given |= {"gamma": 2} if method == "cspd" else {}
    here, _ = run(model, nets, kind, method, given)
    with simulate_device() as device:
        for net in nets.everything():
            device.put(net)
        there, looks = run(model, nets, kind, method, given, device)
    if kind == "continuous":
        torch.testing.assert_close(unwrap(there.tokens), here.tokens, rtol=1e-9, atol=1e-9)
    else:
        assert torch.equal(unwrap(there.tokens), here.tokens)
    assert torch.equal(unwrap(there.step), here.step)
    if options.declaration(kind, method).TARGETS == "walks":
        return  # its coupling draws by rejection, and asks the host whether it must: docs/explanation/heads.md
    for number, reads in enumerate(looks):
        assert len(reads) <= PASSES.get(method, 1) + (0 if number else SETUP), f"step {number}: {reads}"


def asks_twice(model: Any, start: Any, *, noise: Noise) -> Iterator[Step]:
    """Plain decoding that looks at its tokens."""
    last = start
    for n in range(model.length):
        p = model.logits(last[:, None], torch.full_like(last[:, None], n - 1))[:, 0].softmax(-1)
        last = (p / noise.exponential("sample", torch.full_like(last, n), model.vocab)).argmax(-1)
        if last.max() > model.vocab or last.min().item() < 0:
            return
        yield Step(last[:, None], torch.ones_like(last), torch.full_like(last, n))


def forgets_the_device(model: Any, start: Any, *, noise: Noise) -> Iterator[Step]:
    """Plain decoding with positions on the CPU."""
    p = model.logits(start[:, None], torch.full((len(start), 1), -1))[:, 0].softmax(-1)
    yield Step(p.argmax(-1)[:, None], torch.ones_like(start), torch.zeros_like(start))


def test_what_a_gpu_would_wait_for_or_refuse_is_noticed_with_its_place(nets):
    with simulate_device() as device:
        for net in nets.everything():
            device.put(net)
        _, looks = run("network", nets, "discrete", asks_twice, {}, device)
        assert all(len(reads) == 2 for reads in looks[1:-1])
        assert "test_elsewhere.py" in looks[1][0]
        with pytest.raises(AssertionError, match=r"two devices, at .*cached\.py"):
            run("network", nets, "discrete", forgets_the_device, {}, device)
        x = torch.arange(3, device=DEVICE)
        for ask in (lambda: x[x > 1], (x > 1).nonzero, x.tolist, x.cpu, lambda: bool(x[0])):
            before = len(device.reads)
            ask()
            assert len(device.reads) == before + 1
        with pytest.raises(AssertionError, match="random numbers"):
            torch.rand(3, device=DEVICE)
        with pytest.raises(AssertionError, match="two devices"):
            x + torch.arange(3)
        assert (x + torch.tensor(1)).tolist() == [1, 2, 3]  # a number may stand on the CPU
