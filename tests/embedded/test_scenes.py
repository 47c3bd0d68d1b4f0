"""Scenes: a picture is its seed's, a caption says what is fixed, and what is held out is held out."""

from pathlib import Path

import numpy as np
import pytest

from parity.base.errors import ParityError
from parity.embedded import classes, scenes
from recipes import captions

PROMPTS = Path(__file__).parents[2] / "prompts"


def test_a_scene_is_a_function_of_its_seed_and_its_caption_says_what_is_fixed():
    for seed in range(40):
        for test in (False, True):
            caption, picture = scenes.draw_example(seed, test)
            again = scenes.draw_example(seed, test)
            assert again[0] == caption and np.array_equal(again[1], picture) and picture.shape == (64, 64, 3)
            assert scenes.is_held_out(caption) == test and scenes.parse(caption).caption == caption
            assert set(caption.split()) <= set(scenes.WORDS)
    assert not np.array_equal(scenes.draw_ground_truth(caption, 0), scenes.draw_ground_truth(caption, 1))


def test_a_caption_of_something_else_is_named():
    with pytest.raises(ParityError, match="not a Scenes caption at 'dog in the rain': expected one of"):
        scenes.parse("a dog in the rain")


def test_a_class_is_a_shape_and_its_colour():
    seen = set()
    for seed in range(60):
        label, caption, _ = classes.draw_example(seed, False)
        colour, shape = classes.CLASSES[label].split()
        assert f"a large {colour} {shape} on" in caption and not scenes.is_held_out(caption)
        seen.add(label)
    assert len(seen) > 25 and len(classes.CLASSES) == 60


@pytest.mark.parametrize("kind, other", [("plain", "detailed"), ("detailed", "plain")])
def test_prompt_sets_are_held_out_captions_of_one_kind(kind, other):
    lines = (PROMPTS / f"{kind}.txt").read_text().splitlines()
    assert len(set(lines)) == len(lines) == 100 and lines[:3] == captions.captions(kind, 3)
    for line in lines:
        scene = scenes.parse(line)
        assert scenes.is_held_out(line) and captions.KINDS[kind](scene) and not captions.KINDS[other](scene)
