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
    page = files["gpu.md"].read_text()
    assert "Not measured" in page
    again = ["--read", str(files["gpu.json"]), "--page", str(tmp_path / "again.md")]
    monkeypatch.setattr(sys, "argv", ["gpu.py", *again])
    load_script("gpu.py").main()
    assert (tmp_path / "again.md").read_text() == page


def test_gains_and_costs_are_those_of_plain_decoding():
    gpu = load_script("gpu.py")
    rows = [{"network": "n", "compiled": False, "batch": 1, "window": w, "ms": ms} for w, ms in ((1, 2.0), (16, 3.0))]
    assert gpu.list_costs_of_nodes(rows) == [{"network": "n", "compiled": False, "batch": 1, "16 tokens": 1.5}]
    times = {"ar": 2.0, "sjd": 3.0, "new": 3.0}
    decoders = [{"network": "n", "compiled": False, "method": m, "ms a pass": ms} for m, ms in times.items()]
    gains = gpu.list_gains(decoders, {"ar": 1.0, "sjd": 1 / 3})
    assert [(r["a pass, in plain passes"], r["times plain"]) for r in gains] == [(1, 1), (1.5, 2), (1.5, None)]
