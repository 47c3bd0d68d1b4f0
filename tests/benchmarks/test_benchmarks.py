"""The GPU commands run on a CPU; figures in the docs are what the command makes of the stored tables."""

import json
import re
import shutil

import pandas as pd
import pytest

from tests.benchmarks.conftest import ROOT, load_script


@pytest.fixture
def gpu(monkeypatch):
    """The command, which finds the others of its folder as when it is run there."""
    monkeypatch.syspath_prepend("benchmarks")
    return load_script("gpu.py")


@pytest.mark.long
def test_parts_are_measured_one_by_one_and_a_failure_stops_no_other(gpu, tmp_path, monkeypatch, run_main):
    file, page = tmp_path / "captured.json", tmp_path / "gpu.md"

    def fail(bench):
        yield {"rows": 1}
        raise ValueError("no such kernel")

    monkeypatch.setitem(gpu.PARTS, "limit", gpu.Part(fail, 30, "The limit"))
    run_main(gpu.main, "--cpu", "--out", file, "--parts", "limit", "steps")
    run_main(gpu.main, "--cpu", "--out", file, "--parts", "networks", "request")
    parts = json.loads(file.read_text())["parts"]
    assert (parts["limit"]["rows"], "no such kernel" in parts["limit"]["error"]) == ([{"rows": 1}], True)
    assert {row["method"] for row in parts["steps"]["rows"]} == {"ar", "sjd_coupled", "mtj"}
    assert all(row["steps equal"] for row in parts["steps"]["rows"])
    assert "error" not in parts["networks"]
    plain, *others = parts["request"]["rows"]  # an image of 6 x 6 tokens, its preview and an end token
    assert (plain["method"], plain["passes"], plain["tokens"]) == ("ar", 46, 46)
    assert [(row["method"], row["tokens that differ"]) for row in others] == [("sjd_coupled", 0), ("mtj", 0)]
    assert all(row["passes"] < 46 for row in others)
    run_main(gpu.main, "--out", file, "--page", page)
    text = page.read_text()
    assert text.count("**Not measured**") == 1  # of the request, whose table the page shows
    assert "Parts that are not shown here stand in docs/figures/gpu-captured.json" in text


def test_seconds_are_predicted_against_captured_plain_decoding(gpu, monkeypatch):
    monkeypatch.setattr(gpu, "count_passes", {"ar": (1.0, "a"), "mtj": (0.25, "a")}.get)
    rows = [{"network": "n", "method": m, "length": 100, "captured ms": ms} for m, ms in (("ar", 10.0), ("mtj", 20.0))]
    plain, mtj = gpu.predict_seconds(rows, [])
    assert (plain["seconds an image"], plain["times captured plain"]) == (1, 1)
    assert (mtj["seconds an image"], mtj["times captured plain"]) == (0.5, 2)
    compiled = [{**rows[1], "captured ms": 10.0}]
    assert gpu.predict_seconds(rows, compiled)[1]["times captured plain"] == 4


def test_the_page_of_gains_is_what_the_command_writes(tmp_path, monkeypatch, run_main):
    """A digit of a stored table that is changed by hand is found."""
    gains = load_script("gains.py")
    shutil.copytree(ROOT / "docs/figures", tmp_path / "figures")
    monkeypatch.setattr(gains, "FIGURES", tmp_path / "figures")
    page, stored = tmp_path / "gains.md", (ROOT / "docs/results/gains.md").read_text()
    page.write_text(gains.BLOCK.sub(r"\1\4", stored))
    table = tmp_path / "gains.csv"
    run_main(gains.main, "--page", page, "--table", table)
    assert page.read_text() == stored, "run python benchmarks/gains.py"
    assert table.read_text() == (ROOT / "docs/figures/gains.csv").read_text()
    counted = tmp_path / "figures/gain-expected.csv"
    changed = counted.read_text().replace("3.089\n", "4.089\n")
    assert changed != counted.read_text()
    counted.write_text(changed)
    assert gains.format_predicted([gains.predict(r, m) for r in gains.REPORTS for m in gains.METHODS]) not in stored


script = load_script("docs_figures.py")


def test_each_figure_has_machine_commit_and_date():
    """In the file of its source; a file of parts, which were measured on other days, has them for each part."""
    for file in sorted((ROOT / "docs/figures").glob("*.json")):
        source = json.loads(file.read_text())
        for how in [part["how"] for part in source.get("parts", {}).values()] or [source.get("how", source)]:
            assert (how.get("machine") or how.get("cpu")) and how.get("commit") and how.get("date"), file.name


def test_each_block_is_what_the_command_writes(tmp_path, monkeypatch):
    """A digit of a stored table that is changed by hand is found."""
    shutil.copytree(ROOT / "docs/figures", tmp_path / "docs/figures")
    monkeypatch.setattr(script, "ROOT", tmp_path)  # figures are written below ROOT
    pages = {page: (ROOT / page).read_text() for page in script.PAGES}
    assert {m[2] for text in pages.values() for m in script.BLOCK.finditer(text)} == set(script.BLOCKS)
    for page, text in pages.items():
        assert script.fill_blocks(text, tmp_path) == text, f"{page}: run python benchmarks/docs_figures.py"
    table = tmp_path / "docs/figures/full.csv"
    table.write_text(table.read_text().replace(",256,0,1,", ",257,0,1,", 1))
    assert script.fill_blocks(pages["docs/results/decoders.md"], tmp_path) != pages["docs/results/decoders.md"]
    table.write_text(table.read_text().replace("mtj_draft", "mtj_gone"))
    with pytest.raises(SystemExit, match=r"nfe of mtj_draft.*: 0 such numbers; allowed: one"):
        script.fill_blocks(pages["README.md"], tmp_path)


NUMBER = r"\d[\d.,]*×?"  # in README each number of a speed or of passes is in a block, cites its table, or is a setting


@pytest.mark.parametrize("wrong", ["", "It takes 49 passes. ", "It is 2.5 times as fast. ", "A pass takes 6.5 ms. "])
def test_readme_has_no_speed_or_count_of_its_own(wrong):
    text = wrong + script.CITED.sub("", script.BLOCK.sub("", (ROOT / "README.md").read_text()))
    own = re.findall(rf"{NUMBER}\s+(?:passes|times|ms|seconds)\b", text.replace("in place of 256", ""))
    assert bool(own) == bool(wrong), own


def test_the_figures_of_a_run_are_collected(tmp_path):
    """The places where one token's distribution was rejected, and rejected again; the change of CLIP-score; waiting
    rows."""
    tests = "kind,key,layer,model,test,repeat,decides,verdict,effect,low,high\n"
    for repeat in (0, 1):
        for rank, verdict in (("p0", "rejected"), ("p1", "not rejected")):
            tests += f"continuous,b,teacher-forced,{rank},energy,{repeat},True,{verdict},1,,\n"
    tests += "discrete,a,paired,scenes,CLIP: paired t,0,True,not rejected,0.01,-0.02,0.04\n"
    (tmp_path / "equality.csv").write_text(tests)
    (tmp_path / "summary.csv").write_text("kind,key,label,batch\ndiscrete,a,one,2\ncontinuous,b,two,2\n")
    records = pd.DataFrame({"kind": "discrete", "key": "a", "nfe": [2, 6, 5, 3]})
    records.to_parquet(tmp_path / "records.parquet")
    image, vectors = script.collect_run(tmp_path).itertuples()
    assert (image.clip, image.clip_low, image.clip_high) == (0.01, -0.02, 0.04)
    assert image.places != image.places
    assert image.waits == pytest.approx(1 - 9 / 11)
    assert image.waits_long == pytest.approx(1 - 8 / 11)  # 2 + 5 + ... in 2 slots
    assert (vectors.places, vectors.rejected, vectors.runs) == (2, 1, 2)
