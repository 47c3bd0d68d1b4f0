"""The command line: rows are files, what cannot be done is one line."""

import itertools
import json
import math
import sys
from types import SimpleNamespace

import pytest

from parity.base.errors import ParityError
from parity.equality import __main__ as command

LEVELS = (0.05, 0.01)


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


@pytest.fixture(scope="module")
def by_level(tmp_path_factory):
    """Rows of a correct decoder and of a lossy one at two levels: {(method, alpha): rows}."""
    found = {}
    given = {"kind": "discrete", "options": {"window": 3}, "claim": "lossy", "n": 2000, "seeds": [3, 4], "draws": 199}
    given |= {"models": "small", "pathwise": False, "threads": 1}
    for method, alpha in itertools.product(("sjd", "gsd"), LEVELS):
        asked = SimpleNamespace(**given, method=method, alpha=alpha)
        found[method, alpha] = command.exact(asked)["rows"]
        found[method, alpha] += command.long(asked)["rows"] if method == "sjd" else []
    return found


def test_the_level_moves_every_bound(by_level):
    bounds = {}
    for (method, alpha), rows in by_level.items():
        for r in (r for r in rows if r["test"] == "TV certificate" and r["repeat"] == 0):
            assert r["effect"] == pytest.approx(r["statistic"] + (math.log(1 / alpha) / 2 / r["n"]) ** 0.5)
            assert f"({100 - 100 * alpha:g} %)" in r["verdict"] and r["tv_low"] <= r["tv"] <= r["tv_high"]
            bounds[method, alpha, r["model"]] = r["effect"]
    assert all(bounds[m, 0.01, model] > bound for (m, alpha, model), bound in bounds.items() if alpha == 0.05)


def test_the_level_moves_the_verdict_of_every_row(by_level):
    between = 0
    for (_, alpha), rows in by_level.items():
        for r in (r for r in rows if r["verdict"] in ("rejected", "not rejected")):
            p = r["p_value"] if r["p_holm"] is None else r["p_holm"]
            assert (r["verdict"] == "rejected") == (p <= alpha)
            between += 0.01 < p <= 0.05
    assert between  # rows whose verdict hangs on the level


def test_a_lower_level_finds_larger_faults_only(by_level):
    def reach(alpha):
        rows = (r for r in by_level["sjd", alpha] if r["repeat"] == 0 and r["test"] not in ("noise", "batches"))
        return {(r["layer"], r["model"], r["test"]): r["minimum_detectable_effect"] for r in rows}

    usual, lower = reach(0.05), reach(0.01)
    assert all(lower[place] > least for place, least in usual.items() if least is not None)


def test_a_monte_carlo_null_can_still_reject_at_a_lower_level(by_level):
    """Its smallest p-value is the same share of the level."""
    least = {alpha: min(r["p_value"] for r in by_level["gsd", alpha] if r["test"] == "all four") for alpha in LEVELS}
    assert least[0.01] / 0.01 == pytest.approx(least[0.05] / 0.05, rel=1e-3)


def test_an_unknown_method_is_one_line(tmp_path, monkeypatch):
    with pytest.raises(ParityError, match=r"parity_decoders.discrete.nothing: no such module"):
        run(monkeypatch, "exact", "--kind", "discrete", "--method", "nothing", "--out", tmp_path / "x.json")
