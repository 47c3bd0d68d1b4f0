"""Quality of filled-in text: its entropy, ROUGE against the original (Guo & Ermon 2025, Table 3), and for code the
share of functions that pass their unit tests, run in a sandbox (Table 2)."""

import unicodedata
from typing import Any

import numpy as np

from parity.embedded import stories
from parity.metrics import sandbox
from parity.metrics.estimates import Estimate, means

KINDS = ("anysubset",)
ROUGE = ("rouge1", "rouge2", "rougeL")
MEASURES = {
    "entropy": ("entropy", "bits", "none"),
    "rouge1": ("ROUGE-1", "", "higher"),
    "rouge2": ("ROUGE-2", "", "higher"),
    "rougeL": ("ROUGE-L", "", "higher"),
    "passed": ("pass@1", "", "higher"),
}
UNSPACED = (  # names of characters begin so in scripts that write no spaces between words
    "CJK ", "IDEOGRAPHIC ITERATION", "HIRAGANA", "KATAKANA", "HALFWIDTH KATAKANA", "BOPOMOFO", "YI ", "THAI ", "LAO ",
    "KHMER ", "MYANMAR ", "TAI ", "NEW TAI ", "BALINESE ", "JAVANESE ",
)  # fmt: skip


def entropy(tokens: np.ndarray) -> float:
    """Compute the Shannon entropy of the token frequencies of one row [N], bits (Guo & Ermon 2025, Eq. 22)."""
    share = np.unique(tokens, return_counts=True)[1] / len(tokens)
    return float(-(share * np.log2(share)).sum())


class WordSplitter:
    """Splits a text into its words, for ROUGE: as Google's tokenizer, which knows a to z and 0 to 9 alone, and the same
    for other letters."""

    def tokenize(self, text: str) -> list[str]:
        """List the words of a text in lower case: runs of letters, with their combining marks, and decimal digits."""
        kept = ""
        for character in unicodedata.normalize("NFC", text.lower()):
            category = unicodedata.category(character)
            is_letter = category[0] == "L" or category == "Nd"
            is_mark = category in ("Mn", "Mc") and unicodedata.category(kept[-1:] or " ")[0] in "LM"
            kept += character if is_letter or is_mark else " "
        return kept.split()


def explain_no_rouge(reference: str) -> str:
    """Explain why ROUGE with a reference is unknown: its words cannot be told apart, or it has none; "" if it is."""
    if any(unicodedata.name(character, "").startswith(UNSPACED) for character in reference):
        return "is in a script without spaces between words"
    return "" if WordSplitter().tokenize(reference) else "has no words"


def rouge(reference: str, filled: str) -> dict[str, float]:
    """Compute F-measures of ROUGE-1, ROUGE-2 and ROUGE-L of two texts, without stemming, by Google's implementation;
    {} for a reference of unknown words (`explain_no_rouge`)."""
    from rouge_score.rouge_scorer import RougeScorer  # imported here, as it brings nltk and few tasks need it

    if explain_no_rouge(reference):
        return {}
    scores = RougeScorer(list(ROUGE), tokenizer=WordSplitter()).score(reference, filled)
    return {name: scores[name].fmeasure for name in ROUGE}


def has_originals(sample: Any) -> bool:
    """Return whether the rows are of a task that has the original of each text."""
    return all(isinstance(text, str) for text in sample.extra)


def explain_rouge_absent(sample: Any) -> str:
    """Explain why the mean ROUGE is missing, with the number of texts without one; "" if every text has one."""
    reasons = [reason for text in sample.extra if (reason := explain_no_rouge(text))]
    return f"{len(reasons)} of {len(sample.extra)} originals: the first {reasons[0]}" if reasons else ""


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
    if has_originals(sample) and not explain_rouge_absent(sample):
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
    """Average the columns of `rows` over texts; if code was not run, with the reason in `passed_why`."""
    figures: dict[str, Any] = dict(means(**{name: sample.rows[name] for name in MEASURES if name in sample.rows}))
    if has_originals(sample) and (reason := explain_rouge_absent(sample)):
        figures |= {name: Estimate(why=reason) for name in ROUGE}
    if has_programs(sample) and "passed" not in figures:
        figures["passed_why"] = explain_not_run(sample)
    return figures
