"""Measure how far a decoder that follows plain decoding's own path is from plain decoding under the same noise."""

from typing import Any

import numpy as np
from parity_certify import result_rows as R
from parity_certify.result_rows import Row

from parity.decode import continuous, loop  # noqa: F401  (the loop imports the first by name: a source of this layer)
from parity.equality.layers import CellFiles
from parity.experiment.options import find_plain_method, make_plain_options

ROLES = ("method",)
WHEN = "coupled"
READS = ("checkpoint",)
WRITES = ()
SETTINGS = ("pathwise",)
WITHIN = "equal within eps"


def rows(cell: CellFiles) -> list[Row]:
    """Decode a few images again by the method and plainly, in float64 and each alone, to exclude rounding; compare."""
    spec = cell.spec | {"dtype": "float64"}
    inputs = {"ids": np.array([str(image) for image in range(cell.settings["pathwise"])])}
    plain = {**spec, "method": find_plain_method("continuous"), "options": make_plain_options("continuous")}
    loaded = loop.load("continuous", cell.manifest, spec, cell.device)
    tokens = [loop.decode("continuous", loaded, one, inputs, 1).tokens for one in (spec, plain)]
    images = np.stack([loaded.decode(x).cpu().numpy() for x in tokens])
    return [make_distance_row(np.stack(tokens), images, spec["options"]["eps"], **cell.columns, seed=spec["seed"])]


def make_distance_row(tokens: np.ndarray, images: np.ndarray, eps: float, **columns: Any) -> Row:
    """Make the row that compares two runs under the same noise: tokens [2, n, L, D], float64, and their images
    [2, n, 3, H, W] in [-1, 1]. The claim is "equal within eps": one number further apart rejects it.

    statistic: the largest difference of two numbers; effect: it over eps; psnr: dB between the images, of peak 2.
    """
    error, square = np.abs(tokens[0] - tokens[1]).max(), np.square(images[0] - images[1]).mean()
    psnr = 10 * np.log10(4 / max(square, 1e-30))
    is_within = error <= eps
    p = 1.0 if is_within else R.SMALLEST  # no chance is involved
    values: Row = {"statistic": float(error), "effect": float(error / eps) if eps else None, "psnr": float(psnr)}
    values |= {"p_value": p, "p_holm": p, "verdict": WITHIN if is_within else "differs by more than eps"}
    note = f"largest error {error:.1e}, {psnr:.0f} dB between the images; eps {eps:g}"
    return R.make_row("pathwise", WITHIN, tokens.shape[1], note=note, **values, **columns)
