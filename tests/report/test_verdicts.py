"""Verdicts name the options and models that they were reached on, and what was not tested;
tables say which network is missing and which figures are of too few images."""

import json
from dataclasses import replace

import pytest
from parity_certify.result_rows import make_row
from parity_certify.verdict import Verdict, judge_decoders, make_columns

from parity.experiment.options import options as complete
from parity.experiment.schema import EqualitySpec
from parity.report import front_table, summary_page
from parity.report.collect import QUALITY, is_too_few, list_too_few
from parity.report.tables import FEW, Column, show_measured, show_table
from parity.report.verdicts import Scope, add_reach, add_run, refuse_undrafted

FIVE = {"random-0 3x5": 5, "flat 3x5": 5}  # models and how many tokens each has


def exact(p=0.5, tv=0.0, models=FIVE, repeat=0):
    """Make rows of the exact layer with p-value p and total variation `tv`; below .05 also of a second seed."""
    fields = {"method": "it", "key": "k", "repeat": repeat, "seed": repeat}
    bound = {"effect": tv + 0.01, "minimum_detectable_effect": 0.01, "decides": False, "verdict": "TV", "alpha": 0.05}
    bound |= {"tv": tv, "tv_low": 0.9 * tv if p < 0.05 else 0.0, "tv_high": tv + 0.01}
    rows = []
    for model, tokens in models.items():
        fields |= {"model": model, "tokens": tokens}
        rows.append(make_row("exact", "all four", 10_000, p_value=p, p_holm=p, **fields))
        rows.append(make_row("exact", "TV certificate", 10_000, **bound, **fields))
    return rows + (exact(p, tv, models, 1) if p < 0.05 and not repeat else [])


def long(p=0.5, tokens=64):
    """Make rows of the long layer on a chain of this many tokens; below .05 also of a second seed."""
    fields = {"method": "it", "key": "k", "model": f"a chain of {tokens}", "tokens": tokens, "effect": 0.1}
    fields |= {"p_value": p, "p_holm": p, "minimum_detectable_effect": 0.011}
    return [make_row("long", "distances", 60_000, **fields, repeat=k, seed=k) for k in range(2 if p < 0.05 else 1)]


def judge(rows, options, cut, kind="discrete", tokens=64):
    """Judge rows as of a lossless method, and add the verdict's scope; `cut` are the options of the exact layer."""
    (v,) = judge_decoders(rows, {"it": "lossless"}, 0.02)
    return v | add_reach(v, rows, Scope(kind, max(options.items(), default=("", 0)), options, cut, tokens), 0.05)


W, CUT = {"window": 16}, {"window": 3}
FAR, LOSSY = long(tokens=256), exact(1e-9, 0.65)
CASES = [  # rows, options, options of the exact layer; what the scope must name, and whether the options were tested
    ([*exact(), *long()], W, CUT, ("window 3", "window 16", "64 tokens"), "tested"),
    ([*exact(), *long()], {}, {}, ("5 tokens", "64 tokens"), "tested"),
    (exact(), W, CUT, ("window 3", "window 16"), "not tested"),
    (exact(tv=0.05), {}, {}, ("5 tokens",), "tested"),
    ([*exact(), *FAR], {"window": 200}, CUT, ("window 3", "window 200"), "not tested"),
    ([*LOSSY, *long(1e-9)], {"interval": 4}, {"interval": 2}, ("interval 2", "interval 4 rejected"), "tested"),
    ([*LOSSY, *long()], {"interval": 4}, {"interval": 2}, ("interval 2", "interval 4 not rejected"), "tested"),
    ([*exact(), *long(1e-9)], W, CUT, ("window 16", "64 tokens"), "tested"),
    (exact(models={"mixture": 3}), {"gamma": 8}, {"gamma": 3}, ("mixtures", "gamma 3", "gamma 8"), "not tested"),
]


@pytest.mark.parametrize(("rows", "options", "cut", "named", "tested"), CASES)
def test_the_scope_says_where_the_verdict_was_reached(rows, options, cut, named, tested):
    v = judge(rows, options, cut, "continuous" if "gamma" in options else "discrete")
    assert v["own_options"] == tested
    assert all(words in v["scope"] for words in named)
    assert v["value"].tested
    assert bool(v["value"].untested) == (tested == "not tested")


def test_a_verdict_reaches_as_far_as_all_of_its_tests():
    """One model of 256 tokens among those of 64 takes a window of 100 no further; a run of more than the longest of
    them says so."""
    rows, options = [*exact(), *long(), *long(tokens=256)], {"window": 100}
    assert judge(rows, options, CUT)["own_options"] == "not tested"
    assert judge([*exact(), *FAR], options, CUT)["own_options"] == "tested"
    assert "64 to 256 tokens" in judge(rows, W, CUT, tokens=256)["scope"]
    assert "64 of 256 tokens" in judge([*exact(), *long()], W, CUT, tokens=256)["scope"]


def make_run(kind, method, **figures):
    chosen = json.dumps(complete(kind, method, {}))
    return {"kind": kind, "method": method, "options": chosen, "nfe_ratio": 1.0} | figures


REMARK = "in this run {} accepted, so nothing was saved"
NONE = REMARK.format("no draft was")
UNDRAFTED = [
    (make_run("continuous", "cspd", accepted_drafts=0, drafted=1440), REMARK.format("0 of 1,440 drafts were")),
    (make_run("continuous", "cspd", accepted_drafts=None, drafted=0), NONE),  # nothing was drafted
    (make_run("continuous", "coupled", accepted_drafts=0, drafted=0), NONE),
    (make_run("anysubset", "assd", accepted_drafts=0), NONE),
    (make_run("discrete", "sjd"), NONE),
]


@pytest.mark.parametrize(("row", "remark"), UNDRAFTED)
@pytest.mark.parametrize("value", [Verdict("certified", bound=0.01, reason="TV <= 0.01"), Verdict("lossy")])
def test_a_run_without_accepted_drafts_changes_no_verdict(row, remark, value):
    judged = {"claim": "lossless", "scope": "on 5 tokens", **make_columns(value, "lossless")}
    completed = add_run(row, judged)
    assert completed == judged | {k: f"{judged[k]}; {remark}" for k in ("scope", "note") if judged[k]}
    assert remark in front_table.show_verdict(completed).detail


@pytest.mark.parametrize(
    "row",
    [row | {"accepted_drafts": 7, "nfe_ratio": 0.5} for row, _ in UNDRAFTED]
    + [
        make_run("discrete", "ar"),
        make_run("anysubset", "sequential"),
        make_run("continuous", "mar", accepted_drafts=None),
    ],
)
def test_plain_and_accepting_runs_get_no_remark(row):
    judged = {"scope": "on 5 tokens", **make_columns(Verdict("certified", bound=0.01), "lossless")}
    assert add_run(row, judged) == judged


def test_tests_that_accepted_no_draft_are_inconclusive():
    """And a fault that they found all the same stays one."""
    for value, kind in ((Verdict("certified", bound=0.01), "inconclusive"), (Verdict("lossy"), "lossy")):
        judged = {"claim": "lossless", **make_columns(value, "lossless")}
        assert (judged | refuse_undrafted(judged, "tests of layer exact"))["verdict_kind"] == kind


USUAL = EqualitySpec()


def figures_of(n, **figures):
    return {"kind": "discrete", "n": n, **figures}


def add_too_few(row, margins=USUAL):
    """Return a row with the column `too_few`, the figures that n rows are too few for, as the summary has it."""
    return row | {"too_few": " ".join(list_too_few(row, margins))}


def test_an_interval_too_wide_to_tell_is_grey():
    kid, sure = figures_of(64, kid=-0.080, kid_se=0.251), figures_of(50_000, kid=0.012, kid_se=0.001)
    assert is_too_few(kid, "kid", USUAL)
    assert not is_too_few(sure, "kid", USUAL)
    entry = show_measured("kid")(add_too_few(kid))
    assert entry.style == "few"
    assert "-0.08" in entry.text
    table = show_table([add_too_few(kid), add_too_few(sure)], [Column("KID", show_measured("kid"))])
    assert table.caption == FEW
    assert not show_table([add_too_few(sure)], [Column("KID", show_measured("kid"))]).caption
    assert show_measured("kid")(add_too_few(sure)).style == ""
    assert (
        show_measured("kid")(add_too_few(kid) | {"moved": "kid"}).style == ""
    )  # a difference that is significant is not greyed
    text = add_too_few(figures_of(8, perplexity=20.0, perplexity_se=2.0) | {"kind": "anysubset"})
    assert show_measured("perplexity")(text).style == "few"


def drop_figures(g, names, reason):
    """Return `g` without the figures of quality of these names, as if nothing had measured them for a reason."""
    ends = ("", "_se", "_low", "_high", "_change", "_change_se")
    summary = g.summary.drop(columns=[n + end for n in names for end in ends if n + end in g.summary])
    lacking = {f"{name}_why": reason for name in names}
    return replace(g, summary=summary.assign(moved="", too_few="", **lacking))


def describe_quality(g):
    """Return what the first table says of quality on images, and its entries."""
    rows = summary_page.order_methods(g, "discrete")
    entries = [front_table.show_change(g, "discrete", row).text for row in rows]
    return front_table.describe_quality(g, "discrete", rows), entries


def test_quality_that_nothing_measured_is_not_unchanged(gathered):
    sentence, entries = describe_quality(drop_figures(gathered, QUALITY, "no network: networks.clip"))
    assert "no change" not in sentence
    assert sentence.startswith("not measured")
    assert "networks.clip" in sentence
    assert set(entries) == {"no network"}


def test_too_few_images_are_not_an_unchanged_quality(gathered):
    name = front_table.choose_main_figure(gathered, "discrete")
    for error, text in ((1e-6, "no change seen"), (1e6, "too few to tell")):
        changes = {"moved": "", f"{name}_change": 0.0, f"{name}_change_se": error}
        g = replace(gathered, summary=gathered.summary.assign(**changes))
        row = next(r for r in summary_page.order_methods(g, "discrete"))
        assert front_table.show_change(g, "discrete", row).text == text
