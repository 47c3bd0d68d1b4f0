"""Compare a decoder that is coupled to plain sampling by shared noise with plain sampling, token by token.

In float64 a single difference rejects. In float32 a draw between two nearly equal weights may turn on rounding, so
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


def make_token_row(a: np.ndarray, b: np.ndarray, *, exact: bool, test: str = "same tokens", **columns: Any) -> Row:
    """Make the row that compares tokens a, b [n, L] made under the same noise. A difference rejects if `exact`
    (float64), else it is called rounding. `columns` are further columns of the row.

    effect: share of sequences that differ; the note adds the first difference. After one differing token the rest of
    the row differs too, so positions are not counted. Minimum detectable effect: the rate that shows at least once
    with probability .8.
    """
    n = len(a)
    differs = (a != b).any(1)
    values: Row = {"statistic": int(differs.sum()), "effect": float(differs.mean()), "decides": exact}
    values |= {"minimum_detectable_effect": 1 - (1 - R.POWER) ** (1 / n), "note": "identical", "verdict": "identical"}
    if differs.any():
        row = int(differs.argmax())
        position = int((a[row] != b[row]).argmax())
        low, high = stats.binomtest(int(differs.sum()), n).proportion_ci(method="wilson")
        rate = f"{differs.mean():.2g}, {low:.2g} to {high:.2g}"
        values["note"] = f"{differs.sum()} of {n} differ (rate {rate}); first: row {row}, position {position}"
        values["verdict"] = "rejected" if exact else "differs by rounding"
    if exact:  # the comparison is certain: identical tokens have p-value 1, a difference has the smallest one
        p = R.SMALLEST if differs.any() else 1.0
        values |= {"p_value": p, "p_holm": p}
    return R.make_row("pathwise", test, n, **columns | values)


def compare_tokens(
    decoder: Decoder,
    targets: Sequence[Any],
    options: dict[str, Any] | None = None,
    *,
    method: str = "",
    n: int = 20_000,
    seeds: Sequence[int] = (0,),
    threads: int = 1,
) -> list[Row]:
    """Compare the tokens of n sequences of a decoder with plain decoding's under the same noise. Returns two rows,
    float64 and float32, for each discrete target and seed. `method` names the decoder in them."""
    rows = []
    for target in targets:
        sequences = digits(target.vocab, target.length)
        for (repeat, seed), dtype in itertools.product(enumerate(seeds), (torch.float64, torch.float32)):
            settings: dict[str, Any] = {"threads": threads, "dtype": dtype}
            a = sequences[target.draw(decoder, n, seed, options or {}, **settings)]
            b = sequences[target.draw(ar, n, seed, {}, **settings)]
            name = method or get_function_name(decoder)
            columns = {"model": target.name, "method": name, "seed": seed, "repeat": repeat}
            test = f"same tokens, {str(dtype).removeprefix('torch.')}"
            rows.append(make_token_row(a, b, exact=dtype == torch.float64, test=test, **columns))
    return rows
