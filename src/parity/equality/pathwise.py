"""Pathwise: a decoder coupled to plain sampling by shared noise must return its very tokens.

    pathwise(decoder, targets, options, n=20_000, seeds=[0], reference=ar) -> rows     on enumerable discrete models
    token_row(a, b, ...) -> row                                                        tokens [n, L] of two runs
    distance_row(tokens, pictures, ...) -> row                                         continuous tokens of two runs

In float64 a single difference rejects. In float32 a race between two nearly equal weights may turn on rounding, so
there the row states the rate and rejects nothing.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from parity_certify import result_rows as R
from parity_certify.import_by_name import name_of
from parity_certify.joint_tests import digits
from parity_certify.result_rows import Row
from scipy import stats

from parity.base.errors import ParityError
from parity.decoders.discrete.ar import ar
from parity.equality.targets import Decoder

WITHIN = "equal within eps"


def token_row(a: np.ndarray, b: np.ndarray, *, exact: bool, test: str = "same tokens", **place: Any) -> Row:
    """Rows of tokens a, b [n, L] made under the same noise. `exact` (float64) makes a difference a rejection.

    effect: share of sequences that differ; the note adds the first difference. After one differing token the rest of
    the row differs too, so positions are not counted. Minimum detectable effect: the rate that shows at least once
    with probability .8. ParityError for runs of unequal shape.
    """
    a, b = np.asarray(a), np.asarray(b)
    if a.shape != b.shape:
        raise ParityError(f"tokens of shape {a.shape} and {b.shape} cannot be compared")
    n, differs = len(a), (a != b).any(1)
    values = {
        "statistic": int(differs.sum()),
        "effect": float(differs.mean()),
        "minimum_detectable_effect": 1 - (1 - R.POWER) ** (1 / n),
    }
    if not differs.any():
        note = "identical"
    else:
        row = int(differs.argmax())
        position = int((a[row] != b[row]).argmax())
        low, high = stats.binomtest(int(differs.sum()), n).proportion_ci(method="wilson")
        rate, first = f"{differs.mean():.2g}, {low:.2g} to {high:.2g}", f"row {row}, position {position}"
        note = f"{differs.sum()} of {n} differ (rate {rate}); first: {first}"
    values |= {
        "note": note,
        "decides": exact,
        "verdict": "identical" if not differs.any() else "rejected" if exact else "differs by rounding",
    }
    result = R.row("pathwise", test, n, **place | values)
    if exact:  # certain, not statistical: identical tokens have p-value 1, one difference has the smallest there is
        result["p_value"] = result["p_holm"] = R.SMALLEST if differs.any() else 1.0
    return result


def distance_row(tokens: np.ndarray, pictures: np.ndarray, *, eps: float, **place: Any) -> Row:
    """Tokens [2, n, L, D] of two runs under the same noise, float64, and what they are decoded to, [2, n, 3, H, W] in
    [-1, 1]. The claim is "equal within eps": one number further apart rejects it.

    statistic: the largest difference of two numbers; effect: it over eps; psnr: dB between the pictures, of peak 2.
    """
    error, square = np.abs(tokens[0] - tokens[1]).max(), np.square(pictures[0] - pictures[1]).mean()
    psnr, near = 10 * np.log10(4 / max(square, 1e-30)), error <= eps
    values = {"statistic": float(error), "effect": float(error / eps) if eps else None, "psnr": float(psnr)}
    note = f"largest error {error:.1e}, {psnr:.0f} dB between the pictures; eps {eps:g}"
    result = R.row("pathwise", WITHIN, tokens.shape[1], note=note, **values, **place)
    result["p_value"] = result["p_holm"] = 1.0 if near else R.SMALLEST  # certain, not statistical
    return result | {"verdict": WITHIN if near else "differs by more than eps"}


def pathwise(
    decoder: Decoder,
    targets: Sequence[Any],
    options: dict[str, Any] | None = None,
    *,
    method: str = "",
    n: int = 20_000,
    seeds: Sequence[int] = (0,),
    reference: Decoder = ar,
    dtypes: Sequence[torch.dtype] = (torch.float64, torch.float32),
    threads: int = 1,
) -> list[Row]:
    """Two rows (float64, float32) a target (parity.equality.targets.discrete) and seed, against `reference` under the
    same noise."""
    rows = []
    for target in targets:
        sequences = digits(target.vocab, target.length)
        for (repeat, seed), dtype in itertools.product(enumerate(seeds), dtypes):
            runs: Any = ((decoder, options or {}), (reference, {}))
            a, b = (sequences[target.draw(d, n, seed, o, threads=threads, dtype=dtype)] for d, o in runs)
            place = {"model": target.name, "method": method or name_of(decoder), "seed": seed, "repeat": repeat}
            test = f"same tokens, {str(dtype).removeprefix('torch.')}"
            rows.append(token_row(a, b, exact=dtype == torch.float64, test=test, **place))
    return rows
