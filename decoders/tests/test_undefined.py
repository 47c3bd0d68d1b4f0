"""Logits without a distribution raise where a token that becomes final would be drawn from them, and only there."""

import pytest
import torch
import transformers as hf
from decoders.tests.architectures import make_model

from parity_decoders import transformers as decoders
from parity_decoders.errors import DecodingError

IDS = torch.tensor([[0, 33, 9, 31], [5, 7, 17, 9]])  # the first is padded on the left
SETTINGS = {"attention_mask": (IDS != 0).long(), "pad_token_id": 0, "eos_token_id": None, "max_new_tokens": 12}
METHODS = ["ar", "jacobi", "sjd", "sjd_coupled", "mtj", "sjd_pac", "spec", "zipar", "pjd", "mtj_draft"]


def decode(method, model=None, draft=None, **options):
    """Generate 12 tokens after IDS by a method."""
    more = {"draft_model": draft or make_model("gpt2")} if method in decoders.DRAFTED else {}
    model = model or make_model("llama")
    return model.generate(IDS, custom_generate=getattr(decoders, method), **{**SETTINGS, "seed": 3, **more, **options})


class Ban(hf.LogitsProcessor):
    """Bans all tokens of some rows, from some length on."""

    def __init__(self, rows, length):
        self.rows, self.length = rows, length

    def __call__(self, ids, scores):
        scores = scores.clone()
        if ids.shape[1] >= self.length:
            scores[self.rows] = -torch.inf
        return scores


def processors(*listed):
    return {"logits_processor": hf.LogitsProcessorList(listed)}


def poison(value, where="embedding"):
    """Make a network with a weight that is no number: in the embedding of a token of the second prompt, or the head."""
    model = make_model("llama")
    with torch.no_grad():
        (model.model.embed_tokens if where == "embedding" else model.lm_head).weight[17] = value
    return model


REFUSED = {
    "all tokens suppressed": ({"suppress_tokens": list(range(40))}, "row 0, new token 0: SuppressTokens"),
    "no token after a prefix": ({"prefix_allowed_tokens_fn": lambda row, ids: []}, "row 0, new token 0: PrefixConstr"),
    "no token from a length on": (processors(Ban([0, 1], 9)), "row 0, new token 5: Ban leaves no token"),
    "no token in the second row": (processors(Ban([1], 6)), "row 1, new token 2: Ban leaves no token"),
    "each token a bad word": ({"bad_words_ids": [[n] for n in range(40)]}, "row 0, new token 0: NoBadWords"),
    "filters after a ban": ({"suppress_tokens": list(range(40)), "top_k": 3, "min_p": 0.1}, "SuppressTokens"),
    "NaN in one row": ({"model": poison(torch.nan)}, "row 1, new token 0: the model's logits are NaN"),
    "NaN for one token": ({"model": poison(torch.nan, "head")}, "the model's logits are NaN"),
    "infinite weights": ({"model": poison(torch.inf)}, "row 1, new token 0: the model's logits are NaN"),
    "overflow": ({"model": poison(1e30, "head").half()}, "the model's logits are (NaN|infinite)"),
    "guidance of infinite logits": ({"model": poison(torch.inf, "head"), "guidance_scale": 2.0}, "the model's logits"),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", REFUSED)
def test_no_token_is_drawn_without_a_distribution(name, method):
    options, message = REFUSED[name]
    with pytest.raises(DecodingError, match=message):
        decode(method, do_sample=True, **options)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["no token from a length on", "NaN in one row"])
def test_greedy_decoding_is_refused_too(name, method):
    options, message = REFUSED[name]
    with pytest.raises(DecodingError, match=message):
        decode(method, do_sample=False, **options)


@pytest.mark.parametrize("method", [method for method in METHODS if method != "zipar"])
def test_rejected_drafts_without_a_distribution_change_nothing(method):
    """A function that allows tokens after the tokens of plain decoding alone: most drafts lead where nothing is
    allowed."""
    plain = make_model("llama").generate(IDS, do_sample=False, **SETTINGS)

    def follow(row, ids):
        return list(range(40)) if torch.equal(ids, plain[row, : len(ids)]) else []

    assert torch.equal(decode(method, do_sample=False, prefix_allowed_tokens_fn=follow), plain)


@pytest.mark.parametrize("method", ["sjd_coupled", "mtj", "mtj_draft"])
def test_what_follows_the_end_of_a_row_may_have_no_distribution(method):
    """The second row ends at its first token; nothing is allowed after it."""
    plain = decode("ar", do_sample=True)
    options = {"eos_token_id": int(plain[1, 4]), "do_sample": True, **processors(Ban([1], 5))}
    assert torch.equal(decode(method, **options), decode("ar", **options))


@pytest.mark.parametrize("method", decoders.DRAFTED)
def test_a_draft_model_without_a_distribution_is_named(method):
    with pytest.raises(DecodingError, match="draft_model: row 1, new token 0: the model's logits are NaN"):
        decode(method, draft=poison(torch.nan), do_sample=True)


def test_values_that_a_processor_removes_are_allowed():
    found = decode("sjd_coupled", model=poison(torch.nan, "head"), do_sample=True, remove_invalid_values=True)
    assert ((found >= 0) & (found < 40)).all()


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_verify_compares_nothing_that_is_no_number(value):
    with pytest.raises(DecodingError, match="row 1, new token 0: the model's logits are NaN"):
        decoders.verify(poison(value), {"input_ids": IDS, **SETTINGS}, decoders.sjd_coupled)


@pytest.mark.parametrize("method", ["ar", "sjd_coupled", "mtj"])
def test_compiled_passes_are_guarded(method):
    torch._dynamo.reset()
    model = make_model("llama")
    with torch.no_grad():
        model.lm_head.weight[17] = torch.nan
    with pytest.raises(DecodingError, match="the model's logits are NaN"):
        decode(method, model=model, do_sample=True, compile=True)
