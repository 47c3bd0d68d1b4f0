"""One distribution is made of the experiment's settings and of transformers' processors: what transformers computes."""

import random
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from decoders.tests.architectures import make_model
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import LogitsProcessorList
from transformers.generation import (
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    UnbatchedClassifierFreeGuidanceLogitsProcessor,
)

from parity_decoders import transformers as decoders
from parity_decoders.distribution import (
    Distribution,
    Guidance,
    Temperature,
    TokenSampling,
    TopK,
    TopP,
    make_distribution,
)
from parity_decoders.grammar import ImageGrammar
from parity_decoders.processors import read_processors

ROWS, SLOTS, PROMPT = 2, 4, 3
POSITIONS = torch.arange(-1, SLOTS - 1).expand(ROWS, -1)


class Unconditional:
    """A model that answers with given logits [B, V], slot by slot."""

    def __init__(self, logits):
        self.slots = iter(logits.unbind(1))

    def __call__(self, *_, **__):
        return SimpleNamespace(logits=next(self.slots)[:, None], get=lambda *_: None)


def draw_logits(vocab, seed, guided, dtype=torch.float32):
    """Draw logits [B, S, V], or [2B, S, V]."""
    rows = ROWS * (2 if guided else 1)
    return (3 * torch.randn(rows, SLOTS, vocab, generator=torch.manual_seed(seed))).to(dtype)


def draw_settings(vocab, seed):
    """Draw sampling settings, and forced tokens [S] of which some are -1."""
    rng = random.Random(seed)
    guidance, temperature = rng.choice([1.0, rng.uniform(1, 5)]), rng.choice([1.0, rng.uniform(0.3, 2)])
    top_k, top_p = rng.choice([0, rng.randint(1, vocab)]), rng.choice([1.0, rng.uniform(0.1, 1)])
    sampling = TokenSampling(guidance, temperature, top_k, top_p)
    return sampling, torch.tensor([rng.choice([-1, -1, rng.randrange(vocab)]) for _ in range(SLOTS)])


def list_processors(sampling, forced, logits):
    """List the processors of transformers that `generate` has for these settings, in its order."""
    unconditional = Unconditional(logits[ROWS:])
    listed = [ImageGrammar(forced, torch.arange(logits.shape[-1]), 1, PROMPT)]
    if sampling.guidance != 1:
        listed.insert(0, UnbatchedClassifierFreeGuidanceLogitsProcessor(sampling.guidance, unconditional))
    if sampling.temperature != 1:
        listed.append(TemperatureLogitsWarper(sampling.temperature))
    if sampling.top_k:
        listed.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1:
        listed.append(TopPLogitsWarper(sampling.top_p))
    return LogitsProcessorList(listed)


def ask_transformers(processors, logits):
    """Return the scores [B, S, V] that processors give slot by slot, as in `generate`."""
    slots = [
        processors(torch.zeros(ROWS, PROMPT + s, dtype=torch.long), logits[:ROWS, s].float()) for s in range(SLOTS)
    ]
    return torch.stack(slots, 1)


@pytest.mark.parametrize("vocab", [2, 7, 50, 3000])
def test_settings_and_processors_make_one_distribution(vocab):
    """Must fail: a higher temperature, where it leaves more than one token."""
    differ = 0
    for seed in range(40):
        sampling, forced = draw_settings(vocab, seed)
        logits = draw_logits(vocab, seed, sampling.guidance != 1)
        processors = list_processors(sampling, forced, logits)
        truth = ask_transformers(processors, logits).softmax(-1)
        found = make_distribution(sampling, forced).apply(logits, POSITIONS)
        in_generate = read_processors(processors, greedy=False).apply(logits, POSITIONS)
        torch.testing.assert_close(in_generate.softmax(-1), truth, rtol=1e-5, atol=1e-7)
        torch.testing.assert_close(found.softmax(-1), truth, rtol=1e-4, atol=1e-6)
        warmer = replace(sampling, temperature=1.5 * sampling.temperature)
        changed = make_distribution(warmer, forced).apply(logits, POSITIONS)
        differ += not torch.allclose(changed.softmax(-1), truth, atol=1e-3)
    assert differ > 10


@pytest.mark.parametrize("seed", range(5))
def test_the_order_of_top_p_and_temperature_matters_and_of_top_k_does_not(seed):
    logits, cooled = draw_logits(50, seed, False), Temperature(0.5)

    def compute(*stages):
        return Distribution(None, stages).apply(logits).softmax(-1)

    assert torch.equal(compute(cooled, TopK(5)), compute(TopK(5), cooled))
    assert not torch.allclose(compute(cooled, TopP(0.8)), compute(TopP(0.8), cooled), atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_scores_have_the_numbers_of_generate_or_the_precision_of_the_model(dtype):
    """Inside `generate` they are float32, guided as there to the last bit, which the form of logits is not."""
    logits = draw_logits(50, 0, True, dtype)
    processors = list_processors(TokenSampling(guidance=2.5), torch.tensor([-1]), logits)
    truth = ask_transformers(processors, logits).float()
    found = read_processors(processors, greedy=False).apply(logits, POSITIONS)
    assert found.dtype is torch.float32 and torch.equal(found, truth)
    by_logits = make_distribution(TokenSampling(guidance=2.5)).apply(logits, POSITIONS)
    assert by_logits.dtype is (dtype if dtype.itemsize > 4 else torch.float32)
    assert not torch.equal(by_logits.float(), truth)


@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_a_processor_of_guidance_is_that_of_generate_at_any_scale(scale):
    """At 1, too, where `generate` makes none by itself: it has unconditional rows, which change nothing. Must fail: at
    3 they do."""
    model, ids = make_model("llama"), torch.tensor([[5, 7, 17, 9], [3, 33, 9, 31]])
    settings = {"do_sample": False, "max_new_tokens": 8, "attention_mask": torch.ones_like(ids), "pad_token_id": 0}

    def decode(*processors, **more):
        return model.generate(ids, logits_processor=LogitsProcessorList(processors), **settings, **more)

    def guide():
        return UnbatchedClassifierFreeGuidanceLogitsProcessor(scale, model)

    found = decode(guide(), custom_generate=decoders.sjd)
    assert torch.equal(found, decode(guide()))
    assert torch.equal(found, decode()) == (scale == 1)


class Calls(TorchDispatchMode):
    """The calls of torch, by name."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, call, types, args=(), kwargs=None):
        self.names.append(str(call))
        return call(*args, **(kwargs or {}))


def test_stages_that_do_nothing_make_no_call():
    """And guidance of logits makes one, beside views, which that of log-probabilities does not."""
    plain, forced = draw_logits(50, 0, False), torch.full((SLOTS,), -1)
    distribution = make_distribution(TokenSampling(), forced)
    with Calls() as calls:
        assert distribution.apply(plain, POSITIONS) is plain
    assert calls.names == []
    counts = []
    for form in ("logits", "log_probabilities"):
        with Calls() as calls:
            Distribution(Guidance(2.0, form=form), ()).apply(draw_logits(50, 0, True), POSITIONS)
        counts.append(len([name for name in calls.names if not name.startswith(("aten.split", "aten.randn"))]))
    assert counts[0] < counts[1]


@pytest.mark.parametrize("build", ["settings", "processors"])
def test_all_stages_compile_as_one_graph(build):
    torch._dynamo.reset()
    sampling, forced = TokenSampling(2.0, 0.7, 20, 0.9), torch.tensor([-1, 3, -1, 4])
    logits = draw_logits(50, 0, True)
    distribution = make_distribution(sampling, forced)
    if build == "processors":
        distribution = read_processors(list_processors(sampling, forced, logits), greedy=True)
    graphs = []

    def count(graph, _):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(distribution.apply, backend=count, fullgraph=True, dynamic=False)
    assert torch.equal(compiled(logits, POSITIONS), distribution.apply(logits, POSITIONS))
    assert len(graphs) == 1
