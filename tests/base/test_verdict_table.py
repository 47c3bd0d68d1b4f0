"""The table a run ends with."""

import pytest

from parity.base.errors import ParityError
from parity.base.verdict_table import table

HEAD = "kind,model,task,method,role,claim,verdict,nfe_ratio,label\n"
ROWS = (
    "discrete,scenes,,ar,reference,lossless,certified lossless,1.0,ar\n"
    "discrete,scenes,,sjd,method,lossless,certified lossless,0.5,sjd window=16\n"
    "continuous,mar,,cspd,method,lossless,,,[red]cspd[/red]\n"
)


def test_a_row_for_every_method_and_none_for_plain_decoding(tmp_path):
    (tmp_path / "summary.csv").write_text(HEAD + ROWS)
    lines = table(tmp_path / "summary.csv").splitlines()
    of = {name: next((line for line in lines if name in line), "") for name in ("sjd", "cspd", " ar ")}
    assert of["sjd"].split() == ["scenes", "sjd", "window=16", "lossless", "certified", "lossless", "2.00"]
    assert "[red]cspd[/red]" in of["cspd"] and "not tested" in of["cspd"]  # a name is text, never markup
    assert not of[" ar "]


def test_no_summary_is_one_line(tmp_path):
    with pytest.raises(ParityError, match=r"summary.csv: cannot be read"):
        table(tmp_path / "summary.csv")
