"""Numbers of finished rows that need no network: entropy, means with their errors, t-tests."""

import math

import numpy as np
from scipy import stats


def entropy(tokens: np.ndarray) -> float:
    """Shannon entropy of the token frequencies of one row [N], bits (Guo & Ermon 2025, Eq. 22)."""
    share = np.unique(tokens, return_counts=True)[1] / len(tokens)
    return float(-(share * np.log2(share)).sum())


def compare(a: np.ndarray, b: np.ndarray) -> dict[str, float]:
    """Welch's t-test of two samples [n] and the paired one (same prompts, independent noise): p-values, and the difference of the means.

    Two constants differ with certainty or not at all: p is then 0 or 1, not undefined.
    """
    difference = float(np.mean(a) - np.mean(b))
    constant = float(difference == 0)
    welch = stats.ttest_ind(a, b, equal_var=False).pvalue if np.ptp(a) > 0 or np.ptp(b) > 0 else constant
    paired = stats.ttest_rel(a, b).pvalue if np.ptp(a - b) > 0 else constant
    return {"difference": difference, "p_welch": float(welch), "p_paired": float(paired)}


def mean_error(values: np.ndarray) -> tuple[float, float]:
    """Mean and its standard error."""
    return float(np.mean(values)), float(np.std(values, ddof=1) / math.sqrt(len(values))) if len(
        values
    ) > 1 else math.nan
