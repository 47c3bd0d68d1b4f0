"""Damaged files of a published family and bad captions are refused in one line."""

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
    """The manifest of a stand-in of Lumina-mGPT."""
    return make_manifest("chameleon", tmp_path_factory.mktemp("chameleon"))


@pytest.fixture
def copied(written, tmp_path):
    """A copy of Lumina-mGPT's stand-in to be damaged: its manifest and its folder."""
    folder = shutil.copytree(written["files"]["model"], tmp_path / "model")
    return written | {"files": written["files"] | {"model": str(folder)}}, folder


def assert_one_line(error, *fragments):
    text = str(error.value)
    assert all(fragment in text for fragment in fragments), text


def edit_file(name, old, new):
    """Make a function that replaces text in a folder's file."""

    def edit(folder):
        text = (folder / name).read_text()
        assert old in text
        (folder / name).write_text(text.replace(old, new))

    return edit


MLP = "layers.0.mlp"


def change_weights(change):
    """Make a function that applies `change` to the tensors of one layer, MLP, in a folder's weights."""

    def edit(folder):
        file = next(f for f in sorted(folder.glob("*.safetensors")) if any(MLP in name for name in read_shapes(f)))
        state = dict(tensors(file, dtype=None))
        save_weights({k: change(t) if MLP in k else t for k, t in state.items()}, file)

    return edit


DAMAGES = {
    "another type": (edit_file("config.json", '"chameleon"', '"qwen2"'), ["'qwen2'", "allowed here: 'chameleon'"]),
    "a layer more": (edit_file("config.json", 'hidden_layers": 2', 'hidden_layers": 3'), ["missing layers.2"]),
    "a shard": (lambda folder: sorted(folder.glob("*.safetensors"))[1].unlink(), ["model-00002-of"]),
    "names of codes": (edit_file("tokenizer.json", "IMGIMG", "PICPIC"), ["codes are not", "allowed"]),
    "no tokenizer": (lambda folder: (folder / "tokenizer.json").write_text("{}"), ["not a tokenizer"]),
    "eight bits": (change_weights(lambda t: t.to(torch.float8_e4m3fn)), ["float8", "allowed", "mlp"]),
    "no numbers": (change_weights(lambda t: torch.full_like(t, float("nan"))), ["NaN", "allowed", "mlp"]),
}


@pytest.mark.parametrize(("damage", "fragments"), DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_folder_is_one_line(copied, damage, fragments):
    manifest, folder = copied
    damage(folder)
    with pytest.raises(ParityError) as error:
        load(manifest)
    assert_one_line(error, *fragments)


def test_an_unfit_image_tokenizer_is_one_line(copied, tmp_path):
    manifest, _ = copied
    torch.save({"state_dict": {"encoder.conv_in.weight": torch.zeros(1)}}, tmp_path / "vqgan.ckpt")
    with pytest.raises(ParityError) as error:
        load(manifest | {"files": manifest["files"] | {"vq": str(tmp_path / "vqgan.ckpt")}})
    assert_one_line(error, "vqgan.ckpt", "allowed: Meta's vqgan.ckpt")
    with pytest.raises(ParityError) as error:
        load(manifest | {"network": manifest["network"] | {"vocab": 8192}})
    assert_one_line(error, "64 codes", "8192")


@pytest.mark.parametrize("caption", ["a <racm3:break> here", "\ud800"])
def test_captions_no_tokenizer_can_encode_are_one_line(copied, caption):
    with pytest.raises(ParityError) as error:
        load_encoder(copied[0])(["fine", caption])
    assert_one_line(error, "caption")


def test_a_long_caption_is_cut_and_counted(copied, capsys):
    inputs = load_encoder(copied[0])(["word " * 400])
    assert "1 of 1 are longer than 1024 tokens" in capsys.readouterr().err
    assert inputs["valid"].all()


@pytest.mark.parametrize(
    ("sizes", "fragments"),
    [({"rows": 47}, ["network.rows = 47", "multiple of 2"]), ({"line": 2}, ["network.line = 2", "at most 1"])],
)
def test_impossible_sizes_are_one_line(sizes, fragments):
    files = {"files": {"model": "/m"}, "sha256": {"model": "0" * 64}}
    spec = ModelSpec(family="chameleon", source="files", network=sizes, **files)
    with pytest.raises(ConfigError) as error:
        model_checks.check_network("lumina", spec)
    assert_one_line(error, *fragments)
