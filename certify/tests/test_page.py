"""What a certification leaves for a reader and for continuous integration, and its exit codes."""

import json
import subprocess
import sys
import xml.etree.ElementTree as ET

import pytest

SAMPLER = """
import time
import numpy as np

P = np.array([0.4, 0.3, 0.2, 0.1])

def probs(prefixes):
    return np.tile(P, (len(prefixes), 1))

def right(prompts, seed):
    return np.random.default_rng(seed).choice(4, p=P, size=(len(prompts), 2))

def wrong(prompts, seed):
    return np.random.default_rng(seed).choice(4, p=P[::-1], size=(len(prompts), 2))

def slow(prompts, seed):
    time.sleep(0.01 * len(prompts))
    return right(prompts, seed)

def dead(prompts, seed):
    from parity_certify import Sampled
    return Sampled(right(prompts, seed), 5, 0)

def fails(prompts, seed):
    raise RuntimeError("no\\nGPU")
"""


def run_sampler(tmp_path, name, *flags):
    """Write SAMPLER to s.py and certify its sampler `name`, with flags; return the finished process."""
    (tmp_path / "s.py").write_text(SAMPLER)
    command = [
        sys.executable,
        "-m",
        "parity_certify",
        "sampler",
        f"s.py:{name}",
        "--distribution",
        "s.py:probs",
        "--vocab",
        "4",
    ]
    command += ["--length", "2", "--prompts", "[[0]]", "--out", "out", *flags]
    return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("name", "code", "kind", "element"),
    [("right", 0, "certified", None), ("wrong", 1, "lossy", "failure"), ("dead", 2, "inconclusive", "error")],
)
def test_exit_code_json_and_junit_say_the_same(tmp_path, name, code, kind, element):
    completed = run_sampler(tmp_path, name, "--processes", "2" if name == "right" else "1")
    assert completed.returncode == code, completed.stdout + completed.stderr
    saved = json.loads((tmp_path / "out/certificate.json").read_text())
    assert saved["exit_code"] == saved["verdict"]["exit_code"] == code and saved["verdict"]["kind"] == kind
    suite = ET.parse(tmp_path / "out/junit.xml").getroot()
    assert [suite.get(k) for k in ("tests", "failures", "errors")] == ["1", str(int(code == 1)), str(int(code == 2))]
    assert (suite.find("testcase/failure") is not None) == (element == "failure")
    assert (suite.find("testcase/error") is not None) == (element == "error")
    assert saved["verdict"]["words"] in (tmp_path / "out/badge.svg").read_text()
    outcome = {0: "passed: certified lossless: TV <= ", 1: "failed: lossy: TV = ", 2: "not decided: inconclusive: none"}
    assert completed.stderr.splitlines()[-1].startswith(outcome[code])


@pytest.mark.parametrize(("require", "code"), [("certified", 2), ("consistent", 0)])
def test_consistent_passes_only_where_it_is_enough(tmp_path, require, code):
    """In the exit code, the line on stderr, JSON and JUnit."""
    completed = run_sampler(tmp_path, "right", "--n", "200", "--require", require)
    line = completed.stderr.splitlines()[-1]
    assert completed.returncode == code and line.startswith(
        ("passed: consistent: ", "not decided: consistent: ")[code // 2]
    )
    assert line.endswith("; certified is required") == (code == 2)
    saved = json.loads((tmp_path / "out/certificate.json").read_text())
    assert saved["exit_code"] == code and saved["verdict"]["require"] == require
    assert ET.parse(tmp_path / "out/junit.xml").getroot().get("errors") == str(code // 2)


def test_a_fault_is_lossy_whatever_is_required(tmp_path):
    assert run_sampler(tmp_path, "wrong", "--require", "consistent").returncode == 1


@pytest.mark.parametrize(
    ("name", "flags", "message"),
    [
        ("fails", (), "error: sampler: failed after 0 sequences"),
        ("none", (), "error: s.py: has no 'none'"),
        ("right", ("--margin", "2"), "error: margin 2: allowed: above 0, below 1"),
    ],
)
def test_what_cannot_be_certified_is_one_line(tmp_path, name, flags, message):
    completed = run_sampler(tmp_path, name, *flags)
    assert completed.returncode == 3
    assert completed.stderr.startswith(message)
    assert len(completed.stderr.splitlines()) == 1
    suite = ET.parse(tmp_path / "out/junit.xml").getroot()
    assert suite.get("errors") == "1" and suite.find("testcase/error").get("message") in completed.stderr


@pytest.mark.parametrize("text", ["0s", "soon"])
def test_a_budget_that_is_none_is_named(tmp_path, text):
    completed = run_sampler(tmp_path, "right", f"--budget={text}")
    assert completed.returncode == 3 and f"{text!r}: allowed: a time above 0, as 30s, 2m or 1h" in completed.stderr
