"""Every keyword of `generate` that the docs promise: the tokens of plain `generate`, greedy, and sampled with the same
random numbers."""

import pytest
import torch
import transformers as hf
from decoders.tests.architectures import make_model
from parity_certify.adapters.transformers import compute_probs
from scipy.stats import chi2

from parity_decoders import transformers as decoders
from parity_decoders.errors import DecodingError
from parity_decoders.noise import counted_noise
from parity_decoders.verification import sample_token

IDS = torch.tensor([[0, 0, 5, 6], [3, 4, 5, 7], [0, 9, 8, 6]])
NEGATIVE = torch.tensor([[0, 8, 9, 12, 4], [9, 8, 7, 6, 9], [0, 0, 7, 7, 11]])
SEED = 3
COUPLED = ["sjd_coupled", "mtj"]


class Fading(hf.LogitsProcessor):
    """Lowers a token's score by how long ago it was: a processor that reads the tokens before a slot."""

    def __call__(self, ids, scores):
        scores = scores.clone()
        for n in range(1, 4):
            scores.scatter_add_(1, ids[:, -n:][:, :1], torch.full_like(scores[:, :1], -4 / n))
        return scores


def allow_some(row, ids):
    """List the tokens that may follow ids [n] in a row."""
    return list(range(3 + row, 40, 1 + int(ids[-1]) % 2))


class Repeated(hf.StoppingCriteria):
    """Ends a row at its third new token above 15."""

    def __call__(self, ids, scores, **_):
        return (ids[:, 4:] > 15).sum(1) >= 3


KEYWORDS = {
    "plain": {},
    "temperature": {"temperature": 0.7},
    "top_k": {"top_k": 3},
    "top_p": {"top_p": 0.5},
    "top_h": {"top_h": 0.4},
    "min_p": {"min_p": 0.2},
    "typical_p": {"typical_p": 0.5},
    "epsilon_cutoff": {"epsilon_cutoff": 0.05},
    "eta_cutoff": {"eta_cutoff": 0.1},
    "guidance": {"guidance_scale": 2.0},
    "guidance_zero": {"guidance_scale": 0.0},  # the last token of the prompt alone
    "guidance_half": {"guidance_scale": 0.5},
    "guidance_below_zero": {"guidance_scale": -1.0},
    "negative": {"guidance_scale": 2.0, "negative_prompt_ids": NEGATIVE},
    "short_negative": {"guidance_scale": 1.5, "negative_prompt_ids": NEGATIVE[:, -2:]},
    "masked_negative": {
        "guidance_scale": 2.0,
        "negative_prompt_ids": NEGATIVE,
        "negative_prompt_attention_mask": (NEGATIVE != 0).long(),
    },
    "no_cache": {"guidance_scale": 0.6, "negative_prompt_ids": NEGATIVE, "use_cache": False, "top_k": 5},
    "repetition_penalty": {"repetition_penalty": 1.5},
    "no_repeat_ngram_size": {"no_repeat_ngram_size": 1},
    "encoder_repetition_penalty": {"encoder_repetition_penalty": 1.8},
    "encoder_no_repeat_ngram_size": {"encoder_no_repeat_ngram_size": 1},
    "bad_words_ids": {"bad_words_ids": [[17], [20, 21], [5, 30]] + [[n] for n in range(22, 30)]},
    "sequence_bias": {"sequence_bias": {(n,): 3.0 for n in range(10, 16)} | {(11, 12): 4.0}},
    "suppress_tokens": {"suppress_tokens": list(range(15, 25))},
    "begin_suppress_tokens": {"begin_suppress_tokens": list(range(3, 30))},
    "prefix_allowed_tokens_fn": {"prefix_allowed_tokens_fn": allow_some},
    "end": {"eos_token_id": list(range(3, 12))},
    "min_new_tokens": {"eos_token_id": list(range(3, 12)), "min_new_tokens": 9},
    "min_length": {"eos_token_id": list(range(3, 12)), "min_length": 12},
    "exponential_decay": {"eos_token_id": list(range(3, 7)), "exponential_decay_length_penalty": (4, 1.2)},
    "forced_eos_token_id": {"eos_token_id": 2, "forced_eos_token_id": 2, "max_new_tokens": 9},
    "max_length": {"max_length": 13, "max_new_tokens": None},
    "stopping_criteria": {"stopping_criteria": hf.StoppingCriteriaList([Repeated()])},
    "watermark": {"watermarking_config": hf.WatermarkingConfig(bias=3.0)},
    "logits_processor": {"logits_processor": hf.LogitsProcessorList([Fading()])},
    "renormalize_logits": {"renormalize_logits": True, "remove_invalid_values": True, "top_k": 4},
    "num_return_sequences": {"num_return_sequences": 2},
    "all": {
        "guidance_scale": 1.5, "negative_prompt_ids": NEGATIVE, "temperature": 0.8, "top_k": 20, "top_p": 0.9,
        "repetition_penalty": 1.2, "eos_token_id": [7], "min_new_tokens": 3, "bad_words_ids": [[12], [13]],
    },
}  # fmt: skip
ONLY_SAMPLED = {"temperature", "top_k", "top_p", "top_h", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff"}
ONLY_SAMPLED |= {"renormalize_logits", "num_return_sequences"}


def generate(model, ids, sample, **keywords):
    """Generate 14 tokens after prompts ids [B, P], padded with 0."""
    defaults = {"attention_mask": (ids != 0).long(), "max_new_tokens": 14, "pad_token_id": 0, "eos_token_id": None}
    defaults |= {"top_k": 0, "do_sample": sample}
    return model.generate(ids, **defaults | keywords)


@pytest.fixture
def shared_noise(monkeypatch):
    """Let plain `generate` draw its n-th tokens by the draw of our decoders' n-th position, seed SEED."""
    calls = []

    def draw(p, num_samples):
        noise = counted_noise(SEED, range(len(p)), torch.float32)
        exponential = noise.exponential("sample", torch.full((len(p),), len(calls)), p.shape[1])
        calls.append(p)
        return sample_token(p, exponential)[:, None]

    monkeypatch.setattr(torch, "multinomial", draw)
    return calls


@pytest.fixture(scope="module")
def llama():
    """A small random Llama."""
    return make_model("llama")


def agree(model, ids, sample, noise, methods=COUPLED, **keywords):
    """Return plain `generate`'s tokens, after asserting that decoders by `methods` return the same."""
    noise.clear()
    plain = generate(model, ids, sample, **keywords)
    for method in methods:
        own = {"seed": SEED, "custom_generate": getattr(decoders, method)}
        assert torch.equal(generate(model, ids, sample, **keywords, **own), plain), method
    return plain


@pytest.mark.parametrize("name", KEYWORDS)
def test_tokens_are_those_of_generate(llama, shared_noise, name):
    """The tokens are not those without the keyword: the test would find one that is not read."""
    for sample in (False, True) if name not in ONLY_SAMPLED else (True,):
        tokens = agree(llama, IDS, sample, shared_noise, COUPLED if sample else ["sjd_coupled"], **KEYWORDS[name])
        if name != "plain":
            shared_noise.clear()
            assert not torch.equal(tokens, generate(llama, IDS, sample))


OFF = {"guidance_scale": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "typical_p": 1.0, "temperature": 1.0}


@pytest.mark.parametrize("name", OFF)
def test_a_keyword_that_is_off_changes_nothing(llama, name):
    own = {"seed": SEED, "custom_generate": decoders.sjd_coupled}
    assert torch.equal(generate(llama, IDS, True, **own, **{name: OFF[name]}), generate(llama, IDS, True, **own))


@pytest.mark.parametrize("name", ["gpt2", "opt", "gemma3", "phi3"])
def test_guidance_is_that_of_generate_in_other_architectures(shared_noise, name):
    """At 5,000 tokens. Some count the positions of padding in a negative prompt, in `generate`; OPT does not, and is
    refused."""
    model = make_model(name, 5000)
    for keyword in ("guidance", "masked_negative", "all"):
        if (name, keyword) == ("opt", "masked_negative"):
            with pytest.raises(DecodingError, match="negative_prompt_attention_mask"):
                agree(model, IDS, True, shared_noise, **KEYWORDS[keyword])
        else:
            agree(model, IDS, True, shared_noise, **KEYWORDS[keyword])


@pytest.mark.parametrize("method", ["sjd", "jacobi"])
def test_decoders_of_other_tokens_draw_the_distribution_of_generate(method):
    """By the counts of all 64 texts of three tokens, guided by a negative prompt; the distribution of another does not
    fit. A false alarm has probability 1e-4."""
    model, n = make_model("gpt2", 4), 4000
    model.generation_config.eos_token_id = None
    ids, negative = torch.tensor([[3, 1, 2, 1]]), torch.tensor([[1, 2, 3]])
    paths = torch.cartesian_prod(*[torch.arange(4)] * 3)

    def enumerate_probs(negative):
        options = {"guidance_scale": 2.0, "negative_prompt_ids": negative.expand(64, -1)}
        steps = compute_probs(model, ids.expand(64, -1), paths, options, None)
        return torch.stack([p.gather(1, paths[:, i : i + 1])[:, 0] for i, p in enumerate(steps)]).double().prod(0)

    options = {"custom_generate": getattr(decoders, method), "seed": SEED, "max_new_tokens": 3, "window": 3}
    guidance = {"guidance_scale": 2.0, "negative_prompt_ids": negative.expand(n, -1)}
    tokens = generate(model, ids.expand(n, -1), True, **options, **guidance)[:, 4:]
    counts = torch.bincount(tokens @ torch.tensor([16, 4, 1]), minlength=64).double()
    rare = enumerate_probs(negative) * n < 5  # pooled
    for other, fits in ((negative, True), (torch.tensor([[1, 2, 2]]), False)):
        expected = enumerate_probs(other) * n
        observed, expected = (torch.cat([x[~rare], x[rare].sum()[None]]) for x in (counts, expected))
        p = chi2.sf(float(((observed - expected) ** 2 / expected.clamp(min=1e-9)).sum()), len(expected) - 1)
        assert (p > 1e-4) == fits


def test_a_negative_prompt_of_other_rows_is_one_line(llama):
    for options in (
        {"negative_prompt_ids": NEGATIVE[:1]},
        {"negative_prompt_ids": NEGATIVE, "negative_prompt_attention_mask": torch.ones(3, 2)},
        {"negative_prompt_ids": NEGATIVE, "negative_prompt_attention_mask": (NEGATIVE != 9).long()},
    ):
        with pytest.raises(DecodingError, match=r"^negative_prompt_.*; allowed: "):
            generate(llama, IDS, False, guidance_scale=2.0, **options, custom_generate=decoders.sjd)


@pytest.mark.parametrize("method", ["ar", "sjd_coupled"])
def test_allowed_tokens_are_asked_for_once_a_slot(llama, method):
    asked = []

    def allow(row, ids):
        asked.append(row)
        return allow_some(row, ids)

    options = {"custom_generate": getattr(decoders, method), "return_dict_in_generate": True}
    options |= {} if method == "ar" else {"window": 4}
    passes = generate(llama, IDS, False, prefix_allowed_tokens_fn=allow, **options).passes
    before = 8  # questions whether the function keeps a state
    assert asked.count(2) <= int(passes.max()) * options.get("window", 1) + before


class Remembering(Fading):
    """As Fading, with a store of answers: not a state, because answers stay the same."""

    def __init__(self):
        self.answers = {}

    def __call__(self, ids, scores):
        key = str(ids.tolist())
        if key not in self.answers:
            self.answers[key] = super().__call__(ids, torch.zeros_like(scores))
        return scores + self.answers[key]


def test_a_processor_that_stores_its_answers_is_no_state(llama, shared_noise):
    processors = hf.LogitsProcessorList([Remembering()])
    agree(llama, IDS, True, shared_noise, logits_processor=processors)


class Counting(hf.LogitsProcessor):
    """Prefers another token at each call."""

    calls = 0

    def __call__(self, ids, scores):
        self.calls += 1
        return scores + 20 * torch.nn.functional.one_hot(torch.tensor(self.calls % 40), 40)


class Engine(hf.LogitsProcessor):
    """Reads one more token at each call, as grammar engines do, and asserts that it was allowed."""

    allowed = None

    def __call__(self, ids, scores):
        assert self.allowed is None or int(ids[0, -1]) in self.allowed
        self.allowed = range(5, 40) if self.allowed is None else range(self.allowed[0] + 1, 40)
        return scores.index_fill(1, torch.arange(self.allowed[0]), -torch.inf)


class Noisy(hf.TemperatureLogitsWarper):
    """Adds random numbers to the scores; derived from a class that keeps no state."""

    def __call__(self, ids, scores):
        return scores + torch.rand_like(scores)


def make_counter():
    """Make a `prefix_allowed_tokens_fn` that allows other tokens at each call."""
    calls = []

    def allow(row, ids):
        calls.append(row)
        return [3 + len(calls) % 30, 3 + len(calls) % 29]

    return allow


@pytest.mark.parametrize("make", [Counting, Engine, lambda: Noisy(0.5), make_counter])
def test_processors_with_a_state_are_refused_by_name(llama, make):
    processor = make()
    if isinstance(processor, hf.LogitsProcessor):
        options = {"logits_processor": hf.LogitsProcessorList([processor])}
    else:
        options = {"prefix_allowed_tokens_fn": processor}
    name = getattr(processor, "__name__", type(processor).__name__)
    with pytest.raises(DecodingError, match=f"{name}: keeps a state; allowed: functions of the tokens"):
        generate(llama, IDS[1:2], False, custom_generate=decoders.sjd_coupled, **options)
