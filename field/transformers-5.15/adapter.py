"""transformers 5.15.0: the adapter of the report."""

import runpy
from pathlib import Path

design = runpy.run_path(str(Path(__file__).parents[1] / "reports/transformers-47932/adapter.py"))["design"]
