"""Pathwise: a decoder coupled to plain sampling by shared noise must return its very tokens.

In float64 a single difference rejects. In float32 a race between two nearly equal weights may turn on rounding, so
there the row states the rate and rejects nothing.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from parity_certify import result_rows as R
from parity_certify.import_by_name import get_function_name
from parity_certify.joint_tests import digits
from parity_certify.result_rows import Row
from parity_decoders.discrete.ar import ar
from scipy import stats

from parity.equality.targets import Decoder


def token_row(a: np.ndarray, b: np.ndarray, *, exact: bool, test: str = "same tokens", **place: Any) -> Row:
    """Tokens a, b [n, L] made under the same noise. `exact` (float64) makes a difference a rejection.

    effect: share of sequences that differ; the note adds the first difference. After one differing token the rest of
    the row differs too, so positions are not counted. Minimum detectable effect: the rate that shows at least once
    with probability .8.
    """
    n, differs = len(a), (a != b).any(1)
    values: Row = {"statistic": int(differs.sum()), "effect": float(differs.mean()), "decides": exact}
    values |= {"minimum_detectable_effect": 1 - (1 - R.POWER) ** (1 / n), "note": "identical", "verdict": "identical"}
    if differs.any():
        row = int(differs.argmax())
        position = int((a[row] != b[row]).argmax())
        low, high = stats.binomtest(int(differs.sum()), n).proportion_ci(method="wilson")
        rate, first = f"{differs.mean():.2g}, {low:.2g} to {high:.2g}", f"row {row}, position {position}"
        values["note"] = f"{differs.sum()} of {n} differ (rate {rate}); first: {first}"
        values["verdict"] = "rejected" if exact else "differs by rounding"
    result = R.make_row("pathwise", test, n, **place | values)
    if exact:  # certain, not statistical: identical tokens have p-value 1, one difference has the smallest there is
        result["p_value"] = result["p_holm"] = R.SMALLEST if differs.any() else 1.0
    return result


def pathwise(
    decoder: Decoder,
    targets: Sequence[Any],
    options: dict[str, Any] | None = None,
    *,
    method: str = "",
    n: int = 20_000,
    seeds: Sequence[int] = (0,),
    threads: int = 1,
) -> list[Row]:
    """Two rows (float64, float32) a discrete target and seed, against plain decoding under the same noise."""
    rows = []
    for target in targets:
        sequences = digits(target.vocab, target.length)
        for (repeat, seed), dtype in itertools.product(enumerate(seeds), (torch.float64, torch.float32)):
            runs: Any = ((decoder, options or {}), (ar, {}))
            a, b = (sequences[target.draw(d, n, seed, o, threads=threads, dtype=dtype)] for d, o in runs)
            place = {
                "model": target.name,
                "method": method or get_function_name(decoder),
                "seed": seed,
                "repeat": repeat,
            }
            test = f"same tokens, {str(dtype).removeprefix('torch.')}"
            rows.append(token_row(a, b, exact=dtype == torch.float64, test=test, **place))
    return rows
