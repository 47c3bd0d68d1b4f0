"""Verdicts on decoders through `generate` itself, against the distribution of the model's own forward and
processors."""

import numpy as np
import pytest
import torch
from decoders.tests.architectures import make_model
from parity_certify import certify_sampler
from parity_certify.adapters.transformers import compute_distribution, make_keywords
from transformers.generation import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from parity_decoders import slots
from parity_decoders import transformers as decoders
from parity_decoders.processors import read_processors

VOCAB = 4
LENGTH = 3
PROMPTS = [[3, 1, 3, 2, 1, 3, 3, 2, 1], [1, 3, 3, 3, 2, 2, 1, 1, 3]]  # prompts are longer than sliding windows
CASES = [
    ("sjd", "llama", {}, None),
    ("sjd_coupled", "gpt2", {"temperature": 0.7, "top_k": 3}, None),
    ("mtj", "mistral", {"guidance_scale": 2.0}, None),
    ("sjd_pac", "gemma3", {}, 2),
    ("spec", "qwen3", {"temperature": 0.7, "top_k": 3}, 2),
    ("jacobi", "olmo3", {}, None),
]


class Sampler:
    """A function of prompts and a seed that draws LENGTH tokens after each by `generate`, with two padding tokens on
    the left."""

    def __init__(self, model, method, options, end):
        """Sample by a method with options of `generate` and a small window; `end`, or None, becomes the model's end
        token."""
        self.model = model
        self.model.generation_config.eos_token_id = end  # no other token ends a row
        self.end = end
        self.keywords = make_keywords(options, LENGTH, end) | {"custom_generate": getattr(decoders, method)}
        if method == "spec":
            self.keywords["draft_model"] = make_model("llama", VOCAB)
        else:
            self.keywords |= {"window": 3} | ({"branches": 6} if method in ("mtj", "sjd_pac") else {})

    def __call__(self, prompts, seed):
        """Draw tokens [n, LENGTH] after prompts [n, tokens]; rows that end early are filled with the end token."""
        prompts = torch.as_tensor(np.asarray(prompts))
        padding = torch.zeros(len(prompts), 2, dtype=torch.long)
        ids = torch.cat([padding, prompts], 1)
        mask = torch.cat([padding, torch.ones_like(prompts)], 1)
        out = self.model.generate(ids, attention_mask=mask, seed=seed, **self.keywords)[:, ids.shape[1] :]
        missing = LENGTH - out.shape[1]
        fill = 0 if self.end is None else self.end
        return torch.nn.functional.pad(out, (0, missing), value=fill).numpy()


@pytest.mark.parametrize(
    ("method", "architecture", "options", "end"),
    [pytest.param(*case, marks=[pytest.mark.long] * (case[0] in ("sjd_coupled", "sjd_pac", "spec"))) for case in CASES],
)
def test_decoders_are_lossless_through_generate(method, architecture, options, end):
    model = make_model(architecture, VOCAB)
    with torch.inference_mode():
        probs = compute_distribution(model, PROMPTS, LENGTH, options, end=end)
    certificate = certify_sampler(Sampler(model, method, options, end), probs, margin=0.05, n=8000, batch=4000)
    assert certificate.verdict.kind == "certified"


def test_an_ignored_sliding_window_is_found(monkeypatch):
    model = make_model("mistral", VOCAB)
    probs = compute_distribution(model, PROMPTS, LENGTH)
    monkeypatch.setattr(slots, "find_windows", lambda model: [None] * 4)
    monkeypatch.setattr(decoders, "check_slots", lambda model: VOCAB)
    certificate = certify_sampler(Sampler(model, "sjd", {}, None), probs, margin=0.05, n=8000, batch=4000)
    assert certificate.verdict.kind == "lossy"


@pytest.mark.parametrize("step", [None, 0.25])
@pytest.mark.parametrize(
    "build",
    [
        lambda: [TopPLogitsWarper(0.9), TemperatureLogitsWarper(0.7)],
        lambda: [TemperatureLogitsWarper(0.7), TopPLogitsWarper(0.9)],
        lambda: [TopKLogitsWarper(50), TopPLogitsWarper(0.5), MinPLogitsWarper(0.01)],
        lambda: [TopPLogitsWarper(0.0, min_tokens_to_keep=3)],
        lambda: [TopPLogitsWarper(0.1, filter_value=-1e4)],
    ],
)
def test_top_p_keeps_what_the_processor_of_transformers_keeps(build, step):
    """In rows of a large vocabulary, and where tokens are tied (steps): there as many, since an unstable sort picks
    any of equal ones. Must fail: the filters in another order."""
    processors, logits = LogitsProcessorList(build()), 3 * torch.randn(4, 2, 20_000, generator=torch.manual_seed(0))
    logits = logits if step is None else (logits / step).round() * step
    truth = processors(None, logits.flatten(0, 1)).view_as(logits)
    found = read_processors(processors, greedy=False).apply(logits, torch.zeros(1, 1, dtype=torch.long), None)
    if step is not None:
        truth, found = truth.sort().values, found.sort().values
    assert torch.equal(found, truth)
    if step is None and len(processors) == 2:
        swapped = read_processors(LogitsProcessorList(reversed(processors)), greedy=False).apply(
            logits, torch.zeros(1, 1, dtype=torch.long), None
        )
        assert not torch.equal(swapped, truth)
