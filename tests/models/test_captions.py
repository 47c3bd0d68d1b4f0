"""Captions as the published encoder reads them: cleaned, and cut where its tokenizer cuts them."""

import pytest
import torch
from transformers import PreTrainedTokenizerFast

from parity.embedded.tokenizer import tokenizer
from parity.models.discrete.cleaning import clean
from parity.models.discrete.t5 import read_encoder, t5_encoder

# what the published cleaning makes of them (run beside it on these and on 60,000 random captions: no difference)
CLEANED = {
    "A Red Circle -- with #3 & &amp; more": "a red circle - with more",
    "<person> at www.example.com/x?y=1 and https://a.b.org/c": "person at ?y=1 and",
    '"quoted caption"': "quoted caption",
    "a_b_c_d_e-f": "a b c d e f",
    "a-b-c-d": "a-b-c-d",
    "ABC123 photo 640x480 .jpg IMG_2034.png": "photo .",
    "Free shipping worldwide download free click for more": "worldwide",
    "你好 circle ㈱": "circle",
    "“smart” ‘quotes’ — dash – dash": "\"smart\" 'quotes' - dash - dash",
    "@nick hello&quot;x": 'hello"x',
    "...dots... \\n newline": "dots newline",
    "<b>bold</b> text &lt;i&gt;": "bold text",
    "%20 percent %41": "percent a",
    "10x20 10.5х3": "",
    "a&amp;amp;b": "a;b",
}


@pytest.mark.parametrize("caption", CLEANED)
def test_a_caption_is_cleaned_as_the_published_code_does(caption):
    assert clean(caption) == CLEANED[caption]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A T5 encoder as published ones lie in a folder; its words are those of Scenes."""
    path = tmp_path_factory.mktemp("t5")
    torch.manual_seed(0)
    t5_encoder().save_pretrained(path)
    words = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer(), pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    )
    words.save_pretrained(path)
    return path


def test_a_published_encoder_reads_cleaned_captions(folder):
    encode = read_encoder(folder, 8)
    plain, written = (encode([c])["embeddings"] for c in ("a red circle", "A RED Circle ™ https://example.com/x"))
    assert torch.equal(plain, written)
    assert not torch.equal(plain, encode(["a red circle example"])["embeddings"])  # it does read its caption


def test_a_caption_of_too_many_tokens_is_cut_and_counted(folder, capsys):
    encode = read_encoder(folder, 8)
    both = encode(["a red circle", "a " + "red " * 30])
    assert both["valid"].sum(1).tolist() == [3, 8] and "1 of 2 are longer than 8 tokens" in capsys.readouterr().err
    assert torch.allclose(both["embeddings"][1:], encode(["a red red red red red red red"])["embeddings"], atol=1e-5)
    assert not capsys.readouterr().err
