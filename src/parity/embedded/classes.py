"""Class-conditional Scenes: images of one large plain thing on any ground; 60 classes, a shape and its colour each.

Place, shade, ground and its style are drawn; captions whose hash is 0 modulo 8 are held out, as in all Scenes.
"""

import numpy as np

from parity.embedded import is_held_out
from parity.embedded.scenes import BACKGROUNDS, COLOURS, SHAPES, Scene, Thing, render

CLASSES = tuple(f"{colour} {shape}" for shape in SHAPES for colour in COLOURS)


def draw_scene_of_class(label: int, rng: np.random.Generator, test: bool | None = None) -> Scene:
    """Draw a scene of the class `label`, an index of CLASSES: ground and background are drawn. test: True for a scene
    whose caption is held out, False for another, None for any."""
    colour, shape = CLASSES[label].split()
    figure = Thing(shape, colour, "plain", "large")
    scenes = [Scene((figure,), "", "", b, g) for b in BACKGROUNDS for g in COLOURS if g != colour]
    scenes = [s for s in scenes if test is None or is_held_out(s.caption) == test]
    return scenes[rng.integers(len(scenes))]


def draw_example(seed: int, test: bool | None = None) -> tuple[int, str, np.ndarray]:
    """Draw class, caption and image uint8 [64, 64, 3] by a seed; for `test` see `draw_scene_of_class`."""
    rng = np.random.default_rng([seed, 66])
    label = int(rng.integers(len(CLASSES)))
    drawn = draw_scene_of_class(label, rng, test)
    return label, drawn.caption, render(drawn, rng)
