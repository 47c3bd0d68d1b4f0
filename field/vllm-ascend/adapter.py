"""vllm-ascend's block verification, after an option: the adapter of the report, with that option set."""

import functools
import runpy
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

OPTIONS = SimpleNamespace(
    enable_block_verify=True, enable_entropy_verify=False, posterior_threshold=0.95, posterior_alpha=0.4
)
CONFIG = SimpleNamespace(rejection_sampler_config=OPTIONS, enable_reduce_sample=False)
verifier = functools.partial(
    runpy.run_path(str(Path(__file__).parents[1] / "reports/vllm-ascend-7807/adapter.py"))["verifier"],
    get_ascend_config=lambda: CONFIG,
    logger=MagicMock(),
)
