"""Scenes and stories: an image is its seed's, words are known, what is held out is held out."""

from pathlib import Path

import numpy as np
import pytest

from parity.base.errors import ParityError
from parity.embedded import classes, scenes, stories
from recipes import captions

PROMPTS = Path(__file__).parents[2] / "prompts"


def test_a_scene_is_its_seeds_and_its_caption_is_held_out_or_not():
    for seed in range(40):
        for test in (False, True):
            caption, image = scenes.draw_example(seed, test)
            again, same_image = scenes.draw_example(seed, test)
            assert again == caption
            assert np.array_equal(same_image, image)
            assert image.shape == (64, 64, 3)
            assert scenes.is_held_out(caption) == test
            assert scenes.parse(caption).caption == caption
            assert set(caption.split()) <= set(scenes.WORDS)
    assert not np.array_equal(scenes.draw_ground_truth(caption, 0), scenes.draw_ground_truth(caption, 1))


def test_a_caption_outside_the_grammar_is_refused():
    with pytest.raises(ParityError, match="not a Scenes caption at 'dog in the rain': expected one of"):
        scenes.parse("a dog in the rain")


def test_a_class_is_a_shape_and_its_colour():
    labels = set()
    for seed in range(60):
        label, caption, _ = classes.draw_example(seed, False)
        colour, shape = classes.CLASSES[label].split()
        assert f"a large {colour} {shape} on" in caption
        assert not scenes.is_held_out(caption)
        labels.add(label)
    assert len(labels) > 25
    assert len(classes.CLASSES) == 60


@pytest.mark.parametrize("kind, opposite", [("plain", "detailed"), ("detailed", "plain")])
def test_prompt_sets_are_held_out_captions_of_one_kind(kind, opposite):
    lines = (PROMPTS / f"{kind}.txt").read_text().splitlines()
    assert len(set(lines)) == len(lines) == 100
    assert lines[:3] == captions.find_captions(kind, 3)
    for line in lines:
        scene = scenes.parse(line)
        assert scenes.is_held_out(line)
        assert captions.KINDS[kind](scene)
        assert not captions.KINDS[opposite](scene)


def test_texts_use_listed_words_and_hold_out_pairs():
    words = set(stories.list_words())
    for seed in range(150):
        for test in (False, True):
            assert set(stories.draw_text(seed, test)) <= words
            story = stories.draw_story(seed, test)
            assert stories.is_held_out(story.happening, story.thing) == test
            assert len(story.sentences) == 5
            assert story.thing in story.sentences[4]
            assert stories.is_held_out(*stories.draw_snippet(seed, test).steps) == test
    assert stories.draw_text(3) == stories.draw_text(3) != stories.draw_text(4)
