"""Layer 8, pathwise: a decoder coupled to plain sampling by shared noise must return its very tokens.

    pathwise(decoder, options, n=20_000, models="small", seeds=[0], reference=ar) -> rows     on enumerable models
    token_row(a, b, ...) -> row                                                              tokens [n, L] of two runs of any model

In float64 a single difference rejects. In float32 a race between two nearly equal weights may turn on rounding, so there the row states
the rate and rejects nothing.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from scipy import stats

from parity.decoders.discrete.ar import ar
from parity.equality import counts as discrete
from parity.equality import rows as R
from parity.equality.exact import Decoder, Target, draw, name_of, targets
from parity.equality.rows import Row


def token_row(a: np.ndarray, b: np.ndarray, *, exact: bool, test: str = "same tokens", **place: Any) -> Row:
    """Rows of tokens a, b [n, L] made under the same noise. `exact` (float64) makes a difference a rejection.

    effect: share of sequences that differ; the note adds the first difference. After one differing token the rest of the row differs
    too, so positions are not counted. Minimum detectable effect: the rate that shows at least once with probability .8.
    """
    a, b = np.asarray(a), np.asarray(b)
    if a.shape != b.shape:
        raise ValueError(f"tokens of shape {a.shape} and {b.shape} cannot be compared")
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
        note = f"{differs.sum()} of {n} differ (rate {differs.mean():.2g}, {low:.2g} to {high:.2g}); first: row {row}, position {position}"
    values |= {
        "note": note,
        "decides": exact,
        "verdict": "identical" if not differs.any() else "rejected" if exact else "differs by rounding",
    }
    found = R.row("pathwise", test, n, **{"model": ""} | place | values)
    if exact:  # certain, not statistical: identical tokens have p-value 1, one difference has the smallest there is
        found["p_value"] = found["p_holm"] = R.SMALLEST if differs.any() else 1.0
    return found


def pathwise(
    decoder: Decoder,
    options: dict[str, Any] | None = None,
    *,
    method: str = "",
    key: str = "",
    n: int = 20_000,
    models: str | Sequence[Target] = "small",
    seeds: Sequence[int] = (0,),
    reference: Decoder = ar,
    dtypes: Sequence[torch.dtype] = (torch.float64, torch.float32),
    threads: int = 1,
) -> list[Row]:
    """Two rows (float64, float32) a target and seed, against `reference` under the same noise."""
    found = []
    for target in targets(models) if isinstance(models, str) else models:
        sequences = discrete.digits(target.vocab, target.length)
        for repeat, seed in enumerate(seeds):
            for dtype in dtypes:
                a, b = (
                    sequences[draw(d, target, n, seed, o, threads=threads, dtype=dtype)]
                    for d, o in ((decoder, options or {}), (reference, {}))
                )
                name, exact = str(dtype).removeprefix("torch."), dtype == torch.float64
                place = {
                    "model": target.name,
                    "method": method or name_of(decoder),
                    "key": key,
                    "seed": seed,
                    "repeat": repeat,
                }
                found.append(token_row(a, b, exact=exact, test=f"same tokens, {name}", **place))
    return found
