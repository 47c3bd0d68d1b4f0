"""The command line: rows are files, what cannot be done is one line."""

import json
import sys

import pytest

from parity.base.errors import ParityError
from parity.base.files import read_json
from parity.equality import __main__ as command


def run(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["equality", *map(str, arguments)])
    command.main()


@pytest.mark.parametrize(
    ("kind", "method", "options", "more"),
    [
        ("discrete", "jacobi", {"window": 2, "coupling": "shared"}, ["--pathwise"]),
        ("anysubset", "assd", {"k": 3}, []),
        ("continuous", "cspd", {"gamma": 2, "prefill": 0.0}, []),
    ],
)
def test_exact_rows_of_every_kind_are_json_without_nan(tmp_path, monkeypatch, kind, method, options, more):
    out = tmp_path / "rows.json"
    given = ["--options", json.dumps(options), "--n", 2000, "--models", "small", "--draws", 199, "--seeds", "[3, 4]"]
    run(monkeypatch, "exact", "--kind", kind, "--method", method, *given, *more, "--out", out)
    found = json.loads(out.read_text(), parse_constant=lambda c: pytest.fail(c))
    assert {r["test"] for r in found["rows"]} >= {"joint G", "pairs", "conditionals", "all four", "TV certificate"}
    assert {r["method"] for r in found["rows"]} == {method} and {r["seed"] for r in found["rows"]} == {3}
    same = {r["verdict"] for r in found["rows"] if r["test"] == "same tokens, float64"}
    assert same == ({"identical"} if more else set()) and found["seconds"] >= 0


def test_the_tests_of_the_tests_are_commands(tmp_path, monkeypatch):
    out = tmp_path / "rows.json"
    run(monkeypatch, "faults", "--kind", "anysubset", "--n", 1000, "--draws", 99, "--out", out)
    assert {r["layer"] for r in read_json(out)["rows"]} == {"any-order"}
    run(monkeypatch, "calibration", "--replicates", 2, "--draws", 99, "--seeds", "[7]", "--out", out)
    found = read_json(out)
    assert {r["seed"] for r in found["rows"]} == {7} and found["p_values"]


def test_an_unknown_method_is_one_line(tmp_path, monkeypatch):
    with pytest.raises(ParityError, match=r"parity.decoders.discrete.nothing: no such module"):
        run(monkeypatch, "exact", "--kind", "discrete", "--method", "nothing", "--out", tmp_path / "x.json")
