"""Whether two samples of a figure differ: the t-tests that papers print beside their tables."""

import numpy as np
from scipy import stats


def compare(a: np.ndarray, b: np.ndarray) -> dict[str, float]:
    """Welch's t-test of two samples [n] and the paired one (same prompts, independent noise): p-values, difference of
    the means.

    Two constants differ with certainty or not at all: p is then 0 or 1, not undefined.
    """
    difference = float(np.mean(a) - np.mean(b))
    constant = float(difference == 0)
    welch = stats.ttest_ind(a, b, equal_var=False).pvalue if np.ptp(a) > 0 or np.ptp(b) > 0 else constant
    paired = stats.ttest_rel(a, b).pvalue if np.ptp(a - b) > 0 else constant
    return {"difference": difference, "p_welch": float(welch), "p_paired": float(paired)}
