"""Numbers as a reader sees them."""

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from parity_certify.verdict import Verdict

from parity.metrics.estimates import Estimate
from parity.report import blocks as form
from parity.report.tables import equality_table, speed, strongest


@given(st.floats(min_value=0, max_value=1))
def test_a_p_value_never_reads_as_nought(p):
    assert float(form.p_value(p).lstrip("< ")) > 0


@given(
    st.floats(allow_nan=False, allow_infinity=False, min_value=-1e12, max_value=1e12),
    st.floats(min_value=1e-9, max_value=1e6),
)
def test_a_figure_is_never_rounded_by_more_than_its_error(value, error):
    shown = float(form.estimated(Estimate(value, error)).text.replace(",", ""))
    assert abs(shown - value) <= 0.06 * error + 1e-8 + abs(value) * 1e-15


@given(st.floats(min_value=1e-6, max_value=0.999))
def test_a_bound_still_holds_as_shown(value):
    shown = float(form.bound(value).text)
    assert value * (1 - 1e-5) <= shown <= 1.1 * value + 1e-7


@pytest.mark.parametrize(("value", "text"), [(0.5, "50%"), (0.012, "1.2%"), (0, "0%"), (None, "not run")])
def test_shares_are_percent(value, text):
    assert form.percent(Estimate(value)).text == text


@pytest.mark.parametrize(
    ("verdict", "style"),
    [
        (Verdict("certified"), "good"),
        (Verdict("lossy", estimate=0.2), "bad"),
        (Verdict("consistent"), "plain"),
        (Verdict("inconclusive"), "unsure"),
        (None, "none"),
    ],
)
def test_a_verdict_has_the_colour_of_its_kind(verdict, style):
    assert form.pill({"value": verdict, "pill": "any words"}).style == f"chip {style}"


def rows_of(*rows):
    shared = {"layer": "exact", "label": "sjd", "test": "t", "model": "m", "key": "k", "seed": 0, "repeat": 0, "n": 10}
    shared |= {"p_value": 0.5, "p_holm": None, "verdict": "not rejected", "note": "", "statistic": None}
    return pd.DataFrame([{**shared, **r} for r in rows])


def test_the_strongest_test_of_a_layer_stands_for_it_and_one_rejection_is_enough():
    rows = rows_of(
        {"p_value": 0.2},
        {"p_value": 0.01, "test": "best"},
        {"p_value": 0.5, "verdict": "rejected"},
        {"p_value": 1e-9, "repeat": 1},
    )
    best = strongest(rows)
    assert (
        best["test"].tolist() == ["best"] and best["verdict"].tolist() == ["rejected"] and best["tests"].tolist() == [3]
    )


def test_a_test_that_was_run_has_no_figure_where_another_was_not_run():
    table = equality_table(rows_of({}, {"verdict": "not run", "p_value": None}), "")
    at = [heading for heading, _ in table.columns].index("Statistic")
    assert [line[at].text for line in table.rows] == ["n/a", "not run"]


def test_a_speed_has_its_quartiles_where_several_batches_were_timed():
    assert speed({"speedup": 1.2, "speedup_q1": 1.1, "speedup_q3": 1.4}) == form.Entry("1.20×", "1.10× to 1.40×")
    assert speed({"speedup": 1.2, "speedup_q1": 1.2, "speedup_q3": 1.2}).detail == ""
    assert speed({}) == form.ABSENT
