"""Quality of filled-in text: its entropy, ROUGE against the original (Guo & Ermon 2025, Table 3), and for code the
share of functions that pass their unit tests, run in a sandbox (Table 2)."""

from typing import Any

import numpy as np

from parity.embedded import stories
from parity.metrics import sandbox
from parity.metrics.estimates import means

KINDS = ("anysubset",)
ROUGE = ("rouge1", "rouge2", "rougeL")
MEASURES = {
    "entropy": ("entropy", "bits", "none"),
    "rouge1": ("ROUGE-1", "", "higher"),
    "rouge2": ("ROUGE-2", "", "higher"),
    "rougeL": ("ROUGE-L", "", "higher"),
    "passed": ("pass@1", "", "higher"),
}


def entropy(tokens: np.ndarray) -> float:
    """Compute the Shannon entropy of the token frequencies of one row [N], bits (Guo & Ermon 2025, Eq. 22)."""
    share = np.unique(tokens, return_counts=True)[1] / len(tokens)
    return float(-(share * np.log2(share)).sum())


def rouge(reference: str, filled: str) -> dict[str, float]:
    """Compute F-measures of ROUGE-1, ROUGE-2 and ROUGE-L of two texts, without stemming, by Google's implementation."""
    from rouge_score.rouge_scorer import RougeScorer  # imported here, as it brings nltk and few tasks need it

    scores = RougeScorer(list(ROUGE)).score(reference, filled)
    return {name: scores[name].fmeasure for name in ROUGE}


def has_programs(sample: Any) -> bool:
    """Return whether the rows are of a task that has tests."""
    return all(isinstance(extra, dict) and "tests" in extra for extra in sample.extra)


def explain_not_run(sample: Any) -> str:
    """Explain why what a model wrote is not run; "" if it is."""
    return sandbox.probe() if sample.run_code else "run_generated_code is off"


def join_program(extra: dict[str, Any], text: str, filled: str) -> str:
    """Make a function's source: `filled` between the two pieces of a published task, else all words of `text`."""
    return extra["before"] + filled + extra["after"] if "before" in extra else stories.join_source(text.split())


def rows(sample: Any) -> dict[str, Any]:
    """Compute the entropy of every text; ROUGE if its task has originals to compare with; if it has unit tests and code
    may be run, whether the text `passed` them, and `why` not."""
    tokens = zip(sample.shard.tokens, sample.shard.end, strict=True)
    columns: dict[str, Any] = {"entropy": np.array([entropy(row[:n]) for row, n in tokens])}
    if all(isinstance(text, str) for text in sample.extra):
        scores = [rouge(text, filled) for text, filled in zip(sample.extra, sample.filled, strict=True)]
        columns |= {name: np.array([s[name] for s in scores]) for name in ROUGE}
    if has_programs(sample) and not explain_not_run(sample):
        outcomes = [
            sandbox.run(join_program(extra, text, filled), extra["tests"])
            for extra, text, filled in zip(sample.extra, sample.texts, sample.filled, strict=True)
        ]
        columns |= {"passed": np.array([o.passed for o in outcomes]), "why": [o.why for o in outcomes]}
    return columns


def measure(sample: Any) -> dict[str, Any]:
    """Average the columns of `rows` over texts; if code was not run, with the reason in `code_not_run`."""
    figures: dict[str, Any] = dict(means(**{name: sample.rows[name] for name in MEASURES if name in sample.rows}))
    if has_programs(sample) and "passed" not in figures:
        figures["code_not_run"] = explain_not_run(sample)
    return figures
