"""A decoder that follows plain decoding's own path, against plain decoding under the same noise: how far apart the
tokens and the pictures are."""

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
    """A few images decoded again by both in float64, each alone, so that rounding is no part of what is compared."""
    spec = cell.spec | {"dtype": "float64"}
    inputs = {"ids": np.array([str(image) for image in range(cell.settings["pathwise"])])}
    plain = {**spec, "method": find_plain_method("continuous"), "options": make_plain_options("continuous")}
    loaded = loop.load("continuous", cell.manifest, spec, cell.device)
    tokens = [loop.decode("continuous", loaded, one, inputs, 1).tokens for one in (spec, plain)]
    pictures = np.stack([loaded.decode(x).cpu().numpy() for x in tokens])
    return [distance_row(np.stack(tokens), pictures, eps=spec["options"]["eps"], **cell.place, seed=spec["seed"])]


def distance_row(tokens: np.ndarray, pictures: np.ndarray, *, eps: float, **place: Any) -> Row:
    """Tokens [2, n, L, D] of two runs under the same noise, float64, and what they are decoded to, [2, n, 3, H, W] in
    [-1, 1]. The claim is "equal within eps": one number further apart rejects it.

    statistic: the largest difference of two numbers; effect: it over eps; psnr: dB between the pictures, of peak 2.
    """
    error, square = np.abs(tokens[0] - tokens[1]).max(), np.square(pictures[0] - pictures[1]).mean()
    psnr, near = 10 * np.log10(4 / max(square, 1e-30)), error <= eps
    values = {"statistic": float(error), "effect": float(error / eps) if eps else None, "psnr": float(psnr)}
    note = f"largest error {error:.1e}, {psnr:.0f} dB between the pictures; eps {eps:g}"
    result = R.make_row("pathwise", WITHIN, tokens.shape[1], note=note, **values, **place)
    result["p_value"] = result["p_holm"] = 1.0 if near else R.SMALLEST  # certain, not statistical
    return result | {"verdict": WITHIN if near else "differs by more than eps"}
