"""openvino.genai: the adapter of the report."""

import runpy
from pathlib import Path

sampler = runpy.run_path(str(Path(__file__).parents[1] / "reports/openvino-genai-4190/adapter.py"))["sampler"]
