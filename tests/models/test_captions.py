"""Captions are cleaned and cut as by the published encoder."""

import hashlib
import shutil
import string
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer, T5ForConditionalGeneration

from parity.base.digests import combine_digests
from parity.base.errors import ParityError
from parity.base.weights import load_weights, sha256
from parity.embedded.tokenizer import encode_ids
from parity.experiment import weights
from parity.models.discrete.t5 import clean, make_t5_encoder, pad_left, read_encoder

FOLDER, WIDTH = "flan-t5", 32  # the second is the width of the embeddings
WORDS = ("▁a", "▁red", "▁circle", "▁on", "▁blue", "▁photo", "▁of", "▁the", "▁dog", "▁cat", "▁")
# Captions and what the published cleaning makes of them; it also agreed with ours on 60,000 random captions.
CLEANED = {
    "A Red Circle -- with #3 & &amp; more": "a red circle - with more",
    "<person> at www.example.com/x?y=1 and https://a.b.org/c": "person at ?y=1 and",
    '"quoted caption"': "quoted caption",
    "a-b-c-d": "a-b-c-d",
    "Free shipping worldwide download free click for more": "worldwide",
    "你好 circle ㈱": "circle",
    "“smart” ‘quotes’ — dash – dash": "\"smart\" 'quotes' - dash - dash",
    "a&amp;amp;b": "a;b",
}


@pytest.mark.parametrize("caption", CLEANED)
def test_a_caption_is_cleaned_as_by_the_published_code(caption):
    assert clean(caption) == CLEANED[caption]


def write_t5(folder: Path) -> dict[str, Path]:
    """Write a small random Flan-T5 in the layout of google/flan-t5-xl. Token 0 is padding, 1 ends every caption, 2 is
    unknown. Return the folder's name by the part of a model it is."""
    from transformers import T5Config, T5ForConditionalGeneration, T5Tokenizer

    words = T5Tokenizer(vocab=make_vocabulary(), extra_ids=0)
    words.save_pretrained(folder / FOLDER)
    sizes: Any = {"d_model": WIDTH, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "num_decoder_layers": 1}
    sizes |= {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False, "dropout_rate": 0.0}
    config = T5Config(vocab_size=len(make_vocabulary()), **sizes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = T5ForConditionalGeneration(config)
    net.save_pretrained(folder / FOLDER)
    return {"text": Path(FOLDER)}


def make_vocabulary() -> list[tuple[str, float]]:
    """Make a unigram vocabulary: the special tokens, then words, then every printable character."""
    special = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    characters = [c for c in string.printable if c.isprintable() and c != " "]
    return special + [(word, -1.0) for word in WORDS] + [(c, -5.0) for c in characters]


@pytest.mark.parametrize("length", [24, 300])  # beyond 128, where all distances share a bucket
def test_the_embedded_encoder_is_transformers_t5(length):
    file = weights.EMBEDDED / "t5.safetensors"
    captions = ["a large red circle on a blue background", "a cat"]
    reference = make_t5_encoder().eval()
    load_weights(reference, file)
    ids, valid = encode_ids(captions, length)
    with torch.inference_mode():
        hidden = reference(input_ids=ids, attention_mask=valid).last_hidden_state
    encoded = read_encoder(file, length)(captions)
    assert torch.equal(encoded["embeddings"], pad_left(hidden, valid)[0])


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """Folders of a small Flan-T5 in the published layout, as safetensors and as a pickle."""
    path = tmp_path_factory.mktemp("stand-in")
    folder = path / write_t5(path)["text"]
    pickled = Path(shutil.copytree(folder, path / "pickled"))
    torch.save(load_file(folder / "model.safetensors"), pickled / "pytorch_model.bin")
    (pickled / "model.safetensors").unlink()
    return folder, pickled


def test_a_published_encoder_reads_cleaned_captions(published):
    encode = read_encoder(published[0], 8)
    plain, written = (encode([c])["embeddings"] for c in ("a red circle", "A RED Circle ™ https://example.com/x"))
    assert torch.equal(plain, written)
    assert not torch.equal(plain, encode(["a red dog"])["embeddings"])  # the encoder does read its caption


def test_a_caption_of_too_many_tokens_is_cut_and_counted(published, capsys):
    encode = read_encoder(published[0], 8)
    encoded = encode(["a red circle", "a " + "red " * 30])
    assert encoded["valid"].sum(1).tolist() == [4, 8]
    assert "1 of 2 are longer than 8 tokens" in capsys.readouterr().err
    assert torch.allclose(encoded["embeddings"][1:], encode(["a red red red red red red"])["embeddings"], atol=1e-5)
    assert not capsys.readouterr().err


def test_a_published_folder_gives_transformers_embeddings(published):
    """Those of the whole model's encoder, from safetensors or a pickle; the end token is read, the decoder is not."""
    reference = T5ForConditionalGeneration.from_pretrained(published[0]).eval()
    words = AutoTokenizer.from_pretrained(published[0])("a red circle", return_tensors="pt")
    with torch.inference_mode():
        expected = reference.encoder(**words).last_hidden_state[0]
    assert words["input_ids"].tolist() == [[3, 4, 5, 1]]
    assert expected.shape == (4, WIDTH)
    for folder in published:
        encoded = read_encoder(folder, 12)(["a RED circle"])
        assert torch.allclose(encoded["embeddings"][0, -4:], expected, atol=1e-6)
        assert encoded["valid"].sum() == 4
    digest = hashlib.sha256((published[1] / "pytorch_model.bin").read_bytes()).hexdigest()
    assert sha256(published[1]) == combine_digests({"pytorch_model.bin": digest})


def test_a_folder_without_an_encoder_is_one_line(published, tmp_path):
    bad = Path(shutil.copytree(published[1], tmp_path / "bad"))
    state = torch.load(bad / "pytorch_model.bin")
    lacking = {k: v for k, v in state.items() if "encoder.block.1" not in k}
    messages = "missing encoder.block.1", "not a checkpoint that can be read safely"
    for content, message in zip((lacking, {"x": Path}), messages, strict=True):
        torch.save(content, bad / "pytorch_model.bin")
        with pytest.raises(ParityError, match=message):
            read_encoder(bad, 12)
    (bad / "pytorch_model.bin").write_text("<html>")
    with pytest.raises(ParityError, match="a web page"):
        read_encoder(bad, 12)
    (bad / "pytorch_model.bin").unlink()
    with pytest.raises(ParityError, match="holds no"):
        read_encoder(bad, 12)
