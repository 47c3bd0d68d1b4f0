"""What is wrong with the files of a published family, or with a caption, is one line that says so."""

import shutil

import pytest
import torch

from parity.base.errors import ConfigError, ParityError
from parity.base.weights import read_shapes, save_weights, tensors
from parity.experiment import model_checks
from parity.experiment.schema import ModelSpec
from parity.models.discrete.load import load, load_encoder
from tests.families import make_manifest


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    return make_manifest("chameleon", tmp_path_factory.mktemp("chameleon"))


@pytest.fixture
def said(written, tmp_path):
    """A copy of Lumina-mGPT's stand-in, to be spoiled: its manifest and its folder."""
    folder = shutil.copytree(written["files"]["model"], tmp_path / "model")
    return written | {"files": written["files"] | {"model": str(folder)}}, folder


def one_line(error, *parts):
    text = str(error.value)
    assert "\n" not in text, text
    assert all(part in text for part in parts), text


def edited(name, old, new):
    def spoil(folder):
        text = (folder / name).read_text()
        assert old in text
        (folder / name).write_text(text.replace(old, new))

    return spoil


MLP = "layers.0.mlp"


def weighed(change):
    def spoil(folder):
        file = next(f for f in sorted(folder.glob("*.safetensors")) if any(MLP in name for name in read_shapes(f)))
        state = dict(tensors(file, dtype=None))
        save_weights({k: change(t) if MLP in k else t for k, t in state.items()}, file)

    return spoil


SPOILED = {
    "another type": (edited("config.json", '"chameleon"', '"qwen2"'), ["'qwen2'", "allowed here: 'chameleon'"]),
    "a layer more": (edited("config.json", 'hidden_layers": 2', 'hidden_layers": 3'), ["missing layers.2"]),
    "a shard": (lambda folder: sorted(folder.glob("*.safetensors"))[1].unlink(), ["model-00002-of"]),
    "names of codes": (edited("tokenizer.json", "IMGIMG", "PICPIC"), ["codes are not", "allowed"]),
    "no tokenizer": (lambda folder: (folder / "tokenizer.json").write_text("{}"), ["not a tokenizer"]),
    "eight bits": (weighed(lambda t: t.to(torch.float8_e4m3fn)), ["float8", "allowed", "mlp"]),
    "no numbers": (weighed(lambda t: torch.full_like(t, float("nan"))), ["NaN", "allowed", "mlp"]),
}


@pytest.mark.parametrize(("spoil", "parts"), SPOILED.values(), ids=SPOILED)
def test_a_spoiled_folder_is_one_line(said, spoil, parts):
    given, folder = said
    spoil(folder)
    with pytest.raises(ParityError) as error:
        load(given)
    one_line(error, *parts)


def test_a_vq_that_is_none_and_codes_that_do_not_fit(said, tmp_path):
    given, _ = said
    torch.save({"state_dict": {"encoder.conv_in.weight": torch.zeros(1)}}, tmp_path / "vqgan.ckpt")
    with pytest.raises(ParityError) as error:
        load(given | {"files": given["files"] | {"vq": str(tmp_path / "vqgan.ckpt")}})
    one_line(error, "vqgan.ckpt", "allowed: Meta's vqgan.ckpt")
    with pytest.raises(ParityError) as error:
        load(given | {"network": given["network"] | {"vocab": 8192}})
    one_line(error, "64 codes", "8192")


@pytest.mark.parametrize("caption", ["a <racm3:break> here", "\ud800"])
def test_captions_that_no_tokenizer_can_hold(said, caption):
    with pytest.raises(ParityError) as error:
        load_encoder(said[0])(["fine", caption])
    one_line(error, "caption")


def test_a_long_caption_is_cut_and_counted(said, capsys):
    inputs = load_encoder(said[0])(["word " * 400])
    assert "1 of 1 are longer than 1024 tokens" in capsys.readouterr().err
    assert inputs["valid"].all()


@pytest.mark.parametrize(
    ("given", "parts"),
    [({"rows": 47}, ["network.rows = 47", "multiple of 2"]), ({"line": 2}, ["network.line = 2", "at most 1"])],
)
def test_sizes_that_no_picture_has(given, parts):
    spec = ModelSpec(
        family="chameleon", source="files", files={"model": "/m"}, sha256={"model": "0" * 64}, network=given
    )
    with pytest.raises(ConfigError) as error:
        model_checks.check_network("lumina", spec)
    one_line(error, *parts)


def test_a_part_that_a_family_lacks_and_an_embedded_model_that_is_none():
    files = {"model": "/", "text": "/"}
    spec = ModelSpec(family="janus", source="files", files=files, sha256=dict.fromkeys(files, "0" * 64))
    with pytest.raises(ConfigError) as error:
        model_checks.check_files("pro", spec)
    one_line(error, "files.text", "allowed: model")
    with pytest.raises(ConfigError) as error:
        model_checks.check_trained("pro", ModelSpec(family="janus"))
    one_line(error, "'janus'", "no model of it is embedded")
