"""Read pictures of Scenes by the renderer's own shapes, colours and textures: which things they show, and where.

`recognisable.py` prints what is read right in true renderings. The errors there are things that touch, and colours near
the ground's shades.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import permutations

import numpy as np
from scipy import ndimage

from parity.embedded.scenes import (
    COLOURS,
    COUNTS,
    COVERS,
    RELATIONS,
    SIZE,
    Scene,
    cover_texture,
    shade_figure,
    shade_ground,
)

SHADES = {name: np.array(colour) for name, colour in COLOURS.items()}
SMALLEST = 20  # pixels of a thing
FROM_GROUND = 0.13  # colours of a thing are so far from the ground's shades
BETWEEN_SIZES = 0.165  # half-widths of small things are smaller
TEXTURED = 0.14  # standard deviation, from the first shade at 0 to the second at 1, of a thing with a texture
ASPECTS = ("shape", "colour", "texture", "size")


@dataclass(frozen=True)
class Thing:
    """A thing as it was read; its centre (x, y) in picture sides."""

    shape: str
    colour: str
    texture: str
    size: str
    centre: tuple[float, float]


def project(pixels: np.ndarray, first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Project colours [n, 3] on the line from one shade to another: where on it, 0 to 1 [n], and distances [n]."""
    line = second - first
    t = np.clip((pixels - first) @ line / (line @ line), 0, 1)
    return t, np.linalg.norm(pixels - first - t[:, None] * line, axis=1)


def measure_from_ground(picture: np.ndarray) -> tuple[str, np.ndarray]:
    """Read the ground's colour from the border of a picture [H, W, 3]; measure the distances [H, W] from its shades."""
    pixels = picture.reshape(-1, 3)
    border = np.ones((SIZE, SIZE), bool)
    border[3:-3, 3:-3] = False
    distances = {name: project(pixels, g, shade_ground(g))[1].reshape(SIZE, SIZE) for name, g in SHADES.items()}
    ground = min(distances, key=lambda name: np.minimum(distances[name][border], 0.2).mean())
    return ground, distances[ground]


@cache
def list_shapes() -> list[tuple[str, float, np.ndarray]]:
    """List shapes at many half-widths with what they cover, bool [2H + 1, 2W + 1], about the middle."""
    x, y = np.meshgrid(*[np.arange(-SIZE, SIZE + 1) / SIZE] * 2)
    return [(shape, r, cover(x, y, r) < 0) for shape, cover in COVERS.items() for r in np.arange(0.105, 0.25, 0.01)]


def fit_shape(mask: np.ndarray) -> tuple[float, str, float, tuple[float, float]]:
    """Fit a shape to a mask [H, W]: the overlap over the union, the shape, its half-width and its centre."""
    rows, columns = np.nonzero(mask)
    extent = max(np.ptp(rows), np.ptp(columns)) / 2 / SIZE
    fits = [(0.0, "", 0.0, (0.0, 0.0))]
    for shape, r, pattern in list_shapes():
        if 0.6 * r < extent < 1.5 * r:
            for dy, dx in np.ndindex(5, 3):
                row, column = (rows.min() + rows.max()) // 2 + dy - 2, (columns.min() + columns.max()) // 2 + dx - 1
                drawn = pattern[SIZE - row : 2 * SIZE - row, SIZE - column : 2 * SIZE - column]
                overlap = (drawn & mask).sum() / (drawn | mask).sum()
                fits.append((overlap, shape, r, ((column + 0.5) / SIZE, (row + 0.5) / SIZE)))
    return max(fits)


@cache
def list_textures() -> list[tuple[str, np.ndarray]]:
    """List textures at many phases and directions with where their second shade is, bool [H, W]."""
    x, y = np.meshgrid(*[np.arange(SIZE) / SIZE] * 2)
    stripes = [("striped", (p / 10, 0.0), k * np.pi / 4) for k, p in np.ndindex(4, 10)]
    cells = [(name, (p / 8, q / 8), 0.0) for p, q in np.ndindex(8, 8) for name in ("dotted", "checkered")]
    return [(name, cover_texture(name, x, y, phase, angle)) for name, phase, angle in stripes + cells]


def read_paint(picture: np.ndarray, mask: np.ndarray) -> tuple[str, str]:
    """Read the colour and the texture of the thing in a mask [H, W]."""
    inner = ndimage.binary_erosion(mask)
    inner = inner if inner.sum() >= 12 else mask
    pixels = picture[inner]

    def measure_misfit(name: str) -> float:
        """Measure how far the pixels are from both shades of a colour, the first one preferred."""
        first, second = SHADES[name], shade_figure(SHADES[name])
        from_first, from_second = (np.linalg.norm(pixels - shade, axis=1) for shade in (first, second))
        from_line = project(pixels, first, second)[1]
        return float((from_line + 0.5 * np.minimum(from_first, from_second) + 0.1 * from_first).mean())

    colour = min(SHADES, key=measure_misfit)
    t, _ = project(pixels, SHADES[colour], shade_figure(SHADES[colour]))
    fits = [(1.0, "plain")]
    for texture, pattern in list_textures() if t.std() >= TEXTURED else ():
        second = pattern[inner]
        if 0 < second.mean() < 1 and t[second].mean() - t[~second].mean() >= 0.15:
            means = np.where(second, t[second].mean(), t[~second].mean())
            fits.append((float(((t - means) ** 2).mean()), texture))
    return colour, min(fits)[1]


def read_things(picture: np.ndarray, distances: np.ndarray) -> Iterator[Thing]:
    """Read the things of a picture [H, W, 3], given its distances [H, W] from the ground's shades."""
    parts, count = ndimage.label(distances > FROM_GROUND)
    for i in range(1, count + 1):
        part = parts == i
        if part.sum() >= SMALLEST:
            sharp = part & (distances > 0.5 * np.percentile(distances[part], 75))
            masks = (part, ndimage.binary_opening(part), sharp)
            _, shape, r, centre = max(fit_shape(mask) for mask in masks if mask.sum() >= SMALLEST)
            yield Thing(shape, *read_paint(picture, part), "small" if r < BETWEEN_SIZES else "large", centre)


def check_picture(scene: Scene, pixels: np.ndarray) -> dict[str, bool]:
    """Tell by aspect whether a picture uint8 [H, W, 3] shows what a scene says, by the assignment of things that fits
    best: ground, count, shape, colour, texture and size (of all things), and relation, if the scene has one."""
    picture = pixels / 255.0
    ground, distances = measure_from_ground(picture)
    things = list(read_things(picture, distances))
    wanted = scene.things * COUNTS.get(scene.count, 1)
    right = {"ground": ground == scene.ground, "count": len(things) == len(wanted)}
    orders = list(permutations(things, len(wanted))) if len(things) < 8 else [tuple(things)]
    if not orders:
        return right | dict.fromkeys((*ASPECTS, *["relation"][: bool(scene.relation)]), False)

    def compare(order: tuple[Thing, ...]) -> dict[str, list[bool]]:
        """Compare things in an order with the wanted ones, by aspect."""
        pairs = list(zip(order, wanted, strict=False))
        return {name: [getattr(a, name) == getattr(b, name) for a, b in pairs] for name in ASPECTS}

    best = max(orders, key=lambda order: sum(map(sum, compare(order).values())))
    right |= {name: all(each) for name, each in compare(best).items()}
    if scene.relation:
        between = np.subtract(best[0].centre, best[1].centre)
        right["relation"] = bool(between @ RELATIONS[scene.relation] > 0.15)
    return right
