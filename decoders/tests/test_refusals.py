"""Models and requests that would give other tokens than they should: one line that names what is allowed."""

import inspect
import re

import numpy as np
import pytest
import torch
import transformers as hf
from decoders.tests.architectures import SIZES, make_model

from parity_decoders import transformers as decoders
from parity_decoders.errors import DecodingError
from parity_decoders.noise import check_seed, counted_noise
from parity_decoders.processors import read_processors
from parity_decoders.slots import check_slots, find_windows
from parity_decoders.verify import verify

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


def make_gpt_neo(*layers):
    """Make a small random GPT-Neo of two layers, by default "global" and "local", which sees a window of four tokens.
    A layer has a causal mask of its own, in which no tree fits near the last position."""
    sizes = {"vocab_size": 40, "hidden_size": 32, "num_layers": 2, "num_heads": 4}
    sizes |= {"attention_types": [[[*layers] or ["global", "local"], 1]]}
    return hf.GPTNeoForCausalLM(hf.GPTNeoConfig(**sizes, max_position_embeddings=64, window_size=4))


MAKERS = [make_mamba, make_lfm2, make_bloom, make_t5, make_gpt_neo, lambda: make_gpt_neo("global", "global")]


@pytest.mark.parametrize("make", MAKERS)
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
        ({"attention_mask": torch.tensor([[1, 1, 0]])}, "padding after tokens; allowed: on the left"),
        ({"position_ids": torch.tensor([[3, 4, 5]])}, "position_ids; allowed"),
        ({"draft_model": make_model("gpt2")}, "sjd: draft_model GPT2LMHeadModel; allowed: none"),
        ({"token_type_ids": None, "inputs_embeds": None, "labels": IDS}, "labels"),
        ({"seed": 1.5}, "seed: 1.5; allowed: a whole number"),
        ({"seed": "3"}, "seed: '3'; allowed"),
        ({"seed": 2**64}, f"seed: {2**64}; allowed"),
        ({"width": 0}, "width: 0; allowed: int, ge 1"),
        ({"window": np.int64(0)}, "window: 0; allowed: int, ge 1"),
        ({"stream": "print"}, "stream: 'print'; allowed: a streamer"),
        ({"prompt_lookup_num_tokens": 3}, "assisted_generation; allowed: greedy_search, sample"),
    ],
)
def test_requests_that_cannot_be_met_are_one_line(options, message):
    inputs = {} if options.get("inputs_embeds") is not None else {"inputs": IDS}
    with pytest.raises(DecodingError, match=message):
        make_model("llama").generate(
            **inputs, **options, do_sample=True, max_new_tokens=4, custom_generate=decoders.sjd,
            return_dict_in_generate=True,
        )  # fmt: skip


def fill_cache(model):
    """Make the keyword of a cache, by its name in this version of transformers, that holds the tokens of IDS."""
    cache = hf.DynamicCache(config=model.config)
    keyword = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
    model(IDS, use_cache=True, **{keyword: cache})
    return {keyword: cache}


def test_a_filled_cache_is_refused_and_an_empty_one_ignored():
    model = make_model("llama")
    filled = fill_cache(model)
    options = {"max_new_tokens": 4, "custom_generate": decoders.sjd, "seed": 1}
    with pytest.raises(DecodingError, match=f"sjd: {next(iter(filled))} that holds tokens; allowed: an empty cache"):
        model.generate(IDS, **options, **filled)
    empty = dict.fromkeys(filled, hf.DynamicCache(config=model.config))
    assert torch.equal(model.generate(IDS, **options, **empty), model.generate(IDS, **options))


def test_a_keyword_that_holds_its_default_is_ignored():
    """A newer transformers may hand over keywords of `forward` that are not known here."""
    model = make_model("llama")
    forward = model.forward
    signature = inspect.signature(forward)
    new = inspect.Parameter("new", inspect.Parameter.KEYWORD_ONLY, default=False)
    *named, rest = signature.parameters.values()
    model.forward = lambda *arguments, new=False, **keywords: forward(*arguments, **keywords)
    model.forward.__signature__ = signature.replace(parameters=[*named, new, rest])
    options = {"max_new_tokens": 4, "custom_generate": decoders.sjd, "seed": 1}
    assert torch.equal(model.generate(IDS, **options, new=False), model.generate(IDS, **options))
    with pytest.raises(DecodingError, match="sjd: new; allowed"):
        model.generate(IDS, **options, new=True)


def test_numbers_of_numpy_are_numbers():
    model = make_model("llama")
    options = {"max_new_tokens": 8, "do_sample": True, "custom_generate": decoders.sjd_coupled}
    given = {"window": np.int64(4), "seed": np.int64(3), "width": np.int32(2), "warm": np.bool_(True)}
    plain = {key: value.item() for key, value in given.items()}
    assert torch.equal(model.generate(IDS, **options, **given), model.generate(IDS, **options, **plain))


@pytest.mark.parametrize("seed", [0, 1, 2**62, 2**63 - 1, np.int64(3), np.uint64(2**63 - 1), np.int8(3)])
def test_whole_numbers_from_0_are_seeds(seed):
    assert type(check_seed(seed)) is int and check_seed(seed) == seed
    one, same, other = (counted_noise(given, range(2)) for given in (seed, int(seed), (int(seed) + 1) % 2**63))
    assert torch.equal(one.keys, same.keys) and not torch.equal(one.keys, other.keys)


@pytest.mark.parametrize("seed", [-1, -(2**63), 2**63, 2**64, 2**64 - 1, np.int64(-1), True, 1.0, 1.5, "1", [1]])
def test_what_is_no_seed_is_one_line(seed):
    model = make_model("llama")
    allowed = re.escape(f"seed: {seed!r}; allowed: a whole number from 0 to 2**63 - 1")
    with pytest.raises(DecodingError, match=allowed):
        model.generate(IDS, max_new_tokens=4, do_sample=True, custom_generate=decoders.sjd_coupled, seed=seed)
    with pytest.raises(DecodingError, match=allowed):
        verify(model, IDS, decoders.sjd_coupled, max_new_tokens=4, seed=seed)


def test_no_seed_draws_from_torchs_generator_but_not_in_verify():
    model = make_model("llama")
    options = {"max_new_tokens": 24, "do_sample": True, "custom_generate": decoders.sjd}
    drawn = []
    for start in (0, 0, 1):
        torch.manual_seed(start)
        drawn.append(model.generate(IDS, **options, seed=None))
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])
    with pytest.raises(DecodingError, match="seed: None; allowed"):  # it draws twice, by one seed
        verify(model, IDS, decoders.sjd, seed=None)


@pytest.mark.parametrize(
    ("name", "message"), [("gpt2", "in training mode.*: distributions"), ("llama", "gradient checkpointing")]
)
def test_training_models_whose_distributions_change_are_refused(name, message):
    """Also after a call in evaluation mode, which was right."""
    model = make_model(name)
    options = {"max_new_tokens": 4, "custom_generate": decoders.sjd, "pad_token_id": 0}
    model.generate(IDS, **options)
    if name == "llama":
        model.gradient_checkpointing_enable()
    with pytest.raises(DecodingError, match=message):
        model.train().generate(IDS, **options)


def test_ids_on_another_device_than_the_model_are_refused():
    with pytest.raises(DecodingError, match="model on meta; allowed: cpu, where input_ids are"):
        make_model("llama").to("meta").generate(IDS, max_new_tokens=4, custom_generate=decoders.sjd)


def test_spec_without_a_draft_model_is_one_line():
    for options in ({}, {"draft_model": "gpt2"}):
        with pytest.raises(DecodingError, match="draft_model="):
            make_model("llama").generate(
                IDS, do_sample=True, max_new_tokens=4, custom_generate=decoders.spec, **options
            )


def test_a_draft_model_of_other_tokens_is_one_line():
    small = make_model("llama", vocab=30)
    with pytest.raises(DecodingError, match="draft_model of 30 tokens; allowed: 40"):
        make_model("llama").generate(
            IDS, do_sample=True, max_new_tokens=4, custom_generate=decoders.spec, draft_model=small
        )


def test_guidance_after_another_processor_is_refused():
    model = make_model("llama")
    processors = hf.LogitsProcessorList(
        [hf.TemperatureLogitsWarper(0.5), hf.UnbatchedClassifierFreeGuidanceLogitsProcessor(2.0, model)]
    )
    with pytest.raises(DecodingError, match="allowed: guidance as the first"):
        read_processors(processors, greedy=False)


def test_unknown_decoders_are_named_with_those_that_exist():
    with pytest.raises(AttributeError, match="allowed: ar"):
        _ = decoders.sjdd


LONGROPE = {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 16}
LONGROPE |= {"short_factor": [1.0] * 4, "long_factor": [4.0, 8.0, 16.0, 32.0]}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}


class OwnLlama(hf.LlamaForCausalLM):
    """A class that transformers does not know, as of code beside a checkpoint."""


def make_by_length(name, config=None):
    """Make a small random model whose rotary table changes after 16 tokens: "longrope", "dynamic", or "own", a class
    whose configuration says nothing of it."""
    if name == "longrope":
        sizes = SIZES | {"original_max_position_embeddings": 16, "rope_parameters": LONGROPE}
        model = hf.Phi3ForCausalLM(hf.Phi3Config(**sizes))
    else:
        config = hf.LlamaConfig(**SIZES | {"max_position_embeddings": 16, "rope_parameters": DYNAMIC})
        model = (OwnLlama if name == "own" else hf.LlamaForCausalLM)(config)
        if name == "own":
            model.config.rope_parameters = None
            model.model.rotary_emb.config = hf.LlamaConfig(**config.to_dict() | {"rope_parameters": DYNAMIC})
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.25)
    return model.eval()


def compare_with_generate(model, prompt, new):
    """Assert that 'sjd_coupled' returns the greedy tokens of plain `generate` after a prompt of this many tokens."""
    ids = torch.randint(3, 40, (1, prompt), generator=torch.Generator().manual_seed(1))
    keywords = {"do_sample": False, "max_new_tokens": new, "pad_token_id": 0, "eos_token_id": None}
    plain = model.generate(ids, **keywords)
    assert torch.equal(model.generate(ids, **keywords, custom_generate=decoders.sjd_coupled, window=8), plain)


@pytest.mark.parametrize("name", ["longrope", "dynamic", "own"])
def test_rotary_tables_that_change_on_the_way_are_refused(name):
    """Within one table, tokens are those of `generate`."""
    model = make_by_length(name)
    compare_with_generate(model, 6, 10)
    with pytest.raises(
        DecodingError, match="distributions in a pass over 17" if name == "own" else "17 tokens .*at most 16"
    ):
        compare_with_generate(model, 6, 11)
    if name == "longrope":
        compare_with_generate(model, 18, 8)
        with pytest.raises(DecodingError, match="or a prompt of more than 17"):
            compare_with_generate(model, 17, 8)


class Prefixed(hf.LlamaForCausalLM):
    """Puts a learned prompt before the embeddings of the prompt, outside its forward, as prompt tuning does."""

    def prepare_inputs_for_generation(self, input_ids, **keywords):
        inputs = super().prepare_inputs_for_generation(input_ids, **keywords)
        if keywords.get("is_first_iteration"):
            embedded = self.get_input_embeddings()(inputs.pop("input_ids"))
            inputs["inputs_embeds"] = torch.cat([torch.ones_like(embedded[:, :2]), embedded], 1)
        return inputs


class Filled(hf.LlamaForCausalLM):
    """Begins with keys and values of a learned prefix, as prefix tuning does."""

    def prepare_inputs_for_generation(self, input_ids, **keywords):
        inputs = super().prepare_inputs_for_generation(input_ids, **keywords)
        inputs["past_key_values"] = hf.DynamicCache()
        with torch.no_grad():
            self(input_ids=input_ids, past_key_values=inputs["past_key_values"])
        return inputs


@pytest.mark.parametrize("family", [Prefixed, Filled])
def test_adapters_that_act_outside_forward_are_refused(family):
    model = family(hf.LlamaConfig(**SIZES)).eval()
    with pytest.raises(DecodingError, match=r"prepare_inputs_for_generation changes .*; allowed: adapters that act in"):
        model.generate(IDS, do_sample=False, max_new_tokens=4, custom_generate=decoders.ar)
    small = family(hf.LlamaConfig(**SIZES)).eval()
    with pytest.raises(DecodingError, match="prepare_inputs_for_generation"):
        make_model("llama").generate(
            IDS, do_sample=False, max_new_tokens=4, custom_generate=decoders.spec, draft_model=small
        )


def test_adapters_inside_forward_are_decoded():
    model = make_model("llama")
    torch.manual_seed(1)
    adapter = torch.randn(32, 32) * 0.3
    model.model.layers[0].mlp.register_forward_hook(lambda module, inputs, output: output + inputs[0] @ adapter)
    compare_with_generate(model, 6, 10)
