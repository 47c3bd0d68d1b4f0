"""Options of sampling: as transformers' own processors apply them, as vLLM and llama.cpp define them, or refused."""

import numpy as np
import pytest

from parity_certify import target_distribution
from parity_certify.errors import ParityError
from parity_certify.processors import ENGINES, shape_distribution, softmax, swap_filters

V, P = 5, 3
RNG = np.random.default_rng(0)
LOGITS = 2 * RNG.standard_normal((40, V))
PREFIXES = RNG.integers(V, size=(40, P + 3))
PLAIN = softmax(LOGITS)


def apply(engine, prefixes=PREFIXES, end=None, **options):
    """Return the distribution [40, V] of an engine with these options."""
    return shape_distribution(lambda tokens: LOGITS[: len(tokens)], options, engine, P, end)(prefixes)


OPTIONS = [
    {"temperature": 0.7}, {"top_k": 2}, {"top_p": 0.6}, {"min_p": 0.3}, {"repetition_penalty": 1.5},
    {"no_repeat_ngram_size": 2}, {"no_repeat_ngram_size": 1}, {"min_new_tokens": 4}, {"min_new_tokens": 3},
    {"sequence_bias": [[[1], 2.5], [[4], -1.0]]},
    {"temperature": 0.6, "top_k": 4, "top_p": 0.8, "min_p": 0.2, "repetition_penalty": 1.3, "min_new_tokens": 5},
]  # fmt: skip


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: " ".join(options))
def test_distributions_are_those_of_transformers_own_processors(options):
    """Also in its order of them; the option changes the distribution, so the comparison sees it."""
    torch = pytest.importorskip("torch")
    t = pytest.importorskip("transformers")
    model = t.LlamaForCausalLM(t.LlamaConfig(vocab_size=V, hidden_size=8, intermediate_size=8, num_attention_heads=1,
                                             num_hidden_layers=1))  # fmt: skip
    config = t.GenerationConfig(**{"do_sample": True, "eos_token_id": 2, "top_k": 0} | options)
    model._prepare_special_tokens(config, True, device=torch.device("cpu"))
    processors = model._get_logits_processor(config, input_ids_seq_length=P, device="cpu")
    tokens = torch.from_numpy(PREFIXES)
    scores = processors(tokens, torch.from_numpy(LOGITS))
    rows = ~(scores.numpy() == -np.inf).all(-1)  # an n-gram of one may forbid all tokens
    ours = apply("transformers", end=2, **options)
    assert np.allclose(ours[rows], scores.softmax(-1).numpy()[rows], atol=1e-12) and rows.sum() > 10
    assert np.allclose(ours[rows], PLAIN[rows]) == (options == {"min_new_tokens": 3})


def test_penalties_are_those_of_other_engines():
    """By hand, of one prefix: vLLM's presence and frequency and SGLang's all read the output, those of llama.cpp and
    mlx-lm a window."""
    x, prefix = np.array([[1.0, -1.0, 0.5, 2.0, 0.0]]), np.array([[0, 1, 2, 3, 3]])  # the prompt is 0 1 2

    def draw(engine, **options):
        return shape_distribution(lambda tokens: x, options, engine, P)(prefix)

    cases = [
        (draw("vllm", repetition_penalty=2.0), [0.5, -2.0, 0.25, 1.0, 0.0]),
        (draw("vllm", frequency_penalty=0.5), [1.0, -1.0, 0.5, 1.0, 0.0]),
        (draw("vllm", presence_penalty=0.5), [1.0, -1.0, 0.5, 1.5, 0.0]),
        (draw("llama.cpp", repeat_penalty=2.0), [0.5, -2.0, 0.25, 1.0, 0.0]),
        (draw("llama.cpp", repeat_penalty=2.0, repeat_last_n=3), [1.0, -1.0, 0.25, 1.0, 0.0]),
        (draw("llama.cpp", repeat_penalty=2.0, repeat_last_n=0), [1.0, -1.0, 0.5, 2.0, 0.0]),
        (draw("llama.cpp", frequency_penalty=0.5, repeat_last_n=-1), [0.5, -1.5, 0.0, 1.0, 0.0]),
        (draw("llama.cpp", logit_bias={"4": 1.0}), [1.0, -1.0, 0.5, 2.0, 1.0]),
        (draw("sglang", repetition_penalty=2.0), [1.0, -1.0, 0.5, 1.0, 0.0]),
        (draw("mlx-lm", repetition_penalty=2.0), [0.5, -2.0, 0.25, 1.0, 0.0]),
    ]
    for p, logits in cases:
        assert np.allclose(p, softmax(np.array([logits]))), (p, logits)


def test_the_order_of_filters_and_temperature_is_the_engines():
    """At a high temperature top-p keeps more where it comes last; at 0 every engine draws the likeliest token."""
    hot = {"temperature": 3.0, "top_p": 0.6}
    kept = {engine: (apply(engine, **hot) > 0).sum() for engine in ENGINES}
    assert kept["llama.cpp"] == kept["mlx-lm"] < kept["vllm"] == kept["transformers"] == kept["sglang"]
    assert all((apply(engine, temperature=0.0).argmax(-1) == LOGITS.argmax(-1)).all() for engine in ENGINES)
    assert all((apply(engine, temperature=0.0).max(-1) == 1).all() for engine in ENGINES)


def test_top_p_is_of_what_top_k_left_or_of_all_tokens():
    """By hand: the likeliest token has .46 of all, and .53 of the first two."""
    p = np.array([[0.46, 0.4, 0.1, 0.04]])
    kept = {
        str(engine): shape_distribution(lambda tokens: np.log(p), {"top_k": 2, "top_p": 0.5}, engine, 1)(
            np.zeros((1, 1), int)
        )
        for engine in (*ENGINES, ["top_k", "top_p"], ["top_p", "top_k"])
    }
    both = [
        engine for engine, distribution in kept.items() if np.allclose(distribution, [[0.46 / 0.86, 0.4 / 0.86, 0, 0]])
    ]
    first = [engine for engine, distribution in kept.items() if np.allclose(distribution, [[1, 0, 0, 0]])]
    assert both == ["sglang", "mlx-lm", "['top_p', 'top_k']"], kept
    assert first == ["transformers", "vllm", "llama.cpp", "['top_k', 'top_p']"], kept
    assert (
        shape_distribution(lambda tokens: np.log(p), {"top_k": 2, "top_p": 0.5}, swap_filters("vllm"), 1)(p) > 0
    ).sum() == 2


def test_a_distribution_with_memory_is_enumerated():
    """A bigram never occurs twice in prompt and output."""
    flat = shape_distribution(lambda tokens: np.zeros((len(tokens), 3)), {"no_repeat_ngram_size": 2}, "transformers", 2)
    known = target_distribution(flat, vocab=3, length=3, prompts=[[0, 1]])
    drawn = np.argwhere(known.joint[0].reshape(3, 3, 3) > 0)
    assert len(drawn) and all(len({*zip([1, *row], row, strict=False)} | {(0, 1)}) == 4 for row in drawn.tolist())


@pytest.mark.parametrize(
    ("engine", "options", "message"),
    [
        ("llama.cpp", {"repetition_penalty": 1.5}, "repetition_penalty: llama.cpp has no such option .*repeat_penalty"),
        ("transformers", {"presence_penalty": 1.0}, "presence_penalty: transformers has no such option"),
        ("vllm", {"temperature": -1}, "temperature -1: allowed: 0 or more"),
        ("vllm", {"top_p": 0}, "top_p 0: allowed: above 0, up to 1"),
        ("vllm", {"top_k": "a"}, "top_k 'a': allowed: -1 or more"),
        ("vllm", {"logit_bias": 3}, "bias 3: allowed: pairs of one token and a number"),
        ("exllama", {}, "engine 'exllama': allowed: transformers, vllm, llama.cpp"),
        (
            ["top_k", "top_a"],
            {},
            "engine 'top_a': allowed: transformers, .*, or its options in order, of sequence_bias",
        ),
        (["top_k"], {"top_p": 0.9}, "top_p: this engine has no such option of sampling; allowed: top_k"),
    ],
)
def test_an_option_that_the_engine_does_not_have_is_named(engine, options, message):
    with pytest.raises(ParityError, match=message):
        apply(engine, **options)
