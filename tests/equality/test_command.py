"""The command line: rows are files, what cannot be done is one line."""

import itertools
import json
import math
from types import SimpleNamespace

import pytest

from parity.equality import __main__ as command

LEVELS = (0.05, 0.01)


@pytest.mark.parametrize(
    ("kind", "method", "options", "flags"),
    [
        ("discrete", "jacobi", {"window": 2, "coupling": "shared"}, ["--pathwise"]),
        ("anysubset", "assd", {"k": 3}, []),
        ("continuous", "cspd", {"gamma": 2, "prefill": 0.0}, []),
    ],
)
def test_exact_rows_of_all_kinds_are_json_without_nan(tmp_path, run_main, kind, method, options, flags):
    out = tmp_path / "rows.json"
    values = ["--options", json.dumps(options), "--n", 2000, "--models", "small", "--draws", 199, "--seeds", "[3, 4]"]
    run_main(command.main, "exact", "--kind", kind, "--method", method, *values, *flags, "--out", out)
    written = json.loads(out.read_text(), parse_constant=lambda c: pytest.fail(c))
    rows = written["rows"]
    assert {r["test"] for r in rows} >= {"joint G", "pairs", "conditionals", "all four", "TV certificate"}
    assert {(r["method"], r["seed"]) for r in rows} == {(method, 3)}
    verdicts = {r["verdict"] for r in rows if r["test"] == "same tokens, float64"}
    assert verdicts == ({"identical"} if flags else set())
    assert written["seconds"] >= 0


@pytest.fixture(scope="module")
def rows_at_levels():
    """Result rows of a correct decoder, sjd, and of a lossy one, gsd, at each of LEVELS: {(method, alpha): rows}. Those
    of sjd are of the exact and the long layer, those of gsd of the exact one alone."""
    rows = {}
    settings = {"kind": "discrete", "options": {"window": 3}, "claim": "lossy", "n": 2000, "seeds": [3, 4]}
    settings |= {"draws": 199, "models": "small", "pathwise": False, "threads": 1, "longest": 0}
    for method, alpha in itertools.product(("sjd", "gsd"), LEVELS):
        arguments = SimpleNamespace(**settings, method=method, alpha=alpha)
        rows[method, alpha] = command.run_exact(arguments)["rows"]
        rows[method, alpha] += command.run_long(arguments)["rows"] if method == "sjd" else []
    return rows


def test_the_level_moves_every_bound(rows_at_levels):
    bounds = {}
    for (method, alpha), rows in rows_at_levels.items():
        for r in (r for r in rows if r["test"] == "TV certificate" and r["repeat"] == 0):
            assert r["effect"] == pytest.approx(r["statistic"] + (math.log(1 / alpha) / 2 / r["n"]) ** 0.5)
            assert f"({100 - 100 * alpha:g} %)" in r["verdict"]
            assert r["tv_low"] <= r["tv"] <= r["tv_high"]
            bounds[method, alpha, r["model"]] = r["effect"]
    assert all(bounds[m, 0.01, model] > bound for (m, alpha, model), bound in bounds.items() if alpha == 0.05)


def test_the_level_moves_the_verdict_of_every_row(rows_at_levels):
    n_between = 0  # rows whose p-value is between two levels, so that the verdict depends on the level
    for (_, alpha), rows in rows_at_levels.items():
        for r in (r for r in rows if r["verdict"] in ("rejected", "not rejected")):
            p = r["p_value"] if r["p_holm"] is None else r["p_holm"]
            assert (r["verdict"] == "rejected") == (p <= alpha)
            n_between += 0.01 < p <= 0.05
    assert n_between
