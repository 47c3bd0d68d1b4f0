"""Decoders through `generate`: the distribution of the model, and all that people ask of `generate`."""

import shutil
import sys
from pathlib import Path

import pytest
import torch
import transformers as hf
from decoders.tests.architectures import SIZES, make_model

from parity_decoders import transformers as decoders

IDS = torch.tensor([[0, 0, 5, 6], [3, 4, 5, 7]])
MASK = (IDS != 0).long()
COUPLED = ["sjd_coupled", "mtj"]
SAMPLE = {"attention_mask": MASK, "do_sample": True, "pad_token_id": 0, "seed": 3, "top_k": 0}


@pytest.fixture(scope="module")
def llama():
    return make_model("llama")


def decode(model, method, ids=IDS, **options):
    """Generate at most 24 tokens after prompts by a method of `parity_decoders.transformers`; `options` are of
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


@pytest.mark.parametrize(("width", "window"), [(1, 4), (6, 32)])
def test_the_window_is_narrow_on_texts(llama, width, window):
    options = {"return_dict_in_generate": True, "eos_token_id": None, "width": width}
    default, same = decode(llama, "sjd_coupled", **options), decode(llama, "sjd_coupled", window=window, **options)
    assert torch.equal(default.nodes, same.nodes)
    assert not torch.equal(default.nodes, decode(llama, "sjd_coupled", window=16, **options).nodes)


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


class StopRows(hf.StoppingCriteria):
    """Stops row r after 3 + 4 r new tokens."""

    def __call__(self, ids, scores, **_):
        return torch.tensor([ids.shape[1] - 4 >= 3 + 4 * row for row in range(len(ids))])


STOPS = {
    "the first end token pads": {"eos_token_id": [7, 9], "pad_token_id": None},
    "ids of 32 bits": {"eos_token_id": 7, "inputs": IDS.int()},
    "rows go on until all have stopped": {"eos_token_id": None, "stopping_criteria": [StopRows()]},
    "a stopped row is padded": {"eos_token_id": 99, "stopping_criteria": [StopRows()]},
}


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("method", ["sjd", *COUPLED])
def test_rows_stop_as_in_generate(llama, method, stop):
    options = {"inputs": IDS, "attention_mask": MASK, "do_sample": False, "max_new_tokens": 40, "pad_token_id": 0}
    options |= STOPS[stop]
    plain = llama.generate(**options)
    assert torch.equal(llama.generate(**options, custom_generate=getattr(decoders, method)), plain)
    assert plain.shape[1] < 44 or (plain[:, -1] == 0).any(), "no row stops"


def test_a_training_model_without_dropout_has_the_tokens_of_generate():
    model = make_model("llama").train()
    options = {"attention_mask": MASK, "do_sample": False, "max_new_tokens": 8, "pad_token_id": 0}
    assert torch.equal(model.generate(IDS, **options, custom_generate=decoders.sjd), model.generate(IDS, **options))


@pytest.mark.parametrize("method", ["sjd", "mtj", "gsd"])
def test_a_head_may_be_smaller_than_the_embeddings(method):
    """Mllama embeds eight tokens more than it draws."""
    sizes = SIZES | {"num_hidden_layers": 2, "cross_attention_layers": []}
    config = hf.models.mllama.configuration_mllama.MllamaTextConfig(
        **sizes, rope_parameters={"rope_type": "default", "rope_theta": 1e4}
    )
    torch.manual_seed(0)
    model = hf.MllamaForCausalLM(config).eval()
    options = {"do_sample": False, "max_new_tokens": 12, "eos_token_id": None}
    ids = IDS[1:]
    assert torch.equal(model.generate(ids, **options, custom_generate=getattr(decoders, method)),
                       model.generate(ids, **options))  # fmt: skip


class Words:
    """A tokenizer whose words are the tokens' numbers."""

    def decode(self, ids, **_):
        return "".join(f"{token} " for token in ids)


def stream_text(llama, options):
    """Generate after one prompt with the options for a streamer, and return the new tokens and the text that an
    iterator over the streamer gets."""
    streamer = hf.TextIteratorStreamer(Words(), skip_prompt=True, timeout=0)  # all of it is there by then
    ids = llama.generate(IDS[1:], **SAMPLE | {"attention_mask": None, "max_new_tokens": 12}, **options(streamer))
    return ids[0, 4:].tolist(), "".join(streamer)


def test_a_streamer_gets_the_tokens_in_order(llama):
    tokens, text = stream_text(llama, lambda streamer: {"custom_generate": decoders.mtj, "stream": streamer})
    assert text == Words().decode(tokens)


FROM_FOLDER = {"custom_generate": decoders.FOLDER, "trust_remote_code": True}


@pytest.fixture
def modules_of_folders(tmp_path, monkeypatch):
    """A folder of its own for the copies that transformers makes of the code of folders."""
    monkeypatch.setattr(hf.dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path))
    monkeypatch.setattr(sys, "path", [*sys.path])


@pytest.mark.usefixtures("modules_of_folders")
def test_a_folder_gets_the_streamer_of_generate(llama):
    tokens, text = stream_text(llama, lambda streamer: FROM_FOLDER | {"method": "mtj", "streamer": streamer})
    assert text == Words().decode(tokens)
    assert tokens == decode(llama, "mtj", IDS[1:], attention_mask=None, max_new_tokens=12)[0, 4:].tolist()


@pytest.mark.usefixtures("modules_of_folders")
def test_a_folder_gets_the_assistant_of_generate_and_no_keyword_of_the_hub(llama):
    options = FROM_FOLDER | {"method": "spec", "assistant_model": llama, "gamma": 5, "revision": "main"}
    out = llama.generate(IDS, **SAMPLE, **options, max_new_tokens=24, return_dict_in_generate=True, eos_token_id=None)
    assert out.passes.tolist() == [4, 4]


@pytest.mark.usefixtures("modules_of_folders")
def test_a_model_in_such_a_folder_generates_by_it(llama, tmp_path):
    """transformers then replaces the model's `generate` by the folder's function."""
    llama.save_pretrained(tmp_path / "model")
    shutil.copytree(Path(decoders.FOLDER) / "custom_generate", tmp_path / "model/custom_generate")
    model = hf.AutoModelForCausalLM.from_pretrained(tmp_path / "model", trust_remote_code=True)
    out = model.generate(inputs=IDS, **SAMPLE, max_new_tokens=24, method="mtj")
    assert torch.equal(out, decode(llama, "mtj"))


def test_spec_decodes_with_a_draft_model(llama):
    out = decode(llama, "spec", draft_model=llama, return_dict_in_generate=True, gamma=5, eos_token_id=None)
    assert out.passes.tolist() == [4, 4]  # 24 tokens take 4 passes of five drafts and one more


def test_mtj_draft_makes_plain_decodings_tokens_in_fewer_passes(llama):
    settings = {"return_dict_in_generate": True, "eos_token_id": None}
    plain = decode(llama, "ar", **settings)
    drafted = decode(llama, "mtj_draft", draft_model=llama, **settings)
    assert torch.equal(drafted.sequences, plain.sequences)
    assert (drafted.passes < plain.passes // 2).all()
