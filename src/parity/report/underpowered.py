"""When a figure is of too few images or texts to say anything: its interval holds every value of interest.

For each figure of quality the smallest effect of interest is fixed here, a loss that a paper would report as one, or is
the margin of its equality test. A figure whose 95% interval reaches that far to both sides could be as it is, or better
or worse by all that matters; it is shown in grey, and says so. Figures that are counted (passes, tokens) and times are
not of quality, and have none.
"""

import math
from collections.abc import Mapping
from typing import Any

from parity.experiment.schema import EqualitySpec
from parity.report.format import missing

EFFECTS = {  # in the figure's own unit
    "fid": 5.0,
    "kid": 0.005,  # 5 of what is shown times 1000
    "precision": 0.1,
    "recall": 0.1,
    "right": 0.1,  # class accuracy
    "rouge1": 0.05,
    "rouge2": 0.05,
    "rougeL": 0.05,
    "passed": 0.1,
    "entropy": 0.1,  # bits
}
MARGINS = {"clip_score": "margin_clip", "logp_mean": "margin_logp"}  # of `equality`
SHARES = {"perplexity": 0.1, "is": 0.1}  # of the figure itself
Z = 1.96


def effect_of_interest(name: str, value: float, margins: EqualitySpec) -> float | None:
    """Of a figure of this value; None for figures that are not of quality."""
    if name in MARGINS:
        return float(getattr(margins, MARGINS[name]))
    return SHARES[name] * abs(value) if name in SHARES else EFFECTS.get(name)


def half_width(row: Mapping[str, Any], name: str) -> float | None:
    """Of a figure's 95% interval; None where no error was taken."""
    low, high, error = (row.get(f"{name}{end}") for end in ("_low", "_high", "_se"))
    if low is not None and high is not None and not missing(low) and not missing(high):
        return (high - low) / 2
    return None if error is None or missing(error) or isinstance(error, str) else Z * error


def too_few(row: Mapping[str, Any], name: str, margins: EqualitySpec) -> bool:
    """Whether a row's figure says nothing: an effect of interest to either side lies in its interval. One image or
    text has no error and says nothing."""
    value = row.get(name)
    if value is None or missing(value) or isinstance(value, str) or not math.isfinite(value):
        return False
    wanted, half = effect_of_interest(name, value, margins), half_width(row, name)
    if wanted is None:
        return False
    return row.get("n") == 1 if half is None else not half < wanted


def too_few_of(row: Mapping[str, Any], margins: EqualitySpec) -> list[str]:
    """Names of a row's figures that say nothing."""
    return [name for name in (*EFFECTS, *MARGINS, *SHARES) if too_few(row, name, margins)]
