"""Lumina-mGPT and Anole as their authors release and prompt them."""

from pathlib import Path

import pytest
import torch
import yaml

from parity.base.weights import save_weights, tensors
from parity.models import add
from parity.models.discrete import chameleon
from parity.models.discrete.load import load, load_encoder
from tests.families import CAPTIONS, make_manifest


def is_norm(name):
    return ".q_norm." in name or ".k_norm." in name


def as_released(file, parts):
    """Replace norms of queries and keys, a row for each head, by `parts` rows, one for each device of the training."""
    state = torch.load(file, weights_only=True) if file.suffix == ".bin" else dict(tensors(file))
    for name, tensor in state.items():
        if is_norm(name):
            state[name] = tensor[:: len(tensor) // parts].clone()
    if file.suffix == ".bin":
        torch.save(state, file)
    else:
        save_weights(state, file)


@pytest.mark.parametrize("parts", [1, 2])
def test_norms_of_one_row_a_device_are_those_of_neighbouring_heads(tmp_path, parts):
    said = make_manifest("chameleon", tmp_path)
    (folder,) = {file.parent for file in tmp_path.rglob("*.safetensors")}
    whole = {k: v for k, v in load(said).nets["net"].state_dict().items() if is_norm(k)}
    for file in folder.glob("*.safetensors"):
        as_released(file, parts)
    held = {k: v for k, v in load(said).nets["net"].state_dict().items() if is_norm(k)}
    assert held.keys() == whole.keys()
    assert held
    for name, tensor in held.items():
        each = len(tensor) // parts
        assert torch.equal(tensor, whole[name][::each].repeat_interleave(each, 0))


def test_anole_reads_the_instruction_verbatim_and_its_unconditional_row_begins_a_text(tmp_path):
    said = make_manifest("anole", tmp_path)
    words, _, named = chameleon.read_vocabulary(said)
    inputs = load_encoder(said)(CAPTIONS)
    for row, caption in enumerate(CAPTIONS):
        own = inputs["words"][row][inputs["valid"][row].bool()].tolist()
        text = words.encode(caption, add_special_tokens=False).ids
        assert own == [named["<s>"], *text, named[chameleon.TURN], named[chameleon.BEGIN]]
        negative = inputs["negative"][row][inputs["negative_valid"][row].bool()].tolist()
        assert negative == [named["<s>"], named[chameleon.BEGIN]]


@pytest.mark.parametrize(
    ("layout", "law"),
    [("anole", {"guidance": 3.0, "temperature": 0.7, "top_p": 0.9}), ("chameleon", {"guidance": 3.0, "top_k": 64})],
)
def test_a_model_is_added_with_its_authors_sampling(tmp_path, layout, law):
    files = make_manifest(layout, tmp_path / "model")["files"]
    elsewhere = {part: Path(file) for part, file in files.items() if part != "model"}
    add.write("m", add.find(files["model"], None, elsewhere, pixels=96), tmp_path / "m.yaml", tell=lambda text: None)
    assert yaml.safe_load((tmp_path / "m.yaml").read_text())["image"]["sampling"] == law
