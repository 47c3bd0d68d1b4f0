"""What tables say of pictures that published networks judge, and of what no network judged."""

import json

import pandas as pd
from parity_certify.verdict import Verdict, columns_of

from parity.experiment import checks
from parity.experiment.cells import cells
from parity.experiment.options import options as complete
from parity.metrics.export import FIGURES
from parity.report import continuous, discrete, shared_sections, summary_page, verdicts
from parity.report.blocks import ABSENT, Table, pill
from parity.report.collect import Files, gather
from parity.report.tables import mark, measured
from tests.report import made

ROW = {
    "kind": "discrete", "label": "sjd", "method": "sjd", "key": "0" * 8, "role": "method", "n": 100, "batch": 8,
    "clip_score": 0.3, "clip_score_se": 0.001, "fid_why": "no network: networks.inception",
    "hps_why": "no network: networks.hps", "protocol": "sjd 04de33dc", "acceptance_by_slot": "[0.9,0.5]",
    "acceptance_length": 1.85,
    "tokens_per_second": 9.0,
}  # fmt: skip


def heads(table):
    return [head for head, _ in table.columns]


def test_a_column_says_which_network_is_missing():
    assert measured("fid")(ROW)[:3] == ("no network", "networks.inception", "none")
    assert measured("fid")({**ROW, "fid": 12.0, "fid_se": 0.1}).text == "12.00"
    assert measured("recall")(ROW) == ABSENT  # nothing was said of it
    others = list(shared_sections.other_figures("discrete", [ROW | {"geneval": 0.5}], discrete.IN_TABLES))
    [table] = [block for details in others for block in details.body]
    lines = dict(zip(heads(table), table.rows[0], strict=True))
    assert lines["HPSv2 (higher is better)"].detail == "networks.hps"
    assert lines[f"{FIGURES['geneval'][0]} (higher is better)"].text == "0.5000"


def test_vectors_of_published_models_are_judged_by_inception_and_others_by_our_classifier(gathered):
    """Its table names the protocol; what no network judged says so, and the share of right classes is not asked."""

    def table():
        return next(block for block in continuous.groups(gathered) if isinstance(block, Table))

    before = table()
    assert "Right" in heads(before) and "protocol" not in before.caption
    own = gathered.summary["kind"] == "continuous"
    gathered.summary = gathered.summary.drop(columns=["right", "is", "fid"])
    gathered.summary.loc[own, "protocol"] = "torchfid50k fd913341"
    for name in ("is", "fid"):
        gathered.summary.loc[own, f"{name}_why"] = "no network: networks.inception"
    after = table()
    assert "Right" not in heads(after) and ". Measured by protocol torchfid50k fd913341." in after.caption
    line = dict(zip(heads(after), after.rows[0], strict=True))
    assert [line[name][:2] for name in ("IS", "FID")] == [("no network", "networks.inception")] * 2
    assert summary_page.quality(gathered, "continuous")[2] == "FID"


def test_acceptance_has_a_column_a_slot_and_methods_that_draft_less_have_none():
    plain = ROW | {"label": "ar", "method": "ar", "acceptance_by_slot": json.dumps([])}
    [details] = discrete.serving([ROW, plain])
    [table] = details.body
    at = heads(table).index("Slot 1")
    assert [[entry.text for entry in line[at : at + 2]] for line in table.rows] == [["90%", "50%"], ["n/a", "n/a"]]
    assert "Slot 3" not in heads(table) and not list(discrete.serving([{"method": "ar"}]))


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
    without = [
        run("continuous", "cspd", accepted_drafts=0),
        run("continuous", "cspd", accepted_drafts=None),  # all places were drawn by the target alone
        run("continuous", "coupled", accepted_drafts=0),
        run("anysubset", "assd", accepted_drafts=0),
        run("discrete", "sjd"),
    ]
    for row in without:
        said = found(certified, row)
        assert said["value"].kind == said["verdict_kind"] == "inconclusive" and "no draft was accepted" in said["note"]
        assert said["tv_bound"] is None and not said["mismatch"]
        assert found(lossy, row)["value"] == lossy
    drafted = [run(row["kind"], row["method"], accepted_drafts=7) | {"nfe_ratio": 0.5} for row in without]
    alone = [run("discrete", "ar"), run("anysubset", "sequential"), run("continuous", "mar", accepted_drafts=None)]
    for row in [*drafted, *alone]:
        assert found(certified, row)["value"] == certified


def test_tests_that_accepted_no_draft_certify_nothing(tmp_path):
    """In the exact layer as in the long one, of any kind of decoder."""
    settings = made.folder(tmp_path)
    for kind, method in (("continuous", "cspd"), ("discrete", "sjd"), ("anysubset", "assd")):
        files = Files(settings, [kind], tmp_path)
        for layer in ("exact", "long"):
            tested = [t for t in files.find_tests(kind) if t.cell.spec["method"] == method]
            for r in (r for t in tested for r in t.said["rows"] if r["layer"] == layer):
                r["accepted_drafts"] = 0
            keys = {t.cell.key for t in tested}
            _, judged, _ = verdicts.judge(settings, tested, dict.fromkeys(keys, "it"), dict.fromkeys(keys, 64))
            of_layer = [v for v in judged if layer in v["p_decoders"]]
            assert of_layer and all(v["value"].kind == "inconclusive" and layer in v["note"] for v in of_layer)
            assert all(v["value"].kind != "inconclusive" for v in judged if v not in of_layer)


def test_pills_colours_and_figures_come_from_the_verdict_whatever_its_words(tmp_path, monkeypatch):
    """The page of verdicts whose words say the opposite: colours, marks and points of the figure stay."""

    def look():
        g = gather(settings, [], root=tmp_path)
        rows = g.summary[g.summary["role"] == "method"].to_dict("records")
        styles = [(pill(r).style, mark(r), r["mismatch"], r["own_options"]) for r in rows]
        return set(g.summary["verdict"]), styles, summary_page.points(g).to_dict("records")

    settings = made.folder(tmp_path, p={"gsd": 1e-9})
    words, styles, points = look()
    assert {"chip good", "chip bad"} <= {style for style, *_ in styles}
    assert {p["bound"] for p in points} == {True, False}
    turned = {"certified": "lossy: TV = 0.9", "lossy": "certified lossless", "consistent": "inconclusive"}
    monkeypatch.setattr(Verdict, "words", property(lambda v: turned.get(v.kind, "consistent")))
    odd_words, *odd = look()
    assert odd_words != words and "lossy: TV = 0.9" in odd_words
    assert pd.DataFrame(odd[1]).equals(pd.DataFrame(points)) and odd[0] == styles
