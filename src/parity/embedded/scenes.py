"""Scenes: a procedural set of captioned 64x64 images, the embedded experiment's data.

A scene is a function of its seed. A caption names what is fixed (colours, shapes, sizes, textures, relation or count,
the background); everything else (exact place, hue, stripe direction and phase, gradient direction, grain) is drawn, so
one caption has many images.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from parity.base.errors import ParityError
from parity.embedded import is_held_out

SIZE = 64  # an image has this many pixels a side
SHAPES = ("circle", "square", "triangle", "cross", "ring", "diamond")
TEXTURES = ("plain", "striped", "dotted", "checkered")
SIZES = {"small": 0.13, "large": 0.22}  # things have these half-widths, in image sides
COUNTS = {"two": 2, "three": 3}
RELATIONS = {"left of": (-1, 0), "right of": (1, 0), "above": (0, -1), "below": (0, 1)}
BACKGROUNDS = ("plain", "gradient", "cloudy")
COLOURS = {
    "red": (0.86, 0.16, 0.16),
    "green": (0.16, 0.66, 0.24),
    "blue": (0.16, 0.30, 0.86),
    "yellow": (0.95, 0.86, 0.20),
    "orange": (0.95, 0.55, 0.12),
    "purple": (0.55, 0.22, 0.70),
    "cyan": (0.25, 0.80, 0.86),
    "pink": (0.96, 0.58, 0.74),
    "white": (0.96, 0.96, 0.96),
    "black": (0.07, 0.07, 0.07),
}
PLURALS = "circles squares triangles crosses rings diamonds"
_PHRASES = ("a of on background small large", PLURALS, *SHAPES, *TEXTURES, *COUNTS, *RELATIONS, *BACKGROUNDS, *COLOURS)
WORDS = tuple(dict.fromkeys(word for phrase in _PHRASES for word in phrase.split()))


@dataclass(frozen=True)
class Thing:
    shape: str
    colour: str
    texture: str
    size: str

    def noun(self, count: str = "") -> str:
        """Describe the thing in words, one of it ("a small striped red circle"), or `count` of it, in the plural."""
        texture = "" if self.texture == "plain" else f"{self.texture} "
        plural = {"cross": "crosses"}.get(self.shape, f"{self.shape}s")
        return f"{count or 'a'} {self.size} {texture}{self.colour} {plural if count else self.shape}"


@dataclass(frozen=True)
class Scene:
    things: tuple[Thing, ...]  # a scene has one thing, or two that stand in `relation`
    relation: str  # a scene of two things has a key of RELATIONS, others ""
    count: str  # a scene of several equal things has a key of COUNTS, others ""
    background: str
    ground: str

    @property
    def caption(self) -> str:
        """The caption, such as "a large red ring above a small blue cross on a cloudy white background"."""
        text = self.things[0].noun(self.count)
        if self.relation:
            text += f" {self.relation} {self.things[1].noun()}"
        style = "" if self.background == "plain" else f"{self.background} "
        return f"{text} on a {style}{self.ground} background"


def draw_scene(seed: int, test: bool | None = None) -> tuple[Scene, np.random.Generator]:
    """Draw the scene of a seed, and return it with the generator that `render` goes on with. test: True for a scene
    whose caption is held out, False for another, None for any."""
    rng = np.random.default_rng([seed, 64])

    def pick(options):
        options = tuple(options)
        return options[rng.integers(len(options))]

    while True:
        ground = pick(COLOURS)
        rest = [c for c in COLOURS if c != ground]
        kind = rng.choice(["one", "count", "pair"], p=[0.35, 0.2, 0.45])
        figures: tuple[Thing, ...]
        if kind == "one":
            figures = (Thing(pick(SHAPES), pick(rest), pick(TEXTURES), pick(SIZES)),)
            relation = ""
            count = ""
        elif kind == "count":
            figures = (Thing(pick(SHAPES), pick(rest), pick(TEXTURES), "small"),)
            relation = ""
            count = pick(COUNTS)
        else:
            figures = tuple(Thing(pick(SHAPES), pick(rest), pick(TEXTURES), pick(SIZES)) for _ in range(2))
            relation = pick(RELATIONS)
            count = ""
        scene = Scene(figures, relation, count, pick(BACKGROUNDS), ground)
        if test is None or is_held_out(scene.caption) == test:
            return scene, rng


COVERS = {  # shapes are where these functions of x, y [H, W] from the centre, and r, the half-width, are below 0
    "circle": lambda x, y, r: np.hypot(x, y) - r,
    "square": lambda x, y, r: np.maximum(np.abs(x), np.abs(y)) - 0.88 * r,
    "triangle": lambda x, y, r: np.maximum(y - 0.75 * r, (2 * np.abs(x) - y - 1.05 * r) / np.sqrt(5) * 1.15),
    "cross": lambda x, y, r: np.minimum(
        np.maximum(np.abs(x) - r, np.abs(y) - 0.34 * r), np.maximum(np.abs(x) - 0.34 * r, np.abs(y) - r)
    ),
    "ring": lambda x, y, r: np.abs(np.hypot(x, y) - 0.74 * r) - 0.26 * r,
    "diamond": lambda x, y, r: (np.abs(x) + np.abs(y) - 1.2 * r) / np.sqrt(2),
}


def cover_texture(name: str, x: np.ndarray, y: np.ndarray, phase: Sequence[float], angle: float) -> np.ndarray:
    """Compute where a texture has its second shade, bool, at points x, y in image sides: with stripes across `angle`,
    shifted by `phase`, two shares of a period. Nowhere for "plain"."""
    if name == "striped":
        u = x * np.cos(angle) + y * np.sin(angle)
        return np.sin(2 * np.pi * (u / 0.105 + phase[0])) > 0
    if name == "dotted":
        cell = 0.1
        dx, dy = ((v + p * cell) % cell - cell / 2 for v, p in zip((x, y), phase, strict=True))
        return np.hypot(dx, dy) < 0.03
    if name == "checkered":
        cell = 0.08
        return (np.floor(x / cell + phase[0]) + np.floor(y / cell + phase[1])) % 2 > 0
    return np.zeros(x.shape, bool)


def shade_ground(ground: np.ndarray) -> np.ndarray:
    """Compute the other shade of a background that is not plain, from its colour [3]."""
    return ground * 0.55 if ground.mean() > 0.35 else ground * 0.55 + 0.45 * 0.7


def shade_figure(colour: np.ndarray) -> np.ndarray:
    """Compute the second shade of a figure with a texture, from its colour [3]."""
    return colour * 0.45 if colour.mean() > 0.25 else colour * 0.4 + 0.6


def _draw_centres(scene: Scene, rng: np.random.Generator) -> list[tuple[float, float]]:
    """Draw the centres (x, y) of a scene's figures, in image sides: clearly apart if in a relation, else disjoint."""
    if scene.relation:
        dx, dy = RELATIONS[scene.relation]
        gap = rng.uniform(0.21, 0.25)
        wobble = rng.uniform(-0.12, 0.12, 2)
        return [
            (0.5 + s * dx * gap + (dx == 0) * w, 0.5 + s * dy * gap + (dy == 0) * w)
            for s, w in zip((1, -1), wobble, strict=True)
        ]
    if not scene.count:
        return [tuple(rng.uniform(0.32, 0.68, 2))]
    while True:
        centres = rng.uniform(0.17, 0.83, (COUNTS[scene.count], 2))
        gaps = [np.abs(a - b).max() for i, a in enumerate(centres) for b in centres[:i]]
        if min(gaps) > 0.30:
            return [tuple(c) for c in centres]


def render(scene: Scene, rng: np.random.Generator) -> np.ndarray:
    """Render an image of a scene, uint8 [64, 64, 3]; `rng` draws places, hues, textures and grain."""
    axis = (np.arange(2 * SIZE) + 0.5) / (2 * SIZE)  # each pixel is sampled at 2 x 2 points, which are averaged below
    x, y = np.meshgrid(axis, axis)

    def shade(name):
        return np.clip(np.array(COLOURS[name]) + rng.normal(0, 0.025, 3), 0, 1)

    ground = shade(scene.ground)
    canvas = np.broadcast_to(ground, (*x.shape, 3)).copy()
    darker = shade_ground(ground)
    if scene.background == "gradient":
        angle = rng.integers(8) * np.pi / 4
        t = np.clip(0.5 + 0.75 * ((x - 0.5) * np.cos(angle) + (y - 0.5) * np.sin(angle)), 0, 1)
        canvas += t[..., None] * (darker - ground)
    elif scene.background == "cloudy":
        waves = zip((0.5, 0.5, 0.35), rng.normal(0, 1.6, 3), rng.normal(0, 1.6, 3), rng.random(3), strict=True)
        t = sum(a * np.sin(2 * np.pi * (kx * x + ky * y + phase)) for a, kx, ky, phase in waves)
        canvas += np.clip(0.45 + 0.45 * t, 0, 1)[..., None] * (darker - ground)
    figures = scene.things * COUNTS[scene.count] if scene.count else scene.things
    for figure, (cx, cy) in zip(figures, _draw_centres(scene, rng), strict=True):
        r = SIZES[figure.size] * rng.uniform(0.92, 1.08)
        if scene.relation and figure.size == "large":
            r *= 0.92  # large things in a relation are a little smaller, so that two fit side by side
        coverage = np.clip(0.5 - COVERS[figure.shape](x - cx, y - cy, r) * 2 * SIZE, 0, 1)[..., None]
        colour = shade(figure.colour)
        phase, angle = rng.random(2).tolist(), rng.integers(4) * np.pi / 4
        texture = cover_texture(figure.texture, x, y, phase, angle)[..., None]
        canvas += coverage * (colour + texture * (shade_figure(colour) - colour) - canvas)
    image = canvas.reshape(SIZE, 2, SIZE, 2, 3).mean((1, 3)) + rng.normal(0, 0.006, (SIZE, SIZE, 1))
    return (np.clip(image, 0, 1) * 255 + 0.5).astype(np.uint8)


def draw_example(seed: int, test: bool | None = None) -> tuple[str, np.ndarray]:
    """Draw the caption and the image uint8 [64, 64, 3] of a seed; for `test` see `draw_scene`."""
    scene, rng = draw_scene(seed, test)
    return scene.caption, render(scene, rng)


def parse(caption: str) -> Scene:
    """Parse a caption to its scene, the inverse of `Scene.caption`. Raises ParityError if it is no caption of one."""
    words = caption.split()

    def take(options, default=None):
        """Remove from `words` the option that they begin with, and return it; else return `default`, or raise."""
        for option in sorted(options, key=lambda o: -len(o.split())):
            n = len(option.split())
            if " ".join(words[:n]) == option:
                del words[:n]
                return option
        if default is None:
            raise ParityError(f"not a Scenes caption at {' '.join(words)!r}: expected one of {', '.join(options)}")
        return default

    def thing(count):
        """Remove from `words` the description of a thing, in the plural if there is a `count`, and return it."""
        size = take(SIZES)
        texture = take(TEXTURES[1:], "plain")
        colour = take(COLOURS)
        nouns = {(f"{s}es" if s == "cross" else f"{s}s") if count else s: s for s in SHAPES}
        return Thing(nouns[take(nouns)], colour, texture, size)

    count = take(("a", *COUNTS))
    count = "" if count == "a" else count
    figures = [thing(count)]
    relation = take(RELATIONS, "")
    if relation:
        take(("a",))
        figures.append(thing(""))
    take(("on",))
    take(("a",))
    background, ground = take(BACKGROUNDS[1:], "plain"), take(COLOURS)
    take(("background",))
    return Scene(tuple(figures), relation, count, background, ground)


def draw_ground_truth(caption: str, seed: int) -> np.ndarray:
    """Draw an image uint8 [64, 64, 3] of the scene that a caption describes: what a perfect model could have drawn."""
    return render(parse(caption), np.random.default_rng([seed, 65]))


def reduce_images(images: np.ndarray, side: int) -> np.ndarray:
    """Reduce images uint8 [n, H, H, 3] to [n, side, side, 3] by means over squares of pixels; `side` divides H."""
    n = len(images)
    high = images.shape[1]
    if high == side:
        return images
    cut = images.reshape(n, side, high // side, side, high // side, 3)
    return (cut.mean((2, 4)) + 0.5).astype(np.uint8)
