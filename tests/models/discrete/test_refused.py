"""Damaged files of a published family are refused in a line; its authors' layouts and prompts are read as theirs."""

import shutil
from pathlib import Path

import pytest
import torch
import yaml

from parity.base.errors import ConfigError, ParityError
from parity.base.weights import read_shapes, save_weights, tensors
from parity.experiment import model_checks
from parity.experiment.schema import ModelSpec
from parity.models import add
from parity.models.discrete import chameleon, llama
from parity.models.discrete.load import load, load_encoder
from tests.families import CAPTIONS, make_manifest


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
    "a layer more": (edit_file("config.json", 'hidden_layers": 2', 'hidden_layers": 3'), ["missing backbone.layers.2"]),
    "a shard": (lambda folder: sorted(folder.glob("*.safetensors"))[1].unlink(), ["model-00002-of"]),
    "names of codes": (edit_file("tokenizer.json", "IMGIMG", "PICPIC"), ["codes are not", "allowed"]),
    "no tokenizer": (lambda folder: (folder / "tokenizer.json").write_text("{}"), ["not a tokenizer"]),
    "eight bits": (change_weights(lambda t: t.to(torch.float8_e4m3fn)), ["float8", "allowed", "mlp"]),
    "no numbers": (change_weights(lambda t: torch.full_like(t, float("nan"))), ["NaN", "allowed", "mlp"]),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_folder_is_one_line(copied, name):
    manifest, folder = copied
    damage, fragments = DAMAGES[name]
    damage(folder)
    with pytest.raises(ParityError) as error:
        load(manifest)
    assert_one_line(error, *fragments)
    if name != "no numbers":  # adding a model reads no values
        with pytest.raises(ParityError):
            add.find(str(folder), None, {"vq": Path(manifest["files"]["vq"])}, pixels=96)


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


def is_norm(name):
    return ".q_norm." in name or ".k_norm." in name


def split_norms_by_device(file, n_devices):
    """Rewrite a file of weights: norms of queries and keys get one row for each of n devices in place of each head."""
    state = torch.load(file, weights_only=True) if file.suffix == ".bin" else dict(tensors(file))
    for name, tensor in state.items():
        if is_norm(name):
            state[name] = tensor[:: len(tensor) // n_devices].clone()
    if file.suffix == ".bin":
        torch.save(state, file)
    else:
        save_weights(state, file)


@pytest.mark.parametrize("n_devices", [1, 2])
def test_norms_by_device_are_repeated_for_its_heads(tmp_path, n_devices):
    manifest = make_manifest("chameleon", tmp_path)
    (folder,) = {file.parent for file in tmp_path.rglob("*.safetensors")}
    by_head = {k: v for k, v in load(manifest).nets["net"].state_dict().items() if is_norm(k)}
    for file in folder.glob("*.safetensors"):
        split_norms_by_device(file, n_devices)
    by_device = {k: v for k, v in load(manifest).nets["net"].state_dict().items() if is_norm(k)}
    assert by_device.keys() == by_head.keys()
    assert by_device
    for name, tensor in by_device.items():
        each = len(tensor) // n_devices
        assert torch.equal(tensor, by_head[name][::each].repeat_interleave(each, 0))


def test_anoles_prompts_are_those_of_its_authors(tmp_path):
    manifest = make_manifest("anole", tmp_path)
    words, _, named = chameleon.read_vocabulary(manifest)
    inputs = load_encoder(manifest)(CAPTIONS)
    for row, caption in enumerate(CAPTIONS):
        prompt = inputs["words"][row][inputs["valid"][row].bool()].tolist()
        text = words.encode(caption, add_special_tokens=False).ids
        assert prompt == [named["<s>"], *text, named[chameleon.TURN], named[chameleon.BEGIN]]
        negative = inputs["negative"][row][inputs["negative_valid"][row].bool()].tolist()
        assert negative == [named["<s>"], named[chameleon.BEGIN]]


def write_prompt_of_janus(caption):
    """Write a prompt as its authors do: Conversation.get_prompt with the separators of "deepseek", stripped."""
    prompt = ""
    for role, message in (("<|User|>", caption.strip()), ("<|Assistant|>", "")):
        prompt += f"{role}: {message}\n\n" if message else f"{role}:"
    return prompt.strip()


def test_the_prompts_of_janus_are_those_of_its_authors(tmp_path):
    manifest = make_manifest("janus", tmp_path)
    words = llama.read_tokenizer(Path(manifest["files"]["model"]))
    captions = ["a red ball", " two\n\ncats ", "", " "]
    inputs = load_encoder(manifest)(captions)
    for ids, valid, caption in zip(inputs["words"], inputs["valid"], captions, strict=True):
        prompt = words.encode(write_prompt_of_janus(caption), add_special_tokens=False).ids
        assert ids[valid.bool()].tolist()[1:-1] == prompt


@pytest.mark.parametrize(
    ("layout", "sampling"),
    [("anole", {"guidance": 3.0, "temperature": 0.7, "top_p": 0.9}), ("chameleon", {"guidance": 3.0, "top_k": 64})],
)
def test_a_model_is_added_with_its_authors_sampling(tmp_path, layout, sampling):
    files = make_manifest(layout, tmp_path / "model")["files"]
    other_files = {name: Path(file) for name, file in files.items() if name != "model"}
    add.write("m", add.find(files["model"], None, other_files, pixels=96), tmp_path / "m.yaml", tell=lambda text: None)
    assert yaml.safe_load((tmp_path / "m.yaml").read_text())["image"]["sampling"] == sampling
