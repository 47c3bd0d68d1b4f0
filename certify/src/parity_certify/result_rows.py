"""Rows of results: what every layer returns, and the few numbers that all layers compute in the same way.

A row is a plain dict with at least

    layer, model, method, key, test, n, statistic, p_value, p_holm, effect, minimum_detectable_effect, verdict, seed,
    repeat, note, decides

n        independent units that the test used: sequences, tokens or prompts
effect   what the test measures, in its own units (a TV distance, a mean difference, ...)
p_holm   p_value after Holm's correction within the decoder's family of the layer (`adjust_family`); not over decoders
verdict  "rejected", "not rejected", "not run", or a certificate's own words
repeat   0 for the run itself, k for its k-th repetition on a fresh seed
decides  whether the row counts in the decoder's verdict (a diagnostic row, or one summed up by another, does not)

A test that could not be run has None for its numbers and a note "not run: needs ...". A p-value is never 0.

No function changes a row that it was given: those that correct or judge rows return new ones, in the same order.
"""

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
from scipy import special

Row = dict[str, Any]
MOST_DRAWS = 19_999  # of a null, where the first draws do not tell; enough for a hundred decoders of several tests
ALPHA = 0.05  # the level of tests and bounds, unless `set_alpha` gives another
POWER = 0.8
SMALLEST = 1e-300  # a p-value from a formula is cut here, so that none is 0
_alpha = ContextVar("alpha", default=ALPHA)


@contextmanager
def set_alpha(alpha: float) -> Iterator[None]:
    """Context manager: set the level at which rows reject; their bounds and intervals hold with 1 - alpha."""
    token = _alpha.set(alpha)
    try:
        yield
    finally:
        _alpha.reset(token)


def get_alpha() -> float:
    """Return the level that `set_alpha` set, else ALPHA."""
    return _alpha.get()


def describe_confidence(alpha: float) -> str:
    """Write the confidence of a bound that fails with probability alpha, as "95 %"."""
    return f"{100 * (1 - alpha):g} %"


def count_null_draws(usual: int) -> int:
    """Count the draws that a Monte-Carlo null needs at the level of `get_alpha`: `usual` at ALPHA, more below. With
    fewer, the smallest p-value that is possible might not reject."""
    return max(usual, math.ceil((usual + 1) * ALPHA / get_alpha()) - 1)


def list_null_draws(usual: int) -> tuple[int, int]:
    """List how many draws a Monte-Carlo null has, and how many if none of these is as far as the sample: the smallest
    p-value must reject after corrections for many decoders. The second p-value then replaces the first, and stays
    valid, because the first is at its smallest no more often than that value says."""
    first = count_null_draws(usual)
    return first, max(first, count_null_draws(MOST_DRAWS))


def clean_number(value: Any) -> float | None:
    """Convert a number to a float that JSON can hold; None if it is missing or not finite."""
    return None if value is None or not math.isfinite(value) else float(value)


def make_row(layer: str, test: str, n: int, *, p_value: float | None = None, **values: Any) -> Row:
    """Make the row of a test with all columns, `values` among them. Its verdict says whether p <= `get_alpha()`, "not
    run" without a p-value; a p-value of 0 is raised to SMALLEST, and floats that are not finite become None."""
    p = None if p_value is None else max(float(p_value), SMALLEST)
    columns: Row = {"model": "", "method": "", "key": "", "statistic": None, "p_holm": None, "effect": None}
    columns |= {"minimum_detectable_effect": None, "seed": None, "repeat": 0, "note": "", "decides": True}
    columns["verdict"] = "not run" if p is None else "rejected" if p <= get_alpha() else "not rejected"
    columns |= {k: clean_number(v) if isinstance(v, float | np.floating) else v for k, v in values.items()}
    return {"layer": layer, "test": test, "n": int(n), "p_value": p} | columns


def make_not_run_row(layer: str, test: str, n: int, needs: str, **values: Any) -> Row:
    """Make the row of a test that the data cannot support, which does not decide; its note says what the test needs."""
    values |= {"note": f"not run: needs {needs}", "verdict": "not run", "decides": False}
    return make_row(layer, test, n, **values)


def holm(p: Sequence[float]) -> np.ndarray:
    """Adjust p-values [m] by Holm's step-down method, in their order."""
    raw = np.asarray(p, dtype=float)
    order = np.argsort(raw)
    adjusted = np.empty(len(raw))
    adjusted[order] = np.maximum.accumulate(raw[order] * np.arange(len(raw), 0, -1)).clip(max=1)
    return adjusted


def adjust_families(
    rows: Iterable[Row], get_family: Callable[[Row], Hashable], alpha: float | None = None
) -> list[Row]:
    """Copy rows, with p_holm and verdict of those that have a p-value corrected within their family (Holm), at alpha
    (None: `get_alpha()`). get_family(row): which family a row is of; None: of none, so that it stays as it is."""
    alpha = get_alpha() if alpha is None else alpha
    result = [dict(r) for r in rows]
    families: dict[Hashable, list[int]] = {}
    for i, r in enumerate(result):
        if r["p_value"] is not None and (family := get_family(r)) is not None:
            families.setdefault(family, []).append(i)
    for members in families.values():
        for i, p in zip(members, holm([result[i]["p_value"] for i in members]), strict=True):
            result[i] |= {"p_holm": float(p), "verdict": "rejected" if p <= alpha else "not rejected"}
    return result


def adjust_family(rows: Iterable[Row], alpha: float | None = None) -> list[Row]:
    """Copy rows, corrected as one family (see `adjust_families`)."""
    return adjust_families(rows, lambda r: True, alpha)


def adjust_deciding(rows: Iterable[Row], alpha: float | None = None) -> list[Row]:
    """Copy rows, those that decide corrected as one family (see `adjust_families`); the others stay as they are."""
    return adjust_families(rows, lambda r: True if r["decides"] else None, alpha)


def compute_monte_carlo_p(observed: float, null: np.ndarray) -> float:
    """Compute (1 + b) / (1 + B), where b of the B null draws [B] are at least as large as the observed value."""
    return (1 + int((null >= observed).sum())) / (1 + len(null))


def compute_detectable_z(standard_error: float) -> float:
    """Compute the effect that a two-sided z-test rejects with probability POWER."""
    return float((special.ndtri(POWER) - special.ndtri(get_alpha() / 2)) * standard_error)


def compute_detectable_tv(n: int) -> float:
    """Compute the smallest TV that a one-sided test of n draws finds with probability POWER, if it knows the event. The
    event has probability one half, where the binomial is noisiest: n = 618, 15,450, 61,800 for TV .05, .01, .005 at
    ALPHA."""
    return float((special.ndtri(POWER) - special.ndtri(get_alpha())) / 2 / math.sqrt(n))
