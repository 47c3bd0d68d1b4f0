"""The table that a run ends with."""

import pytest

from parity.base.errors import ParityError
from parity.base.verdict_table import table

HEAD = "kind,model,task,method,role,claim,verdict,gain,depth,label\n"
ROWS = (
    "discrete,scenes,,ar,reference,lossless,certified lossless,1.0,,ar\n"
    "discrete,scenes,,sjd,method,lossless,certified lossless,2.0,,sjd window=16\n"
    "continuous,mar,,cspd,method,lossless,,0.21,99,[red]cspd[/red]\n"
)


def test_every_method_but_plain_decoding_has_a_row(tmp_path):
    (tmp_path / "summary.csv").write_text(HEAD + ROWS)
    lines = table(tmp_path / "summary.csv").splitlines()
    row = {name: next((line for line in lines if name in line), "") for name in ("sjd", "cspd", " ar ")}
    assert row["sjd"].split() == ["scenes", "sjd", "window=16", "lossless", "certified", "lossless", "2.00", "passes"]
    assert "[red]cspd[/red]" in row["cspd"]  # a method's name is printed as text, never read as markup
    assert row["cspd"].split()[-4:] == ["not", "tested", "0.21", "calls"]
    assert not row[" ar "]


def test_a_baseline_that_is_not_plain_decoding_is_named_below(tmp_path):
    (tmp_path / "summary.csv").write_text(HEAD + ROWS)
    assert "in place of" not in table(tmp_path / "summary.csv")
    named = [f"{line},mar iterations=64\n" for line in (HEAD + ROWS).splitlines()]
    (tmp_path / "summary.csv").write_text(named[0].replace("mar iterations=64", "baseline") + named[-1])
    last = table(tmp_path / "summary.csv").splitlines()[-1]
    assert last == "vectors: times fewer than mar iterations=64, in place of plain decoding"


def test_no_summary_is_one_line(tmp_path):
    with pytest.raises(ParityError, match=r"summary.csv: cannot be read"):
        table(tmp_path / "summary.csv")
