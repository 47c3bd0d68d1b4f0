"""openvino-genai: the adapter of report 4190, at another version."""

import runpy
from pathlib import Path

design = runpy.run_path(str(Path(__file__).parents[1] / "openvino-genai-4190/adapter.py"))["design"]
