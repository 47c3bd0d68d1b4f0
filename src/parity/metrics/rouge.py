"""How near what was filled in comes to what stood there, in words shared: stories (Guo & Ermon 2025, Table 3)."""

from typing import Any

import numpy as np

from parity.metrics.standard_errors import means

KINDS = ("anysubset",)
MEASURES = {
    "rouge1": ("ROUGE-1", "", "higher"),
    "rouge2": ("ROUGE-2", "", "higher"),
    "rougeL": ("ROUGE-L", "", "higher"),
}


def rouge(reference: str, filled: str) -> dict[str, float]:
    """F-measures of ROUGE-1, ROUGE-2 and ROUGE-L, no stemming, by Google's implementation."""
    from rouge_score.rouge_scorer import RougeScorer  # brings nltk: for tasks that have a text to compare with

    scores = RougeScorer(list(MEASURES)).score(reference, filled)
    return {name: scores[name].fmeasure for name in MEASURES}


def rows(sample: Any) -> dict[str, np.ndarray]:
    """Of a task that says what stood in each row's place."""
    if not all(isinstance(text, str) for text in sample.extra):
        return {}
    scores = [rouge(text, filled) for text, filled in zip(sample.extra, sample.filled, strict=True)]
    return {name: np.array([s[name] for s in scores]) for name in MEASURES}


def measure(sample: Any) -> dict[str, float]:
    return means(**{name: sample.rows[name] for name in MEASURES if name in sample.rows})
