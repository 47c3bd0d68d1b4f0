"""What is wrong with the files of a published family, or with a caption, is one line that says so."""

import json
import shutil

import pytest
import torch

from parity.base.errors import ConfigError, ParityError
from parity.base.weights import save_weights, shapes, tensors
from parity.experiment import weights
from parity.experiment.schema import ModelSpec
from parity.models.discrete.load import encoder, load
from tests.families import manifest


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    return manifest("chameleon", tmp_path_factory.mktemp("chameleon"))


@pytest.fixture
def said(written, tmp_path):
    """A copy of Lumina-mGPT's stand-in, to be spoiled: its manifest and its folder."""
    folder = shutil.copytree(written["files"]["model"], tmp_path / "model")
    return written | {"files": written["files"] | {"model": str(folder)}}, folder


def rewritten(file, change):
    held = json.loads(file.read_text())
    change(held)
    file.write_text(json.dumps(held))


def one_line(error, *parts):
    text = str(error.value)
    assert "\n" not in text and all(part in text for part in parts), text


def set_config(**change):
    return lambda folder: rewritten(folder / "config.json", lambda config: config.update(change))


def replace_names(old, new):
    def spoil(folder):
        file = folder / "tokenizer.json"
        file.write_text(file.read_text().replace(old, new))

    return spoil


SPOILED = {
    "another type": (set_config(model_type="qwen2"), ["'qwen2'", "allowed here: 'chameleon'"]),
    "a layer more": (set_config(num_hidden_layers=3), ["missing layers.2"]),
    "a shard": (lambda folder: sorted(folder.glob("*.safetensors"))[1].unlink(), ["model-00002-of"]),
    "names of codes": (replace_names("IMGIMG", "PICPIC"), ["codes are not", "allowed"]),
    "no tokenizer": (
        lambda folder: (folder / "tokenizer.json").write_text('{"version": "1.0"}'),
        ["tokenizer.json", "not a tokenizer"],
    ),
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
        encoder(said[0])(["fine", caption])
    one_line(error, "caption")


def test_a_long_caption_is_cut_and_counted(said, capsys):
    inputs = encoder(said[0])(["word " * 400])
    assert "1 of 1 are longer than 1024 tokens" in capsys.readouterr().err
    assert inputs["valid"].all()


@pytest.mark.parametrize(
    ("given", "parts"),
    [
        ({"rows": 47}, ["network.rows = 47", "multiple of 2"]),
        ({"line": 2}, ["network.line = 2", "at most 1"]),
    ],
)
def test_sizes_that_no_picture_has(given, parts):
    spec = ModelSpec(
        family="chameleon", source="files", files={"model": "/m"}, sha256={"model": "0" * 64}, network=given
    )
    with pytest.raises(ConfigError) as error:
        weights.check_network("lumina", spec)
    one_line(error, *parts)


def test_a_part_that_a_family_lacks_and_an_embedded_model_that_is_none():
    files = {"model": "/", "text": "/"}
    spec = ModelSpec(family="janus", source="files", files=files, sha256=dict.fromkeys(files, "0" * 64))
    with pytest.raises(ConfigError) as error:
        weights.check_files("pro", spec)
    one_line(error, "files.text", "allowed: model")
    with pytest.raises(ConfigError) as error:
        weights.check_trained("pro", ModelSpec(family="janus"))
    one_line(error, "'janus'", "no model of it is embedded")


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        (lambda t: t.to(torch.float8_e4m3fn), "float8"),
        (lambda t: torch.full_like(t, float("nan")), "NaN"),
    ],
)
def test_weights_that_are_no_numbers_are_one_line(said, change, shown):
    given, folder = said
    file, name = next(
        (file, name) for file in sorted(folder.glob("*.safetensors")) for name in shapes(file) if "layers.0.mlp" in name
    )
    state = dict(tensors(file, dtype=None))
    save_weights(state | {name: change(state[name])}, file)
    with pytest.raises(ParityError) as error:
        load(given)
    one_line(error, shown, "allowed", "mlp")
