"""EAGLE a week after its PR 47: the adapter of the report."""

import runpy
from pathlib import Path

verifier = runpy.run_path(str(Path(__file__).parents[1] / "reports/eagle-47/adapter.py"))["verifier"]
