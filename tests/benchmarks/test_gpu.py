"""The GPU command runs on a CPU, where it measures nothing but shows that it runs."""

import json
import sys

from tests.benchmarks.conftest import load_script


def test_the_command_decodes_by_every_method_and_tunes(tmp_path, monkeypatch):
    files = {name: tmp_path / name for name in ("gpu.json", "gpu.md")}
    flags = ["--device", "cpu", "--seconds", "1", "--out", str(files["gpu.json"]), "--page", str(files["gpu.md"])]
    monkeypatch.setattr(sys, "argv", ["gpu.py", *flags])
    load_script("gpu.py").main()
    results = json.loads(files["gpu.json"].read_text())
    assert {row["method"] for row in results["tokens"]} >= {"ar", "sjd", "mtj"}
    assert {row["method"] for row in results["tuned"] if row["times plain"]} >= {"ar"}
    assert "Not measured" in files["gpu.md"].read_text()
