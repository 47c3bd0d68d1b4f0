"""Emu3.5: its folder, tokenizer, prompts and grammar; `test_image_models.py` has its decoders."""

import base64
import json
import random
from itertools import pairwise

import pytest
import torch
from decoders.tests.image_models import TEXT, Emu3p5
from transformers import Qwen3ForCausalLM

from parity_decoders.errors import DecodingError
from parity_decoders.families import emu3p5
from parity_decoders.families.emu3p5_prompts import SPECIAL, START, encode_prompts, read_tokenizer
from parity_decoders.images import image_model
from parity_decoders.transformers import ar, sjd_coupled

N_WORDS = 260  # every byte, and four pairs
PAIRS = (b"re", b"d ", b"red", b" f")
VOCAB = N_WORDS + len(SPECIAL) + 32
CONFIG = {
    **TEXT, "model_type": "Emu3", "num_key_value_heads": 2, "head_dim": 16, "vocab_size": VOCAB, "rms_norm_eps": 1e-6,
    "hidden_act": "silu", "rope_theta": 500.0, "rope_scaling": None, "max_position_embeddings": 256,
    "pad_token_id": N_WORDS, "bos_token_id": N_WORDS + SPECIAL.index(START),
}  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    """A folder in the authors' layout, with random weights and a small table of byte pairs."""
    sizes = {key: value for key, value in CONFIG.items() if key not in ("model_type", "rope_scaling")}
    torch.manual_seed(0)
    Qwen3ForCausalLM(emu3p5.Emu3p5Config(**sizes)).save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    words = [*(bytes([i]) for i in range(256)), *PAIRS]
    lines = [f"{base64.b64encode(word).decode()} {i}\n" for i, word in enumerate(words)]
    (tmp_path / "emu3.tiktoken").write_text("".join(lines))
    return tmp_path


def test_a_folder_is_read_with_its_own_sizes(folder):
    model = emu3p5.load_emu3p5(folder, dtype=torch.float64)
    assert model.config.rope_parameters["rope_theta"] == 500
    assert model.config.rms_norm_eps == 1e-6
    assert model.get_input_embeddings().weight.shape == (VOCAB, 32)
    ids = torch.tensor([[1, 2, 3]])
    logits = model(ids).logits
    (folder / "config.json").write_text(json.dumps(CONFIG | {"rope_theta": 10.0}))
    assert not torch.allclose(emu3p5.load_emu3p5(folder, dtype=torch.float64)(ids).logits, logits)
    del (lacking := dict(CONFIG))["rms_norm_eps"]
    (folder / "config.json").write_text(json.dumps(lacking))
    assert emu3p5.read_config(folder).rms_norm_eps == 1e-5  # the authors' default, which is not Qwen3's


def test_logits_are_float32_at_least(folder):
    """Guidance takes their differences, of which bfloat16 leaves little."""
    half = emu3p5.load_emu3p5(folder, dtype=torch.bfloat16)
    assert half(torch.tensor([[1, 2]])).logits.dtype == torch.float32


REFUSED = {
    "model_type: 'llama'; allowed: 'Emu3'": {"model_type": "llama"},
    "model_type: None": {"model_type": None},
    "rope_scaling: .'type': 'linear', 'factor': 2.0.; allowed: None": {
        "rope_scaling": {"type": "linear", "factor": 2.0}
    },
    "attention_bias: True; allowed: False": {"attention_bias": True},
    "hidden_act: 'gelu'; allowed: 'silu'": {"hidden_act": "gelu"},
    "weights: missing keys, model.layers.2": {"num_hidden_layers": 3},
    "weights: unexpected keys, model.layers.1": {"num_hidden_layers": 1},
}


@pytest.mark.parametrize("message", REFUSED)
def test_a_configuration_that_is_not_read_is_one_line(folder, message):
    (folder / "config.json").write_text(json.dumps(CONFIG | REFUSED[message]))
    with pytest.raises(DecodingError, match=message) as error:
        emu3p5.load_emu3p5(folder)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("table", [None, "", "IQ==", "IQ== 1\n", "!! 0\n", "IQ== 0\nIg== 0\n"])
def test_a_damaged_table_of_byte_pairs_is_one_line(folder, table):
    file = folder / "emu3.tiktoken"
    file.unlink() if table is None else file.write_text(table)
    with pytest.raises(DecodingError, match=r"emu3.tiktoken: (no such file|not a table of byte pairs); allowed: that"):
        read_tokenizer(folder)


def merge_pairs(piece):
    """Merge the bytes of a piece: of neighbours that make a word, those of the smallest id, first ones first."""
    words = {word: 256 + i for i, word in enumerate(PAIRS)}
    parts = [bytes([b]) for b in piece]
    while found := [(words[a + b], i) for i, (a, b) in enumerate(pairwise(parts)) if a + b in words]:
        i = min(found)[1]
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    return [words[part] if len(part) > 1 else part[0] for part in parts]


def test_words_are_merged_in_the_order_of_their_ids(folder):
    words = read_tokenizer(folder)
    rng = random.Random(0)
    for _ in range(200):
        text = "".join(rng.choice("red fé京😀") for _ in range(rng.randint(0, 30))).replace(" ", "")
        assert words.encode(text).ids == merge_pairs(text.encode())
    assert words.encode(" fed red").ids == [259, *b"ed", *b" ", 258]
    assert words.encode("e\u0301").ids == words.encode("\u00e9").ids  # NFC
    assert words.decode(words.encode("a red fox, 北京").ids) == "a red fox, 北京"


def test_prompts_are_those_of_the_authors(folder):
    words = read_tokenizer(folder)
    inputs, unconditional = encode_prompts(words, ["a red {} fox", "b"], 64, 48)
    decode = lambda ids: words.decode(ids.tolist(), skip_special_tokens=False)  # noqa: E731
    size = " ASSISTANT: <|extra_100|><|image start|>64*48<|image token|>"
    first, second = map(decode, inputs["input_ids"])
    assert first == f"<|extra_203|>You are a helpful assistant for t2i task. USER: a red {{}} fox{size}"
    assert (
        second.replace("<|endoftext|>", "") == f"<|extra_203|>You are a helpful assistant for t2i task. USER: b{size}"
    )
    assert decode(unconditional["input_ids"][1]) == f"<|extra_203|>You are a helpful assistant. USER: {size}"
    padding = second.count("<|endoftext|>")
    assert padding > 0
    assert inputs["attention_mask"][1].tolist() == [0] * padding + [1] * (len(inputs["input_ids"][1]) - padding)
    assert bool(unconditional["attention_mask"].all())


def test_the_image_s_end_is_in_place_of_the_last_separator():
    case = Emu3p5()
    first = case.tokens[0]
    names = {name: first - len(SPECIAL) + i for i, name in enumerate(SPECIAL)}
    line, end = names["<|extra_200|>"], names["<|image end|>"]
    images = image_model(case.owner, rows=2, columns=3)
    assert images.forced.tolist() == [-1, -1, -1, line, -1, -1, -1, end]
    assert images.chosen.tolist() == list(case.tokens)
    tokens = torch.tensor([[first, first + 1, first + 2, line, first + 3, first + 4, first + 5, end]])
    assert images.decode(tokens).tolist() == [[[0, 1, 2], [3, 4, 5]]]
    scaled = image_model(case.owner, rows=2, columns=3, decode_codes=lambda codes: codes / 5)
    assert float(scaled.decode(tokens).max()) == 1


def test_another_width_draws_another_image():
    """Must fail: a grammar of another width."""
    case = Emu3p5()
    request = case.make_request(2, rows=2, guided=True)
    drawn = {}
    for columns in (3, 4):
        images = image_model(case.owner, rows=3, columns=columns)
        more = images.make_request({"input_ids": request.ids, **request.keywords})
        options = request.keywords | {key: more[key] for key in ("logits_processor", "max_new_tokens")}
        sampled = options | {"do_sample": True, "seed": 5}
        plain = case.model.generate(request.ids, **sampled, custom_generate=ar)
        fast = case.model.generate(request.ids, **sampled, custom_generate=sjd_coupled, window=5)
        assert torch.equal(fast, plain)
        drawn[columns] = plain[:, request.ids.shape[1] :]
        greedy = case.model.generate(request.ids, **options, do_sample=False)
        assert torch.equal(case.model.generate(request.ids, **options, do_sample=False, custom_generate=ar), greedy)
    assert not torch.equal(drawn[3], drawn[4][:, : drawn[3].shape[1]])
