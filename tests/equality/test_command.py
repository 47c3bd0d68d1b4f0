"""The command line: users' decoders get their verdicts, rows are files, what cannot be done is one line."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from parity.base.errors import ParityError
from parity.base.files import read_json
from parity.decoders.discrete.sjd import sjd
from parity.equality import __main__ as command
from parity.equality import certify

ROOT = Path(__file__).parents[2]


def run(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["equality", *map(str, arguments)])
    command.main()


def test_users_decoders_get_their_verdicts():
    """The documented example: the correct one through the command, the subtly wrong one through the call."""
    arguments = [
        "certify",
        "docs/example_decoders.py:lookahead",
        "--models",
        "small",
        "--n",
        "5000",
        "--margin",
        "0.08",
    ]
    good = subprocess.run(
        [sys.executable, "-m", "parity.equality", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert good.returncode == 0 and good.stdout.startswith("lookahead: certified lossless"), good.stdout + good.stderr
    bad = certify(command.load(f"{ROOT}/docs/example_decoders.py:hasty"), n=5000, models="small")
    assert bad.verdict["verdict"].startswith("lossy: TV = 0.1") and bad.verdict["mismatch"]
    assert str(bad).startswith("hasty: lossy: TV = 0.1") and "(repeat, seed 1)" in str(bad)


def test_the_call_takes_options():
    assert certify(sjd, n=3000, models="small", margin=0.1, window=2).verdict["verdict"] == "certified lossless"
    assert command.option("window=2") == ("window", 2) and command.option("init=random") == ("init", "random")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere.py:f", "nowhere.py: no such file"),
        ("sjd", "sjd: allowed: MODULE:FUNCTION or FILE.py:FUNCTION"),
        ("json:sjd", "json: has no 'sjd'"),
        ("no.such:f", "no.such: no such module"),
    ],
)
def test_a_name_of_nothing_is_one_line(name, message):
    with pytest.raises(ParityError, match=message):
        command.load(name)


def test_a_module_that_lacks_one_of_its_own_is_a_traceback(tmp_path, monkeypatch):
    (tmp_path / "broken_decoder.py").write_text("import something_that_is_not_there\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="something_that_is_not_there"):
        command.load("broken_decoder:f")


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


def test_what_needs_no_torch_starts_without_it():
    """The paired layer and the verdict cost less than importing torch."""
    names = ["__main__", "cell", "verdict", "rows", "paired", "layers.discrete.paired"]
    program = f"import sys, importlib\nfor n in {names}: importlib.import_module('parity.equality.' + n)\n"
    program += "print('torch' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "False"
