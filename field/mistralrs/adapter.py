"""mistral.rs: the adapter of the report."""

import runpy
from pathlib import Path

sampler = runpy.run_path(str(Path(__file__).parents[1] / "reports/mistralrs-2424/adapter.py"))["sampler"]
