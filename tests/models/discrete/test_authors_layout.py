"""Lumina-mGPT and Anole in their authors' layout; their prompts and those of Janus as their authors write them."""

from pathlib import Path

import pytest
import torch
import yaml

from parity.base.weights import save_weights, tensors
from parity.models import add
from parity.models.discrete import chameleon, llama
from parity.models.discrete.load import load, load_encoder
from tests.families import CAPTIONS, make_manifest


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
    ("layout", "law"),
    [("anole", {"guidance": 3.0, "temperature": 0.7, "top_p": 0.9}), ("chameleon", {"guidance": 3.0, "top_k": 64})],
)
def test_a_model_is_added_with_its_authors_sampling(tmp_path, layout, law):
    files = make_manifest(layout, tmp_path / "model")["files"]
    other_files = {name: Path(file) for name, file in files.items() if name != "model"}
    add.write("m", add.find(files["model"], None, other_files, pixels=96), tmp_path / "m.yaml", tell=lambda text: None)
    assert yaml.safe_load((tmp_path / "m.yaml").read_text())["image"]["sampling"] == law
