"""Decoders through `generate`: the law of the model, and all that people ask of `generate`."""

import pytest
import torch
import transformers as hf
from decoders.tests.architectures import make_model

from parity_decoders import transformers as decoders

IDS = torch.tensor([[0, 0, 5, 6], [3, 4, 5, 7]])
MASK = (IDS != 0).long()
COUPLED = ["sjd_coupled", "mtj"]
SAMPLE = {"attention_mask": MASK, "do_sample": True, "pad_token_id": 0, "seed": 3, "top_k": 0}


@pytest.fixture(scope="module")
def llama():
    return make_model("llama")


def decode(model, method, ids=IDS, **options):
    """Generate at most 24 tokens behind prompts by a method of `parity_decoders.transformers`; `options` are of
    `generate`."""
    return model.generate(ids, custom_generate=getattr(decoders, method), **SAMPLE | {"max_new_tokens": 24} | options)


REQUESTS = {
    "plain": {},
    "temperature": {"temperature": 0.7, "top_k": 3},
    "min_p": {"min_p": 0.05},
    "guidance": {"guidance_scale": 2.0},
    "negative": {"guidance_scale": 2.0, "negative_prompt_ids": torch.tensor([[8, 9], [9, 8]])},
    "end": {"eos_token_id": [7, 9]},
    "penalty": {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2},
    "allowed": {"prefix_allowed_tokens_fn": lambda row, ids: list(range(3 + row, 40, 1 + int(ids[-1]) % 2))},
}


@pytest.mark.parametrize("request_name", REQUESTS)
@pytest.mark.parametrize("method", COUPLED)
def test_coupled_decoders_draw_the_tokens_of_plain_decoding(llama, method, request_name):
    options = REQUESTS[request_name]
    assert torch.equal(decode(llama, method, **options), decode(llama, "ar", **options))


@pytest.mark.parametrize("request_name", REQUESTS)
def test_rows_that_end_in_raster_order_have_plain_decodings_tokens(llama, request_name):
    options = REQUESTS[request_name]
    rows = decode(llama, "pjd", commit="raster", width=6, window=4, ahead=2, **options)
    assert torch.equal(rows, decode(llama, "ar", **options))


@pytest.mark.parametrize("method", COUPLED)
def test_coupled_decoders_take_fewer_passes(llama, method):
    out = decode(llama, method, return_dict_in_generate=True, temperature=0.5)
    assert int(out.passes.max()) < 24


@pytest.mark.parametrize("method", ["ar", "jacobi", "sjd", "sjd_coupled", "sjd_pac", "mtj"])
def test_without_sampling_the_tokens_are_those_of_generate(llama, method):
    greedy = llama.generate(IDS, attention_mask=MASK, do_sample=False, max_new_tokens=24, pad_token_id=0)
    assert torch.equal(decode(llama, method, do_sample=False), greedy)


@pytest.mark.parametrize("method", ["ar", "sjd", "sjd_coupled", "mtj"])
def test_a_row_alone_is_the_row_in_a_batch(llama, method):
    alone = decode(llama, method, IDS[:1, 2:], attention_mask=None)
    together = decode(llama, method)
    assert torch.equal(together[0, 2 : 2 + alone.shape[1]], alone[0])


def test_the_seed_of_torch_is_the_seed(llama):
    torch.manual_seed(5)
    first = decode(llama, "sjd", seed=None)
    torch.manual_seed(5)
    assert torch.equal(first, decode(llama, "sjd", seed=None))


def test_returned_sequences_differ(llama):
    out = decode(llama, "sjd", IDS[1:], attention_mask=None, num_return_sequences=8)
    assert len(out.unique(dim=0)) > 1


def test_what_follows_an_end_token_is_padding(llama):
    out = decode(llama, "mtj", eos_token_id=7, max_new_tokens=60)
    is_padding = ((out == 7) & (torch.arange(out.shape[1]) >= 4)).cumsum(1).clamp(max=1)
    assert (out[:, 1:][is_padding[:, :-1] > 0] == 0).all()


def test_a_stopping_criterion_ends_a_row(llama):
    class Stop(hf.StoppingCriteria):
        def __call__(self, ids, scores, **_):
            return (ids[:, 4:] > 30).sum(1) >= 2

    criteria = hf.StoppingCriteriaList([Stop()])
    assert torch.equal(
        decode(llama, "mtj", stopping_criteria=criteria), decode(llama, "ar", stopping_criteria=criteria)
    )


def test_a_streamer_gets_the_tokens_in_order(llama):
    class Streamer:
        def __init__(self):
            self.tokens = []

        def put(self, tokens):
            self.tokens += tokens.flatten().tolist()

        def end(self):
            self.tokens.append("end")

    streamer = Streamer()
    out = decode(llama, "mtj", IDS[1:], attention_mask=None, stream=streamer)
    assert streamer.tokens == [*out[0].tolist(), "end"]


def test_spec_decodes_with_a_draft_model(llama):
    out = decode(llama, "spec", draft_model=llama, return_dict_in_generate=True, gamma=5, eos_token_id=None)
    assert out.passes.tolist() == [4, 4]  # 24 tokens take 4 passes of five drafts and one more


def test_mtj_draft_makes_plain_decodings_tokens_in_fewer_passes(llama):
    settings = {"return_dict_in_generate": True, "eos_token_id": None}
    plain = decode(llama, "ar", **settings)
    drafted = decode(llama, "mtj_draft", draft_model=llama, **settings)
    assert torch.equal(drafted.sequences, plain.sequences)
    assert (drafted.passes < plain.passes // 2).all()
