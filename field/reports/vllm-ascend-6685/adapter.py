"""vllm-ascend: the adapter of report 7807, at another version."""

import runpy
from pathlib import Path

verifier = runpy.run_path(str(Path(__file__).parents[1] / "vllm-ascend-7807/adapter.py"))["verifier"]
