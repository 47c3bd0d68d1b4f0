"""`verify` finds injected faults in eight rows, in float32 and bfloat16, and no fault in correct decoders."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from parity_decoders import window
from parity_decoders.errors import DecodingError
from parity_decoders.slots import SlotNetwork
from parity_decoders.transformers import ar, mtj_draft, sjd, sjd_coupled, verify

SIZES = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
PROMPTS = torch.randint(3, 64, (8, 5), generator=torch.Generator().manual_seed(1))
UNPADDED = torch.ones(8, 5, dtype=torch.long)
UNPADDED[::2, :2] = 0
KEYWORDS = {"attention_mask": UNPADDED, "max_new_tokens": 48, "window": 8, "pad_token_id": 0, "eos_token_id": None}


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=str)
def model(request):
    """A random Llama whose distributions are far from uniform, in each dtype."""
    torch.manual_seed(0)
    made = LlamaForCausalLM(LlamaConfig(**SIZES)).eval()
    with torch.no_grad():
        for weight in made.parameters():
            if weight.ndim > 1:
                weight.normal_(0, 0.2)
    return made.to(request.param)


def store_one_off(self, tokens, positions):
    """Compute logits, with tokens after the first in the next slot (a fault)."""
    after = torch.arange(tokens.shape[1]) > 0
    return LOGITS(self, tokens, (positions + after).clamp(max=self.cache.on.shape[1] - 1 - self.prefix))


def see_padding(self, tokens, positions):
    """Compute logits that see the holes of the cache, too: the padding (a fault)."""
    on, self.cache.on = self.cache.on, torch.ones_like(self.cache.on)
    result = LOGITS(self, tokens, positions)
    self.cache.on = on
    return result


LOGITS = SlotNetwork.logits


@pytest.mark.parametrize("fault", [store_one_off, see_padding])
def test_a_fault_of_the_cache_is_found(model, monkeypatch, fault):
    # compares distributions of nine tokens once
    model.generate(PROMPTS, **KEYWORDS, do_sample=True, custom_generate=sjd_coupled)
    monkeypatch.setattr(SlotNetwork, "logits", fault)
    found = verify(model, PROMPTS, sjd_coupled, **KEYWORDS)
    assert found.is_fault, found


def test_a_distribution_that_is_stored_wrong_is_found(model, monkeypatch):
    write = window.ProbsByPosition.write
    monkeypatch.setattr(window.ProbsByPosition, "write", lambda self, i, probs: write(self, i, probs.roll(1, 1)))
    found = verify(model, PROMPTS, sjd, **KEYWORDS)
    assert found.is_fault, found


@pytest.mark.parametrize("decoder", [sjd_coupled, sjd])
def test_no_fault_is_found_in_a_correct_decoder(model, decoder):
    found = verify(model, PROMPTS, decoder, **KEYWORDS, top_k=30, temperature=0.9, repetition_penalty=1.1)
    assert not found.is_fault, found
    assert found.tokens > 300


def test_rows_may_end_and_be_guided(model):
    ending = KEYWORDS | {"eos_token_id": [7, 9], "guidance_scale": 2.0}
    found = verify(model, PROMPTS, sjd_coupled, **ending)
    assert not found.is_fault, found
    assert found.tokens < 8 * 48


@pytest.mark.parametrize("decoder", [sjd_coupled, sjd])
@pytest.mark.parametrize("default", [torch.float64, torch.bfloat16, "meta"], ids=str)
def test_defaults_of_torch_change_no_verdict(model, decoder, default):
    expected = str(verify(model, PROMPTS, decoder, **KEYWORDS))
    before = torch.get_default_dtype()
    try:
        if default == "meta":
            torch.set_default_device(default)
        else:
            torch.set_default_dtype(default)
        assert str(verify(model, PROMPTS, decoder, **KEYWORDS)) == expected
    finally:
        torch.set_default_dtype(before)
        torch.set_default_device(None)


def test_plain_decoding_is_not_verified():
    with pytest.raises(DecodingError, match="plain decoding itself"):
        verify(None, PROMPTS, ar)


@pytest.mark.parametrize("options", [{"compile": True}, {"compile": False, "capture": False, "width": 2}, {"draft": 1}])
def test_keywords_of_this_package_are_those_of_the_decoder_alone(model, monkeypatch, options, capsys):
    """Plain decoding, to which it is compared, is neither compiled nor captured."""
    compiled = []

    def compile_nothing(run, **_):
        compiled.append(run)
        return run

    monkeypatch.setattr(torch, "compile", compile_nothing)
    decoder = mtj_draft if "draft" in options else sjd_coupled
    given = {"draft_model": model} if "draft" in options else options
    found = verify(model, PROMPTS, decoder, **KEYWORDS, **given)
    assert not found.is_fault, found
    assert len(compiled) == bool(options.get("compile"))
    assert "capture" not in capsys.readouterr().err
