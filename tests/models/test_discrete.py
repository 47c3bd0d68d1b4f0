"""Discrete models from an entry to images; captions are cleaned, cut and encoded as with the published encoder."""

import hashlib
import re
import shutil
import string
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from transformers import AutoTokenizer, T5ForConditionalGeneration

from parity.base.digests import combine_digests
from parity.base.errors import ConfigError, ParityError
from parity.base.weights import load_weights, sha256
from parity.embedded.tokenizer import encode_ids
from parity.experiment import caption_cleaning, weights
from parity.experiment.schema import ModelSpec
from parity.models import fetch
from parity.models.continuous.kl import KL, KLConfig
from parity.models.discrete import load as models
from parity.models.discrete.chameleon import VQGAN
from parity.models.discrete.llamagen import LlamaGenConfig, Transformer
from parity.models.discrete.t5 import clean, make_t5_encoder, pad_left, read_encoder
from parity.models.discrete.vq import VQ, VQConfig, to_images

SMALL = {"vocab": 64, "dim": 32, "layers": 1, "heads": 2, "grid": 4, "prefix": 8, "caption_dim": 16, "multiple_of": 16}


def write_published(tmp_path, **other_files):
    """Pickle a random transformer as it is released, beside other things; return it and the configuration's entry."""
    torch.manual_seed(0)
    net = Transformer(LlamaGenConfig(**SMALL))
    torch.save({"model": net.state_dict(), "steps": 3}, tmp_path / "t2i.pt")
    files = {"transformer": str(tmp_path / "t2i.pt"), **other_files}
    digests = {name: hashlib.sha256(Path(f).read_bytes()).hexdigest() for name, f in files.items()}
    return net, {"family": "llamagen", "source": "files", "files": files, "sha256": digests, "network": SMALL}


def test_published_files_are_verified_and_converted(tmp_path):
    net, spec = write_published(tmp_path)
    manifest = fetch.make_manifest("discrete", "m", spec, tmp_path / "out")
    converted = Transformer(LlamaGenConfig(**SMALL))
    load_weights(converted, Path(manifest["files"]["transformer"]))
    for a, b in zip(net.state_dict().values(), converted.state_dict().values(), strict=True):
        assert torch.equal(a, b)
    assert manifest["network"] == SMALL
    with pytest.raises(ParityError, match=r"models\.m\.files\.transformer = .*SHA-256 is .* expected 0000"):
        fetch.make_manifest("discrete", "m", spec | {"sha256": {"transformer": "0" * 64}}, tmp_path / "out")
    with pytest.raises(ParityError, match="no such file"):
        fetch.make_manifest("discrete", "m", spec | {"files": {"transformer": "nowhere.pt"}}, tmp_path / "out")


def test_files_of_different_models_are_one_line(tmp_path):
    _, spec = write_published(tmp_path, vq=str(weights.EMBEDDED / "vq.safetensors"))
    manifest = fetch.make_manifest("discrete", "m", spec, tmp_path / "out")
    assert models.image_side(manifest) == 4 * 4  # 4 codes a side, each of 4 pixels, the tokenizer's stride
    with pytest.raises(ParityError, match="the tokenizer has 1024 codes, the transformer 64"):
        models.load(manifest)
    swapped = manifest | {"files": manifest["files"] | {"vq": manifest["files"]["transformer"]}}
    with pytest.raises(ParityError, match=r"t2i\.pt: not an image tokenizer of LlamaGen: 'quantize"):
        models.load(swapped)


SIZES = {"ch": 32, "ch_mult": (1, 1), "res_blocks": 1}


def compute_rounding(net, compute):
    """Compute how far a network's float32 is from its float64, in the scale of that, where all its inner numbers lie
    around 300; compute: makes a tensor by the network from its dtype."""
    for part in (net.decoder, getattr(net, "encoder", None)):
        if part is not None:
            for layer in (part.conv_in, part.mid[1].proj_out):
                torch.nn.init.constant_(layer.bias, 300.0)
    narrow = compute(torch.float32)
    net.double()
    wide = compute(torch.float64)
    net.float()
    return float((narrow - wide).abs().max() / wide.abs().max())


@torch.inference_mode()
def test_image_tokenizers_lose_no_digits_in_their_norms():
    """A CPU's GroupNorm with channels last errs by some .01 here, with channels first by 1e-6."""
    torch.manual_seed(0)
    tokens = torch.arange(64)
    images = to_images(np.random.default_rng(0).integers(0, 255, (1, 16, 16, 3), np.uint8))
    vq = VQ(VQConfig(codebook=64, z_channels=32, **SIZES)).eval()
    vqgan = VQGAN(VQConfig(codebook=64, code_dim=32, z_channels=32, **SIZES)).eval()
    kl = KL(KLConfig(dim=16, **SIZES)).eval()
    latents = torch.randn(2, 64, 16)
    assert compute_rounding(vq, lambda dtype: vq.decode(tokens[None])) < 1e-4
    assert compute_rounding(vq, lambda dtype: vq.latents(images.to(dtype))) < 1e-4
    assert compute_rounding(vqgan, lambda dtype: vqgan.decode(tokens.view(1, 8, 8))) < 1e-4
    assert compute_rounding(kl, lambda dtype: kl.decode(latents.to(dtype))) < 1e-4
    assert compute_rounding(kl, lambda dtype: kl.moments(images.to(dtype))[0]) < 1e-4


def test_the_image_tokenizer_is_never_narrower_than_the_network(tmp_path):
    manifest = fetch.make_manifest("discrete", "m", {"family": "llamagen"}, tmp_path)
    for dtype, expected in ((torch.float64, torch.float64), (torch.bfloat16, torch.float32)):
        vq = models.load_networks(manifest, ["vq"], "cpu", dtype)["vq"]
        assert vq.quantize.embedding.weight.dtype == expected


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


UNREAD = {  # captions of which a published encoder reads nothing, and why
    "一只红色的猫": "empty", "@midjourney": "empty", "#12345": "empty", "<br/>": "empty",
    "https://example.com/a": "empty", "cat.png": "empty", "1234567": "empty", "&amp;": "empty", "***": "empty",
    "free shipping": "empty", "IMG0001": "empty", "кот": "no token", "😀 😀": "no token", "แมว": "no token",
}  # fmt: skip


@pytest.mark.parametrize("caption", UNREAD)
def test_a_caption_of_which_nothing_is_read_is_refused(published, caption):
    """When prompts are read, by number and text; by the encoder itself, too."""
    spec = ModelSpec(family="llamagen", source="files", files={"text": str(published[0])})
    check = caption_cleaning.check_prompts
    with pytest.raises(
        ConfigError, match=rf"^prompts: prompt 2 \({re.escape(repr(caption))}\).* {UNREAD[caption]}.*3$"
    ):
        check(["a dog", caption, caption, "a cat"], spec, "prompts: ")
    with pytest.raises(ParityError, match=re.escape(repr(caption))):
        read_encoder(published[0], 8)(["a dog", caption])
    check(["a dog", f"{caption} a cat"], spec)
    check([caption], ModelSpec(family="janus", source="files", files={"model": "m"}))
    check([caption], spec.model_copy(update={"network": {"classes": 9}}))
    far_away = spec.model_copy(update={"files": {"text": "hub:owner/name@commit:flan-t5-xl"}})
    if UNREAD[caption] == "empty":
        with pytest.raises(ConfigError, match="prompt 1"):
            check([caption], far_away)


def test_a_length_that_leaves_the_end_token_alone_reads_nothing(published):
    find = [caption_cleaning.make_finder(published[0], length) for length in (1, 2)]
    assert [bool(f("a red circle")) for f in find] == [True, False]
    with pytest.raises(ParityError, match="no token"):
        read_encoder(published[0], 1)(["a red circle"])
    assert read_encoder(published[0], 2)(["a red circle"])["valid"].sum() == 2


PIECES = ["red", "Cat", "a", ".", ",", *"   ", "'", "click", "on", "page", "png", "free shipping", "ru", "7", "<"]


@settings(max_examples=300, deadline=None)
@given(pieces=st.lists(st.sampled_from(PIECES), min_size=1, max_size=8))
def test_cleaning_leaves_a_word_of_every_plain_caption(pieces):
    caption = "".join(pieces)
    if caption_cleaning.is_plain(caption):
        assert re.search("[a-z]{2}", clean(caption))
    assert not caption_cleaning.is_plain("click on red")
    assert caption_cleaning.is_plain("A red cat, on a mat.")


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
