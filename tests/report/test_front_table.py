"""The first table: how sure a speed is, which methods drew the same, what fits a budget."""

import json

import pandas as pd
import pytest

from parity.report import answers, front_table, summary_page
from parity.report.collect import follows_plain, group_same
from parity.report.tables import doubt_speed, show_speed

TIMED = {"speedup": 2.0, "speedup_low": 1.9, "speedup_high": 2.1, "speedup_how": "timed", "speedup_predicted": 1.9}
TIMED |= {"load": 2.0, "machine": "a processor, 2 cores"}


@pytest.mark.parametrize(
    ("change", "doubt"),
    [
        ({}, ""),
        ({"load": 3.1}, "busy"),
        ({"load": None}, ""),  # the load is unknown, so that nothing is doubted
        ({"speedup_low": 1.5, "speedup_high": 2.7, "speedup_how": "timed roughly"}, "wide interval"),
        ({"speedup": 1.9, "speedup_low": None, "speedup_high": None, "speedup_how": "predicted"}, "predicted"),
    ],
)
def test_a_speed_that_is_not_measured_well_is_predicted_and_grey(change, doubt):
    row = TIMED | change
    entry = show_speed("speedup")(row)
    assert doubt_speed(row, "speedup").startswith(doubt)
    assert (entry.style == "faint") == bool(doubt)
    assert doubt in entry.detail
    assert entry.text.startswith("1.9" if doubt else "2.0")


def make_row(key, method, drawn, **values):
    """Make a summary row of a cell by its key; equal `drawn` means equal images."""
    fields = {"kind": "discrete", "model": "scenes", "sampling": "{}", "role": "method", "label": key, "name": key}
    fields |= {"key": key, "method": method, "drawn": drawn, "options": "{}", "claim": "lossless", "seed": 2}
    return fields | values


def test_methods_that_drew_the_same_are_named_once_and_why():
    coupled = {"options": json.dumps({"coupling": "gumbel"})}
    rows = [make_row("a", "mtj", "1"), make_row("b", "sjd", "2"), make_row("c", "sjd_coupled", "1", **coupled)]
    assert [[r["key"] for r in group] for group in group_same(rows)] == [["a", "c"], ["b"]]
    [line] = summary_page.describe_same(rows)
    assert "plain decoding with their seed, 2: a and c" in line
    assert "one figure" in line
    assert not follows_plain([rows[1]])
    assert not follows_plain([rows[0] | {"verdict_kind": "lossy"}])  # a lossy method does not follow plain decoding


def make_budget_rows(*nodes):
    """Make a summary of plain decoding and of sjd at windows that take these nodes a pass, with ever fewer passes."""
    plain = make_row("plain", "ar", "0", role="reference", nfe=100.0, nodes_per_pass=1.0)
    counts = {"draft_calls": 0.0, "verdict_kind": "certified", "value": None, "pill": "certified", "mismatch": False}
    rows = [make_row(f"{n}", "sjd", f"{n}", nfe=1000.0 / n, nodes_per_pass=float(n), **counts) for n in nodes]
    return pd.DataFrame([plain, *(r | {"options": json.dumps({"window": r["nodes_per_pass"]})} for r in rows)])


def test_passes_are_shown_at_each_budget_that_has_a_setting():
    heading, table, _ = front_table.show_budgets(make_budget_rows(20, 50))
    assert heading.text == "At equal budgets"
    [line] = table.rows
    assert [entry.text for entry in line[2:]] == ["no such setting", "50", "20"]
    assert front_table.show_budgets(make_budget_rows(20)) == []


def test_only_intervals_above_its_own_beat_compiled_plain_decoding():
    plain = {"speedup_compiled": 1.5, "speedup_compiled_low": 1.4, "speedup_compiled_high": 1.6}
    speeds = (("sure", 1.7), ("overlaps", 1.55), ("slow", 0.5))
    rows = [{"label": label, "speedup_single": low + 1, "speedup_single_low": low} for label, low in speeds]
    rows[1]["speedup_single_high"] = rows[0]["speedup_single_high"] = rows[2]["speedup_single_high"] = 4.0
    answer = answers.describe_compiled_baseline(plain, rows)
    assert answer.endswith("uncompiled: sure")
    assert answers.describe_compiled_baseline({}, rows) == ""


def make_timed_row(label: str, value: float, low: float, high: float) -> dict:
    """Make a row with a measured speed and its interval."""
    speed = {"speedup": value, "speedup_low": low, "speedup_high": high}
    return {"label": label, "role": "method", "verdict_kind": "certified", **speed}


def test_a_method_measured_too_roughly_may_still_be_the_fastest():
    best = make_timed_row("one", 0.7, 0.66, 0.74)
    rough = make_timed_row("two", 1.4, 0.9, 2.2)
    slow = make_timed_row("three", 0.5, 0.2, 1.5)
    answer = answers.name_fastest([best, rough, slow], [best, rough, slow], "speedup")
    assert "one, 0.70 times" in answer
    assert answer.endswith("two")
    assert "two" not in answers.name_fastest([best, slow], [best, slow], "speedup")
    too_high = best | {"speedup_predicted": 1.2}  # predictions of this machine are too high: so is that of the other
    for value, is_named in ((1.1, False), (1.3, True)):
        guess = rough | {"speedup": value, "speedup_predicted": value, "speedup_how": "predicted"}
        assert ("two" in answers.name_fastest([too_high, guess], [too_high, guess], "speedup")) == is_named
    untimed = {"label": "four", "role": "method", "verdict_kind": "certified"}
    assert answers.name_fastest([rough, untimed], [rough, untimed], "speedup").startswith("two, 1.40 times")
