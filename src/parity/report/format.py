"""Numbers and options as a reader sees them: never blank, never p = 0.00, as many digits as the error warrants."""

import json
import math
from typing import Any, NamedTuple

import pandas as pd

NOT_RUN = "not run"
SMALLEST_P = 1e-300  # where p-values from formulas are cut: smaller ones are shown as a bound


class Cell(NamedTuple):
    """A table cell: the figure, a smaller line beneath it, and a CSS class."""

    text: str
    detail: str = ""
    kind: str = ""


def missing(value: Any) -> bool:
    """None, NaN, NaT or empty text."""
    if value is None or (isinstance(value, str) and not value.strip()):
        return True
    return bool(pd.api.types.is_scalar(value) and pd.isna(value))


def number(value: Any, digits: int = 4) -> str:
    """A figure without an error: `digits` significant ones, whole numbers in full."""
    if missing(value):
        return NOT_RUN
    if isinstance(value, bool | str):
        return str(value)
    if math.isinf(value):
        return "infinite" if value > 0 else "-infinite"
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}"
    if abs(value) < 1e-3 or abs(value) >= 1e6:
        return f"{value:.{digits - 1}e}"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{decimals}f}"


def p_value(value: Any) -> str:
    """Two significant digits; what is too small to be told from nought is a bound."""
    if missing(value):
        return NOT_RUN
    if value <= SMALLEST_P:
        return f"< {SMALLEST_P:.0e}"
    return f"{value:.1e}" if value < 1e-3 else f"{value:.2g}" if value < 0.1 else f"{value:.2f}"


def decimals_for(error: float) -> int:
    """Decimals that show two significant digits of an error."""
    return min(8, max(0, 1 - math.floor(math.log10(error))))


def plus_minus(value: Any, error: Any) -> Cell:
    """Value, and its standard error beneath."""
    if missing(value):
        return Cell(NOT_RUN, kind="none")
    if missing(error) or error <= 0 or not math.isfinite(error):
        return Cell(number(value), "±\N{NO-BREAK SPACE}0" if not missing(error) and error == 0 else "")
    decimals = decimals_for(error)
    return Cell(f"{value:,.{decimals}f}", f"±\N{NO-BREAK SPACE}{error:,.{decimals}f}")


def interval(value: Any, low: Any, high: Any) -> Cell:
    """Value, and its interval beneath."""
    if missing(value):
        return Cell(NOT_RUN, kind="none")
    if missing(low) or missing(high):
        return Cell(number(value, 3))
    width = high - low
    decimals = decimals_for(width / 4) if width > 0 else 2
    return Cell(f"{value:,.{decimals}f}", f"{low:,.{decimals}f} to {high:,.{decimals}f}")


def plain(value: Any, digits: int = 4) -> Cell:
    return Cell(NOT_RUN, kind="none") if missing(value) else Cell(number(value, digits))


def bound(value: Any) -> Cell:
    """An upper bound to two significant digits, rounded up: it must still hold as shown."""
    if missing(value) or value <= 0:
        return plain(value)
    decimals = decimals_for(value)
    return Cell(f"{math.ceil(round(value * 10**decimals, 6)) / 10**decimals:.{decimals}f}")


def options_of(text: Any) -> dict[str, Any]:
    """The options of a summary row: JSON text, or a dict as it is."""
    if isinstance(text, dict):
        return text
    try:
        found = json.loads(text) if not missing(text) else {}
    except (TypeError, ValueError):
        return {"options": str(text)}
    return found if isinstance(found, dict) else {"options": found}


def labels(summary: pd.DataFrame) -> list[str]:
    """A short name per row: the method, the options in which its variants differ, and what else is needed to tell rows apart."""
    options = [options_of(o) for o in summary["options"]] if "options" in summary else [{}] * len(summary)
    methods, names = summary["method"].tolist(), []
    for method, own in zip(methods, options, strict=True):
        others = [o for m, o in zip(methods, options, strict=True) if m == method]
        varying = [k for k in own if len({json.dumps(o.get(k), sort_keys=True) for o in others}) > 1]
        names.append(" ".join([str(method), *(f"{k}={own[k]}" for k in varying)]))
    for column, form in (
        ("model", "{0}: {1}"),
        ("sampling", "{1}, {0}"),
        ("seed", "{1}, seed {0}"),
        ("key", "{1} {0}"),
    ):
        if column in summary and len(set(names)) < len(names):
            values = summary[column].tolist()
            names = [
                form.format(v, n) if _ambiguous(i, names, values) else n
                for i, (n, v) in enumerate(zip(names, values, strict=True))
            ]
    return [n if names.count(n) == 1 else f"{n} #{names[: i + 1].count(n)}" for i, n in enumerate(names)]


def _ambiguous(i: int, names: list[str], values: list[Any]) -> bool:
    """Whether another row has the same name and another value here."""
    return any(n == names[i] and str(v) != str(values[i]) for n, v in zip(names, values, strict=True))


def verdict_kind(verdict: Any) -> str:
    """CSS class of a verdict: what its words begin with decides."""
    text = "" if missing(verdict) else str(verdict).lower()
    if not text or text.startswith("not run"):
        return "none"
    if text.startswith(("not rejected", "consistent", "baseline", "reference", "tv <=", "size ok")):
        return "plain"  # no equality was shown, and no difference
    if text.startswith(("equal", "lossless", "certified", "identical")):
        return "good"
    return "bad" if text.startswith(("different", "differs", "rejected", "lossy", "unequal", "size off")) else "unsure"
