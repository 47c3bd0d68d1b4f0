"""pass@1: the share of completed functions that pass their unit tests, run in a sandbox (Guo & Ermon 2025, Table 2)."""

from typing import Any

import numpy as np

from parity.embedded import stories
from parity.metrics import sandbox
from parity.metrics.standard_errors import means

KINDS = ("anysubset",)
MEASURES = {"passed": ("pass@1", "", "higher")}


def has_programs(sample: Any) -> bool:
    """Whether the rows are of a task that has tests."""
    return all(isinstance(extra, dict) and "tests" in extra for extra in sample.extra)


def not_run(sample: Any) -> str:
    """Why what a model wrote is not run; "" if it is."""
    return sandbox.probe() if sample.run_code else "run_generated_code is off"


def program(extra: dict[str, Any], text: str, filled: str) -> str:
    """A completed function: published ones stand between two pieces of source, ours is the whole text."""
    return extra["before"] + filled + extra["after"] if "before" in extra else stories.source(text.split())


def rows(sample: Any) -> dict[str, Any]:
    """Whether each passes, and why not; nothing where code may not be run."""
    if not has_programs(sample) or not_run(sample):
        return {}
    outcomes = [
        sandbox.run(program(extra, text, filled), extra["tests"])
        for extra, text, filled in zip(sample.extra, sample.texts, sample.filled, strict=True)
    ]
    return {"passed": np.array([f.passed for f in outcomes]), "why": [f.why for f in outcomes]}


def measure(sample: Any) -> dict[str, Any]:
    if not has_programs(sample):
        return {}
    return means(passed=sample.rows["passed"]) if "passed" in sample.rows else {"code_not_run": not_run(sample)}
