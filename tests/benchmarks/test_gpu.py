"""The GPU commands run on a CPU, where they measure nothing but show that they run."""

import json

import pytest

from tests.benchmarks.conftest import load_script


@pytest.fixture
def gpu(monkeypatch):
    """The command, which finds the others of its folder as when it is run there."""
    monkeypatch.syspath_prepend("benchmarks")
    return load_script("gpu.py")


@pytest.mark.long
def test_parts_are_measured_one_by_one_and_a_failure_stops_no_other(gpu, tmp_path, monkeypatch, run_main):
    file, page = tmp_path / "captured.json", tmp_path / "gpu.md"

    def fail(bench):
        """Fail after a row."""
        yield {"rows": 1}
        raise ValueError("no such kernel")

    monkeypatch.setitem(gpu.PARTS, "limit", gpu.Part(fail, 30, "The limit"))
    run_main(gpu.main, "--cpu", "--out", file, "--parts", "limit", "steps")
    run_main(gpu.main, "--cpu", "--out", file, "--parts", "networks")
    parts = json.loads(file.read_text())["parts"]
    assert (parts["limit"]["rows"], "no such kernel" in parts["limit"]["error"]) == ([{"rows": 1}], True)
    assert {row["method"] for row in parts["steps"]["rows"]} == {"ar", "sjd_coupled", "mtj"}
    assert all(row["steps equal"] for row in parts["steps"]["rows"])
    assert "error" not in parts["networks"]
    run_main(gpu.main, "--out", file, "--page", page)
    assert page.read_text().count("**Not measured**") == 3


def test_seconds_are_predicted_against_captured_plain_decoding(gpu, monkeypatch):
    monkeypatch.setattr(gpu, "count_passes", {"ar": 1.0, "mtj": 0.25}.get)
    rows = [{"network": "n", "method": m, "length": 100, "captured ms": ms} for m, ms in (("ar", 10.0), ("mtj", 20.0))]
    plain, mtj = gpu.predict_seconds(rows, [], [])
    assert (plain["seconds an image"], plain["times captured plain"]) == (1, 1)
    assert (mtj["seconds an image"], mtj["times captured plain"]) == (0.5, 2)
    compiled = [{**rows[1], "captured ms": 10.0}]
    alone = [{"network": "n", "pass": "window", "tokens": 1, "compiled, captured ms": 5.0}]
    plain, mtj = gpu.predict_seconds(rows, compiled, alone)
    assert (mtj["times captured plain"], mtj["times the network over one token"]) == (4, 2)


def test_gains_and_costs_are_those_of_plain_decoding():
    gpu = load_script("gpu_passes.py")
    rows = [{"network": "n", "compiled": False, "batch": 1, "window": w, "ms": ms} for w, ms in ((1, 2.0), (16, 3.0))]
    assert gpu.list_costs_of_nodes(rows) == [{"network": "n", "compiled": False, "batch": 1, "16 tokens": 1.5}]
    times = {"ar": 2.0, "sjd": 3.0, "new": 3.0}
    decoders = [{"network": "n", "compiled": False, "method": m, "ms a pass": ms} for m, ms in times.items()]
    gains = gpu.list_gains(decoders, {"ar": 1.0, "sjd": 1 / 3})
    assert [(r["a pass, in plain passes"], r["times plain"]) for r in gains] == [(1, 1), (1.5, 2), (1.5, None)]
