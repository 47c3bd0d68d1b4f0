"""Passes inside `generate` that are captured or compiled make the tokens of passes that run. A tape stands for a CUDA
graph, which a CPU does not have."""

from functools import cache as remember
from functools import partial

import pytest
import torch
from decoders.tests.architectures import CONFIGURATIONS, make_model
from decoders.tests.image_models import Chameleon, Emu3, GlmImage, ImageGPT, Janus
from decoders.tests.tape import Calls, Tape

from parity_decoders import cache, captured, verification
from parity_decoders import transformers as decoders
from parity_decoders.discrete import mtj
from parity_decoders.errors import DecodingError

IDS = torch.tensor([[0, 0, 5, 6], [3, 4, 5, 7]])
SAMPLE = {"attention_mask": (IDS != 0).long(), "do_sample": True, "pad_token_id": 0, "seed": 3, "top_k": 0}
METHODS = [method for method in decoders.METHODS if method not in ("pjd", "zipar")]  # these have no passes that repeat


def make_exact(architecture):
    """Make a network in float64, where a sum over more slots changes no token; in float32 where experts allow no
    other."""
    model = make_model(architecture)
    return model if architecture in ("mixtral", "gpt_oss") else model.double()


@pytest.fixture(scope="module")
def models():
    """A network, and a smaller one that drafts."""
    return make_exact("llama"), make_exact("gpt2")


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """Capture on a CPU by tapes, without numpy, whose calls they do not hold."""
    monkeypatch.setattr(decoders, "CAPTURING", ("cpu",))
    monkeypatch.setattr(captured, "Captured", Tape)
    for module in (verification, mtj):
        monkeypatch.setattr(module, "find_largest", lambda x: x.argmax(-1))
    for method in decoders.METHODS:
        module = __import__(f"parity_decoders.discrete.{method}", fromlist=["is_idle_on_cpu"])
        for place in (verification, module):
            if hasattr(place, "is_idle_on_cpu"):
                monkeypatch.setattr(place, "is_idle_on_cpu", lambda rows: False)


def decode(model, method, draft=None, **options):
    """Generate 40 tokens after two prompts by a method; return them and what they cost."""
    if method in decoders.DRAFTED:
        options["draft_model"] = draft
    options = SAMPLE | {"max_new_tokens": 40, "eos_token_id": None, "return_dict_in_generate": True} | options
    return model.generate(IDS, custom_generate=getattr(decoders, method), **options)


def assert_same(found, expected):
    """Assert that tokens, passes and nodes of two calls are equal."""
    for name in ("sequences", "passes", "nodes"):
        assert torch.equal(found[name], expected[name]), name


REQUESTS = {
    "plain": {},
    "filters": {"temperature": 0.8, "top_k": 12, "min_p": 0.01},
    "guidance": {"guidance_scale": 2.0, "negative_prompt_ids": torch.tensor([[8, 9], [9, 8]])},
    "greedy": {"do_sample": False, "top_k": None},
    "end": {"eos_token_id": [7, 9]},
}


@pytest.mark.parametrize("method", METHODS)
def test_captured_passes_make_the_same_tokens(models, as_on_a_gpu, monkeypatch, method, capsys):
    """Their number of slots grows twice."""
    expected = decode(models[0], method, models[1])
    monkeypatch.setattr(captured, "REACHES", (12, 28))
    assert_same(decode(models[0], method, models[1], capture=True), expected)
    assert "capture" not in capsys.readouterr().err


@pytest.mark.parametrize("request_name", REQUESTS)
@pytest.mark.parametrize("method", ["sjd_coupled", "mtj"])
def test_captured_passes_have_the_distribution_of_a_request(models, as_on_a_gpu, method, request_name):
    options = REQUESTS[request_name]
    assert_same(decode(models[0], method, capture=True, **options), decode(models[0], method, **options))


@pytest.fixture
def recorded(as_on_a_gpu, monkeypatch):
    """The calls of passes that were recorded, by name."""
    calls = []

    class Noted(Tape):
        def __init__(self, *given):
            super().__init__(*given)
            calls.extend(str(call) for call, *_ in self.calls.made)

    monkeypatch.setattr(captured, "Captured", Noted)
    monkeypatch.setitem(cache.MULTIPLES, "cpu", 16)
    return calls


def assert_nothing_is_read_back(calls):
    """Assert that passes were recorded, and that no call of theirs reads a number back."""
    assert calls
    assert not {call for call in calls if "_local_scalar" in call or "nonzero" in call}


@pytest.mark.parametrize("architecture", CONFIGURATIONS)
@pytest.mark.parametrize("method", ["sjd_coupled", pytest.param("mtj", marks=pytest.mark.long)])
def test_passes_of_every_architecture_read_nothing_back(recorded, architecture, method):
    """A graph cannot: it would end, or hold a number of the pass that was recorded."""
    model = make_exact(architecture)
    assert_same(decode(model, method, capture=True), decode(model, method))
    assert_nothing_is_read_back(recorded)


@remember
def make_exact_images(kind):
    """A small image model in float64."""
    return kind().copy_in_double()


def decode_image(images, method, seed=3, **options):
    """Generate the tokens of two images, and what they cost. images: a kind of model, and facts of its request."""
    kind, facts = images
    case = make_exact_images(kind)
    request = case.make_request(7, rows=2, **facts)
    keywords = {"do_sample": True, "seed": seed, "return_dict_in_generate": True, "eos_token_id": None, "window": 5}
    given = request.keywords | keywords | options
    return case.model.generate(request.ids, **given, custom_generate=getattr(decoders, method))


IMAGES = [(GlmImage, {"sources": 0}), (GlmImage, {"sources": 1}), (Emu3, {"guided": True}), (ImageGPT, {})]
LONG_IMAGES = [pytest.param((kind, {"guided": True}), marks=pytest.mark.long) for kind in (Janus, Chameleon)]


@pytest.mark.parametrize("images", [*IMAGES, *LONG_IMAGES])
@pytest.mark.parametrize("method", ["sjd_coupled", "mtj"])
def test_captured_passes_of_images_make_the_same_tokens(recorded, method, images):
    found = decode_image(images, method, capture=True)
    assert_same(found, decode_image(images, method))
    assert_nothing_is_read_back(recorded)


def test_a_number_that_is_read_back_is_noticed():
    with Calls() as calls:
        torch.ones(()).item()
    assert any("_local_scalar" in str(call) for call, *_ in calls.made)


@pytest.fixture
def aot(monkeypatch):
    """Compile without inductor, whose code for a CPU takes a minute to make; count from no graphs."""
    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 11):
        pytest.skip("torch before 2.11 was not tried except for 2.6, which cannot trace transformers' own code")
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    return torch._dynamo.utils.counters["stats"]


LONG = [pytest.param("mtj", name, marks=pytest.mark.long) for name in ("llama", "gemma2", "gpt_oss", "gpt2")]


@pytest.mark.parametrize(("method", "architecture"), [("sjd_coupled", "llama"), *LONG])
def test_a_pass_compiles_as_one_graph_for_all_calls(aot, capsys, method, architecture):
    model = make_exact(architecture)
    for seed in (3, 4):
        assert_same(decode(model, method, seed=seed, compile=True), decode(model, method, seed=seed))
    assert aot["unique_graphs"] == 1
    assert "compile" not in capsys.readouterr().err


@pytest.mark.parametrize("images", [IMAGES[0], *(pytest.param(i, marks=pytest.mark.long) for i in IMAGES[1:])])
@pytest.mark.parametrize("method", ["sjd_coupled", pytest.param("mtj", marks=pytest.mark.long)])
def test_a_pass_over_images_compiles_as_one_graph_for_all_calls(aot, capsys, method, images):
    for seed in (3, 4):
        found = decode_image(images, method, seed, compile=True)
        assert_same(found, decode_image(images, method, seed))
    assert aot["unique_graphs"] == 1
    assert "compile" not in capsys.readouterr().err


@pytest.mark.parametrize("request_name", ["filters", pytest.param("guidance", marks=pytest.mark.long)])
def test_compiled_passes_have_the_distribution_of_a_request(models, aot, request_name):
    options = REQUESTS[request_name] | {"top_p": 0.9}
    assert_same(decode(models[0], "mtj", compile=True, **options), decode(models[0], "mtj", **options))
    assert aot["unique_graphs"] == 1


def test_a_pass_that_cannot_be_compiled_runs_as_it_is(models, monkeypatch, capsys):
    def refuse(run, **_):
        def fail():
            raise torch._dynamo.exc.Unsupported("call of a function that is not known")

        return fail

    monkeypatch.setattr(torch, "compile", refuse)
    assert_same(decode(models[0], "sjd_coupled", compile=True), decode(models[0], "sjd_coupled"))
    assert "is not known" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"capture": True}, "capture: True on cpu"),
        ({"compile": "max-autotune"}, "compile: 'max-autotune'"),
        ({"compile": True, "repetition_penalty": 1.3}, "RepetitionPenalty"),
    ],
)
def test_what_cannot_be_done_is_refused(models, options, named):
    with pytest.raises(DecodingError, match=named):
        decode(models[0], "sjd_coupled", **options)
