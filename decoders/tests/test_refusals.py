"""Models and requests that would give other tokens than they should: one line that names what is allowed."""

import pytest
import torch
import transformers as hf
from decoders.tests.architectures import SIZES, make_model

from parity_decoders import transformers as decoders
from parity_decoders.errors import DecodingError
from parity_decoders.processors import split_processors
from parity_decoders.slots import check_slots, find_windows

IDS = torch.tensor([[5, 6, 7]])


def make_mamba():
    """Make a small random Mamba-2, which has no attention."""
    sizes = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "state_size": 4, "num_heads": 4}
    return hf.Mamba2ForCausalLM(hf.Mamba2Config(**sizes, head_dim=8, n_groups=1))


def make_lfm2():
    """Make a small random LFM2, half of whose layers are convolutions."""
    return hf.Lfm2ForCausalLM(hf.Lfm2Config(**SIZES | {"layer_types": ["conv", "full_attention"] * 2}))


def make_bloom():
    """Make a small random BLOOM, which reads no positions."""
    return hf.BloomForCausalLM(hf.BloomConfig(vocab_size=40, hidden_size=32, n_layer=2, n_head=4))


def make_t5():
    """Make a small random T5, an encoder with a decoder."""
    return hf.T5ForConditionalGeneration(hf.T5Config(vocab_size=40, d_model=16, d_ff=16, num_layers=1, num_heads=2))


def make_gpt_neo():
    """Make a small random GPT-Neo, whose second layer sees a window of four tokens."""
    sizes = {"vocab_size": 40, "hidden_size": 32, "num_layers": 2, "num_heads": 4}
    sizes |= {"attention_types": [[["global", "local"], 1]]}
    return hf.GPTNeoForCausalLM(hf.GPTNeoConfig(**sizes, max_position_embeddings=64, window_size=4))


@pytest.mark.parametrize("make", [make_mamba, make_lfm2, make_bloom, make_t5, make_gpt_neo])
def test_models_that_cannot_go_back_are_refused(make):
    with pytest.raises(DecodingError, match="allowed"):
        check_slots(make().eval())


def test_sliding_windows_of_other_models_are_refused():
    config = hf.Starcoder2Config(**SIZES, sliding_window=4)
    with pytest.raises(DecodingError, match="sliding window"):
        find_windows(hf.Starcoder2ForCausalLM(config))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": 0}, "window: 0; allowed"),
        ({"window": 2.5}, "window: 2.5"),
        ({"init": "zeros"}, "init: 'zeros'; allowed: 'random'"),
        ({"num_beams": 2}, "num_beams 2; allowed: 1"),
        ({"output_scores": True}, "output_scores"),
        ({"inputs_embeds": torch.zeros(1, 3, 32)}, "inputs_embeds"),
        ({"attention_mask": torch.tensor([[1, 1, 0]])}, "padding behind tokens; allowed: on the left"),
        ({"position_ids": torch.tensor([[3, 4, 5]])}, "position_ids; allowed"),
        ({"draft_model": make_model("gpt2")}, "sjd: draft_model GPT2LMHeadModel; allowed: none"),
        ({"token_type_ids": None, "inputs_embeds": None, "labels": IDS}, "labels"),
    ],
)
def test_requests_that_cannot_be_met_are_one_line(options, message):
    inputs = {} if options.get("inputs_embeds") is not None else {"inputs": IDS}
    with pytest.raises(DecodingError, match=message):
        make_model("llama").generate(
            **inputs, **options, do_sample=True, max_new_tokens=4, custom_generate=decoders.sjd,
            return_dict_in_generate=True,
        )  # fmt: skip


def test_spec_without_a_draft_model_is_one_line():
    with pytest.raises(DecodingError, match="draft_model="):
        make_model("llama").generate(IDS, do_sample=True, max_new_tokens=4, custom_generate=decoders.spec)


def test_a_draft_model_of_other_tokens_is_one_line():
    small = make_model("llama", vocab=30)
    with pytest.raises(DecodingError, match="draft_model of 30 tokens; allowed: 40"):
        make_model("llama").generate(
            IDS, do_sample=True, max_new_tokens=4, custom_generate=decoders.spec, draft_model=small
        )


def test_guidance_behind_another_processor_is_refused():
    model = make_model("llama")
    processors = hf.LogitsProcessorList(
        [hf.TemperatureLogitsWarper(0.5), hf.UnbatchedClassifierFreeGuidanceLogitsProcessor(2.0, model)]
    )
    with pytest.raises(DecodingError, match="allowed: guidance as the first"):
        split_processors(processors)


def test_unknown_decoders_are_named_with_those_that_exist():
    with pytest.raises(AttributeError, match="allowed: ar"):
        _ = decoders.sjdd
