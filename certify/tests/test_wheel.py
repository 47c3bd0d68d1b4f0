"""The wheel in an empty environment: the command starts, and certifies a sampler with numpy and scipy alone."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OFFLINE = re.compile("[Ff]ailed to (fetch|download)|error sending request|dns error|[Cc]onnection")
SAMPLER = """
import sys
import numpy as np
P = np.array([0.5, 0.3, 0.2])
def probs(prefixes): return np.tile(P, (len(prefixes), 1))
def sample(prompts, seed):
    assert not {"torch", "transformers", "pytest"} & set(sys.modules)
    return np.random.default_rng(seed).choice(3, p=P, size=(len(prompts), 2))
def wrong(prompts, seed): return 2 - sample(prompts, seed)
"""


def run_uv(*words, folder):
    """Run uv in a folder and return the finished process. Skips the test where the packages cannot be downloaded."""
    run = subprocess.run(["uv", *words], cwd=folder, capture_output=True, text=True)
    if run.returncode and OFFLINE.search(run.stderr):
        pytest.skip("no package index can be reached")
    return run


@pytest.mark.skipif(shutil.which("uv") is None, reason="needs uv")
@pytest.mark.skipif(not (ROOT / "src").is_dir(), reason="needs the sources")
def test_the_wheel_certifies_in_an_empty_environment(tmp_path):
    built = run_uv("build", "--wheel", "--quiet", "--out-dir", str(tmp_path), str(ROOT), folder=tmp_path)
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("parity_certify-*.whl")
    tool = ["tool", "run", "--isolated", "--from", str(wheel), "parity-certify"]
    shown = run_uv(*tool, "--help", folder=tmp_path)
    assert shown.returncode == 0 and "sampler FILE.py:FUNCTION" in shown.stdout, shown.stderr
    (tmp_path / "own.py").write_text(SAMPLER)
    for name, code in (("sample", 0), ("wrong", 1)):
        words = [
            "sampler",
            f"own.py:{name}",
            "--distribution",
            "own.py:probs",
            "--vocab",
            "3",
            "--length",
            "2",
            "--margin",
            "0.2",
        ]
        run = run_uv(*tool, *words, folder=tmp_path)
        assert run.returncode == code, run.stderr
