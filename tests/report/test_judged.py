"""What tables say of pictures that published networks judge, and of what no network judged."""

import json

from parity_certify.verdict import Verdict

from parity.experiment import checks
from parity.experiment.cells import cells
from parity.experiment.options import options as complete
from parity.metrics.layouts import FIGURES
from parity.report import common, continuous, discrete, front, verdicts
from parity.report.blocks import Table
from parity.report.collect import Files
from parity.report.format import ABSENT
from parity.report.tables import measured
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
    others = list(common.other_figures("discrete", [ROW | {"geneval": 0.5}], discrete.IN_TABLES))
    [table] = [block for details in others for block in details.body]
    lines = dict(zip(heads(table), table.rows[0], strict=True))
    assert lines["HPSv2 (higher is better)"].detail == "networks.hps"
    assert lines[f"{FIGURES['geneval'][0]} (higher is better)"].text == "0.5000"


def test_tables_name_the_protocol_with_its_digest():
    assert common.measured_by([ROW, ROW]) == "Measured by protocol sjd 04de33dc."
    assert common.measured_by([{"method": "ar"}]) == ""


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
    assert front.quality(gathered, "continuous")[2] == "FID"


def test_acceptance_has_a_column_a_slot_and_methods_that_draft_less_have_none():
    plain = ROW | {"label": "ar", "method": "ar", "acceptance_by_slot": json.dumps([])}
    [details] = discrete.serving([ROW, plain])
    [table] = details.body
    at = heads(table).index("Slot 1")
    assert [[entry.text for entry in line[at : at + 2]] for line in table.rows] == [["90%", "50%"], ["n/a", "n/a"]]
    assert "Slot 3" not in heads(table) and not list(discrete.serving([{"method": "ar"}]))


def test_no_more_slots_than_there_is_room_for():
    [details] = discrete.serving([ROW | {"acceptance_by_slot": json.dumps([0.5] * 30)}])
    shown = [head for head in heads(details.body[0]) if head.startswith("Slot ")]
    assert shown == [f"Slot {j}" for j in range(1, discrete.SLOTS + 1)]


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


def test_columns_of_published_figures_that_nothing_stands_in_are_left_out(gathered):
    every = gathered.published
    assert every["change"].notna().any() and "Published, from plain" in heads(common.published_table(every, {}, ""))
    bare = every.assign(change=None, our_change=None, difference=None)
    shown = heads(common.published_table(bare, {}, ""))
    assert "Published" in shown and not {"Published, from plain", "Ours, from plain", "Difference"} & {*shown}


def test_a_run_that_accepted_no_draft_is_inconclusive():
    """Whatever no layer rejects; what one does stays lossy, and plain decoding drafts nothing."""
    options = json.dumps(complete("continuous", "cspd", {"gamma": 4}))
    run = {"kind": "continuous", "method": "cspd", "options": options, "drafted": 40, "acceptance": 0.0, "nfe_ratio": 1}
    certified = {
        "value": Verdict("certified"),
        "verdict": "certified lossless",
        "pill": "certified lossless on 5 tokens",
    }
    lossy = {"value": Verdict("lossy", estimate=0.1), "verdict": "lossy: TV = 0.1"}
    found = verdicts.of_run(run, certified)
    assert found["verdict"] == "inconclusive" and "none of 40 drafts was accepted in the run" in found["note"]
    assert verdicts.of_run(run | {"acceptance": 0.1}, certified) == certified
    assert verdicts.of_run(run, certified | lossy)["verdict"].startswith("lossy")
    image = {"kind": "discrete", "method": "sjd", "options": json.dumps(complete("discrete", "sjd", {}))}
    assert verdicts.of_run(image | {"nfe_ratio": 1.0}, certified)["verdict"] == "inconclusive"
    assert verdicts.of_run(image | {"nfe_ratio": 0.5}, certified) == certified
    bare = {"kind": "discrete", "method": "ar", "options": "{}", "nfe_ratio": 1.0}
    assert verdicts.of_run(bare, certified) == certified


def test_tests_that_accepted_no_draft_certify_nothing(tmp_path):
    settings = made.folder(tmp_path)
    files = Files(settings, ["continuous"], tmp_path)
    tested = [t for t in files.tested("continuous") if t.cell.spec["method"] == "cspd"]
    for t in tested:
        for r in t.said["rows"]:
            if r["test"] == "TV certificate":
                r |= {"drafted": 9, "accepted": 0}
    _, judged, _ = verdicts.judge(settings, tested, {t.cell.key: "it" for t in tested})
    mixtures = [v for v in judged if "mixtures" in v["key"]]
    assert mixtures and all(v["verdict"] == "inconclusive" and "drafts was accepted" in v["note"] for v in mixtures)
