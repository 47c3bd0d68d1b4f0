"""What tables say of pictures that published networks judge, of what no network judged, and of too few."""

import json

import pytest
from parity_certify.verdict import Verdict, columns_of

from parity.experiment import checks
from parity.experiment.cells import cells
from parity.experiment.options import options as complete
from parity.experiment.schema import EqualitySpec
from parity.metrics.export import FIGURES
from parity.report import discrete, shared_sections, verdicts
from parity.report.collect import EFFECTS, MARGINS, SHARES, effect_of_interest, too_few, too_few_of
from parity.report.tables import ABSENT, FEW, Column, measured, show

ROW = {
    "kind": "discrete", "label": "sjd", "method": "sjd", "key": "0" * 8, "role": "method", "n": 100, "batch": 8,
    "clip_score": 0.3, "clip_score_se": 0.001, "fid_why": "no network: networks.inception",
    "hps_why": "no network: networks.hps", "protocol": "sjd 04de33dc",
}  # fmt: skip


def test_a_column_says_which_network_is_missing():
    assert measured("fid")(ROW)[:3] == ("no network", "networks.inception", "none")
    assert measured("fid")({**ROW, "fid": 12.0, "fid_se": 0.1}).text == "12.00"
    assert measured("recall")(ROW) == ABSENT  # nothing was said of it
    others = list(shared_sections.other_figures("discrete", [ROW | {"geneval": 0.5}], discrete.SHOWN))
    [table] = [block for details in others for block in details.body]
    lines = dict(zip([head for head, _ in table.columns], table.rows[0], strict=True))
    assert lines["HPSv2 (higher is better)"].detail == "networks.hps"
    assert lines[f"{FIGURES['geneval'][0]} (higher is better)"].text == "0.5000"


def test_what_no_layer_tested_says_why():
    """The released code's options run on no mixture, and `forced: 0` asks for no test on the model."""
    released = {"gamma": 4, "sigma": "inverted", "inner_temperature": 42.0}
    section = {"methods": {"mar": [{}], "cspd": [released, {"gamma": 4}]}, "images": 2}
    said = {}
    for forced in (0, 4):
        settings = checks.load({"continuous": section | {"forced": forced}})
        pair = (cell for cell in cells(settings, []) if cell.spec["method"] == "cspd")
        said[forced] = [verdicts.untested(settings, cell)["note"] for cell in pair]
    unlike = "its options do not run on models whose law is known"
    assert said == {0: [f"{unlike}; {verdicts.NOT_FORCED}", verdicts.NOT_FORCED], 4: [unlike, "no layer tests it"]}


def test_a_run_that_accepted_no_draft_is_inconclusive():
    """Whatever no layer rejects; what one does stays lossy, and plain decoding drafts nothing."""

    def run(kind, method, **figures):
        chosen = json.dumps(complete(kind, method, {}))
        return {"kind": kind, "method": method, "options": chosen, "nfe_ratio": 1.0, **figures}

    def found(value, row):
        return verdicts.of_run(row, {"claim": "lossless", **columns_of(value, "lossless")})

    certified, lossy = Verdict("certified", bound=0.01), Verdict("lossy", estimate=0.1, interval=(0.0, 0.2))
    kinds = (("continuous", "cspd"), ("continuous", "coupled"), ("anysubset", "assd"))
    without = [run(*kind, accepted_drafts=0) for kind in kinds] + [run("discrete", "sjd")]
    without += [run("continuous", "cspd", accepted_drafts=None)]  # all places were drawn by the target alone
    for row in without:
        said = found(certified, row)
        assert said["value"].kind == said["verdict_kind"] == "inconclusive" and "no draft was accepted" in said["note"]
        assert said["tv_bound"] is None and not said["mismatch"]
        assert found(lossy, row)["value"] == lossy
    drafted = [run(row["kind"], row["method"], accepted_drafts=7) | {"nfe_ratio": 0.5} for row in without]
    alone = [run("discrete", "ar"), run("anysubset", "sequential"), run("continuous", "mar", accepted_drafts=None)]
    for row in [*drafted, *alone]:
        assert found(certified, row)["value"] == certified


USUAL = EqualitySpec()


def row(n, **figures):
    return {"kind": "discrete", "n": n, **figures}


def judged(row, margins=USUAL):
    """As the summary holds it."""
    return row | {"too_few": " ".join(too_few_of(row, margins))}


def test_an_interval_that_holds_every_value_of_interest_is_said_to():
    kid, sure = row(64, kid=-0.080, kid_se=0.251), row(50_000, kid=0.012, kid_se=0.001)
    assert too_few(kid, "kid", USUAL) and not too_few(sure, "kid", USUAL)
    entry = measured("kid", 1000)(judged(kid))
    assert entry.style == "few" and "-80" in entry.text
    table = show([judged(kid), judged(sure)], [Column("KID", measured("kid", 1000))])
    assert table.caption == FEW and not show([judged(sure)], [Column("KID", measured("kid", 1000))]).caption
    assert measured("kid", 1000)(judged(sure)).style == ""
    text = judged(row(8, perplexity=20.0, perplexity_se=2.0) | {"kind": "anysubset"})
    assert measured("perplexity")(text).style == "few"


@pytest.mark.parametrize("name", [*list(EFFECTS)[:1], *list(MARGINS)[:1], *list(SHARES)[:1]])
def test_the_rule_is_the_effect_of_interest_against_half_of_the_interval(name):
    effect = effect_of_interest(name, 2.0, USUAL)
    for share, wanted in ((0.9, False), (1.1, True)):
        given = {name: 2.0, f"{name}_se": share * effect / 1.96}
        assert too_few(row(64, **given), name, USUAL) == wanted
        given = {name: 2.0, f"{name}_low": 2 - share * effect, f"{name}_high": 2 + share * effect}
        assert too_few(row(64, **given), name, USUAL) == wanted
