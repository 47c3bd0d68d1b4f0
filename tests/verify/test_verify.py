"""`parity verify`: injected faults are found in eight images, in float32 and bfloat16; correct decoders pass."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from parity_decoders import window
from torch.nn.functional import pad

import parity
from parity.verify import verify

pytestmark = pytest.mark.usefixtures("in_clone")

CAPTIONS = ["a large red circle on a blue background", "a small green square on a yellow background"]


CONFIG = """
experiment: small
models: {scenes: {family: llamagen, grid: 8}}
image: {prompts: {file: prompts/scenes.txt}, methods: {ar: [{}]}}
"""


@pytest.fixture
def make_scenes(tmp_path):
    """A function of a dtype and of what computes a pass, which makes the smaller embedded model of images."""
    file = tmp_path / "small.yaml"
    file.write_text(CONFIG)
    return partial(load_scenes, file)


def load_scenes(file, dtype, fault=None):
    """Load the model of a configuration, whose passes have a fault, if one is given."""
    scenes = parity.load("scenes", file, dtype)
    loaded = scenes.load_networks("ar")
    if fault is not None:
        net = loaded.nets["net"]
        scenes.loaded[""] = replace(loaded, run=lambda **inputs: net(**fault(inputs)))
    return scenes


def store_one_off(inputs):
    """Let tokens after the first take the next slot of the cache (a fault)."""
    cache = inputs["past_key_values"]
    after_first = torch.arange(cache.slots.shape[1]) > 0
    cache.slots = (cache.slots + after_first).clamp(max=cache.on.shape[1] - 1)
    return inputs


def see_next_slot(inputs):
    """Let tokens see the slot after their own, a hole or what an earlier pass left there (a fault)."""
    mask = inputs["attention_mask"]
    return inputs | {"attention_mask": torch.maximum(mask, pad(mask[..., :-1], (1, 0), value=mask.min()))}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("run", [store_one_off, see_next_slot])
@pytest.mark.parametrize("method", ["sjd_coupled"])
def test_a_faulty_pass_is_found(make_scenes, dtype, run, method):
    found = verify(make_scenes(dtype, run), CAPTIONS, method)
    assert found.is_fault, found


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_distribution_that_is_stored_wrong_is_found(make_scenes, monkeypatch, dtype):
    """The distribution of each slot is stored as its left neighbour's."""
    write = window.ProbsByPosition.write
    monkeypatch.setattr(window.ProbsByPosition, "write", lambda self, i, probs: write(self, i, probs.roll(1, 1)))
    found = verify(make_scenes(dtype), CAPTIONS, "sjd")
    assert found.is_fault, found


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("method", ["mtj", "sjd"])
def test_a_correct_decoder_passes(make_scenes, dtype, method):
    found = verify(make_scenes(dtype), CAPTIONS, method)
    assert not found.is_fault, found


@pytest.mark.parametrize("method", ["sjd_coupled", "sjd"])
def test_tokens_a_pass_are_counted(make_scenes, method):
    """A window of one token is plain decoding, which draws one a pass."""
    scenes = make_scenes("float32")
    assert verify(scenes, CAPTIONS, method, 2, window=1).per_pass == 1
    assert verify(scenes, CAPTIONS, method, 2, window=8).per_pass > 1
