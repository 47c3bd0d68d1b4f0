"""`parity compare`: rows are paired by their settings; what changed is named, and nothing else is."""

import json
import re
import xml.etree.ElementTree as ET

import numpy as np
import pandas as pd
import pytest

import parity.compare.__main__ as command
from parity.base.errors import ParityError
from parity.compare.results import Comparison, Pair, compare_results, describe_cell_change

N = 40


def make_cell(method="sjd", nfe=90.0, noise=4.0, clip=0.7, seed=2, **changes):
    """Make a summary row and the records of N prompts. `noise` is the deviation of nfe; cells share the noise of each
    prompt, which cancels in pairs. `changes` replace columns of the row."""
    rng = np.random.default_rng(0)
    drawn = {"nfe": nfe + noise * rng.standard_normal(N), "clip": clip + 0.03 * rng.standard_normal(N)}
    row = {
        "kind": "discrete", "model": "scenes", "method": method, "options": "{}", "role": "method", "seed": seed,
        "sampling": "{}", "key": f"{method}{seed}", "label": method, "n": N, "verdict_kind": "certified",
        "pill": "certified, TV ≤ 0.015", "clip_score": drawn["clip"].mean(), "clip_score_se": 0.005, "fid": 20.0,
        "fid_se": 1.0, "seconds_per_image": 0.5, "seconds_per_image_se": 0.01, "machine": "CPU, 2 cores", **changes,
    }  # fmt: skip
    ids = [f"{row.pop('prompts', '')}{i}" for i in range(N)]
    return row, pd.DataFrame({"id": ids, "key": row["key"], **drawn})


def write_results(folder, *cells):
    """Write cells to a new folder as a run's summary.csv and records.parquet; return the folder."""
    folder.mkdir()
    pd.DataFrame([row for row, _ in cells]).to_csv(folder / "summary.csv", index=False)
    pd.concat([frame for _, frame in cells]).to_parquet(folder / "records.parquet")
    return folder


@pytest.fixture
def compare(tmp_path):
    """A function that writes two lists of cells as results folders and compares them."""

    def run(a, b):
        return compare_results(write_results(tmp_path / "a", *a), write_results(tmp_path / "b", *b))

    return run


def list_changed(comparison):
    """List the figures that a comparison calls changed, by the label of the row."""
    return {pair.label: pair.find_changed(comparison.z) for pair in comparison.pairs}


def test_a_folder_compared_with_itself_has_no_change(tmp_path):
    folder = write_results(tmp_path / "a", make_cell(), make_cell("ar", nfe=256.0, noise=0.0))
    assert list_changed(compare_results(folder, folder)) == {"sjd": [], "ar": []}


def test_what_changed_is_named_and_nothing_else(compare):
    lossy = {"verdict_kind": "lossy", "pill": "lossy, TV = 0.20"}
    old_cells = [make_cell(), make_cell("gsd"), make_cell("mtj"), make_cell("vvs")]
    new_cells = [make_cell(), make_cell("gsd", **lossy), make_cell("mtj", nfe=80.0), make_cell("vvs", clip=0.6)]
    changed = list_changed(compare(old_cells, new_cells))
    assert changed == {"sjd": [], "gsd": ["verdict"], "mtj": ["passes"], "vvs": ["clip_score"]}


def test_passes_are_compared_by_prompt_where_prompts_agree(compare):
    gap = compare([make_cell()], [make_cell(nfe=89.0)]).pairs[0].passes_difference
    assert gap.value == pytest.approx(-1)
    assert gap.error == pytest.approx(0, abs=1e-9)


def test_other_prompts_are_compared_with_the_errors_of_both(compare):
    pair = compare([make_cell()], [make_cell(nfe=89.0, prompts="other ")]).pairs[0]
    assert pair.passes_difference.error == pytest.approx(np.hypot(*(e.error for e in pair.passes)))


def test_fresh_noise_is_rarely_called_a_change():
    """At 5% a comparison, 100 comparisons of three rows each: more than 13 have probability under 0.1%."""
    rng = np.random.default_rng(1)

    def draw(prompts):
        row, frame = make_cell()
        return row, frame.assign(id=prompts + frame["id"], nfe=rng.normal(90, 4, N), clip=rng.normal(0.7, 0.03, N))

    false = 0
    for _ in range(100):
        drawn = [(draw("a"), draw("b")) for _ in range(3)]
        comparison = Comparison(None, None, [Pair(a, b, of_a, of_b) for (a, of_a), (b, of_b) in drawn])
        false += any(pair.find_changed(comparison.z) for pair in comparison.pairs)
    assert false <= 13


def test_rows_are_paired_by_settings_and_not_by_seed(compare):
    pair = compare([make_cell(seed=2)], [make_cell(seed=5)]).pairs[0]
    assert describe_cell_change(pair) == "seed 2 → 5"


def test_rows_that_one_folder_lacks_are_listed(compare):
    lacking = dict(compare([make_cell(), make_cell("gsd")], [make_cell(), make_cell("mtj")]).list_unpaired())
    assert {folder.name: labels for folder, labels in lacking.items()} == {"a": ["gsd"], "b": ["mtj"]}


def drop_columns(cell, *names):
    """Return a cell without these columns of its row and records, as an older version wrote it."""
    row, frame = cell
    return {k: v for k, v in row.items() if k not in names}, frame.drop(columns=[n for n in names if n in frame])


@pytest.mark.parametrize("names", [["nfe"], ["clip", "clip_score"], ["label", "pill", "fid_se", "fid"]])
def test_what_an_older_folder_lacks_is_named_and_the_rest_compared(compare, names):
    lossy = {"verdict_kind": "lossy"}
    comparison = compare([drop_columns(make_cell(), *names)], [make_cell(**lossy)])
    assert list_changed(comparison) == {"sjd": ["verdict"]}
    figure = {"nfe": "passes", "clip": "clip_score", "label": "fid"}[names[0]]
    lines = command.summarize(comparison)
    assert f"Not compared: {figure} of sjd, which A lacks." in lines
    assert len([line for line in lines if "which A lacks" in line]) == 1
    assert list(command.make_tables(comparison))


def test_a_cell_without_records_is_compared_by_its_row(compare):
    row, frame = make_cell()
    comparison = compare([(row, frame[:0]), make_cell("mtj")], [make_cell(), make_cell("mtj")])
    assert list_changed(comparison) == {"sjd": [], "mtj": []}
    assert "Not compared: passes of sjd, which A lacks." in command.summarize(comparison)
    assert list(command.make_tables(comparison))


@pytest.mark.parametrize("older", [{}, {"columns_version": 1}, {"columns_version": 2}])
def test_columns_of_another_version_are_no_silent_equals(compare, older):
    comparison = compare([make_cell(**older)], [make_cell(columns_version=2)])
    warned = any("one name may mean two figures" in line for line in command.summarize(comparison))
    assert warned == (older != {"columns_version": 2})


@pytest.mark.parametrize("machine", ["GPU, CPU, 16 cores", None, "CPU, 2 cores"])
def test_seconds_of_another_or_unnamed_machine_are_not_compared(compare, machine):
    comparison = compare([make_cell()], [make_cell(machine=machine, seconds_per_image=0.4)])
    is_same = machine == "CPU, 2 cores"
    assert [x.value for x in comparison.pairs[0].seconds or ()] == ([0.5, 0.4] if is_same else [])
    assert any("Seconds are not compared" in line for line in command.summarize(comparison)) != is_same


def test_texts_of_another_number_of_rows_are_paired(compare):
    task = {"kind": "anysubset", "task": "infilling"}
    settings = [json.dumps({"rows": rows, "length": 64}) for rows in (8, 16)]
    assert len(compare([make_cell(**task, settings=settings[0])], [make_cell(**task, settings=settings[1])]).pairs) == 1


def test_bad_input_is_one_line_that_names_the_folder(tmp_path):
    good = write_results(tmp_path / "good", make_cell())
    vectors = write_results(tmp_path / "vectors", make_cell("mar", kind="continuous"))
    no_shared = write_results(tmp_path / "other", make_cell("mtj"))
    (tmp_path / "table").mkdir()
    (tmp_path / "table/summary.csv").write_text("x,y\n1,2\n")
    (tmp_path / "table/records.parquet").write_bytes((good / "records.parquet").read_bytes())
    for folder, words in ((tmp_path / "none", "No such file"), (tmp_path / "table", "no column"),
                          (vectors, "a kind of model in common"), (no_shared, "no row in common")):  # fmt: skip
        with pytest.raises(ParityError, match=rf"{folder.name}.*{words}"):
            compare_results(good, folder)


def test_the_command_prints_the_change_and_writes_a_page(tmp_path, run_main, capsys):
    hostile = "<script>x</script>"
    a = write_results(tmp_path / "a", make_cell(label=hostile))
    b = write_results(tmp_path / "b", make_cell(label=hostile, nfe=80.0, pill="lossy, TV = 0.20", verdict_kind="lossy"))
    run_main(command.main, a, b, "--out", tmp_path / "c.html")
    assert re.search(r"verdict, passes .*certified, TV ≤ 0.015 → lossy, TV = 0.20 .*-10", capsys.readouterr().out)
    page = (tmp_path / "c.html").read_text()
    assert "<script" not in page
    cells = [cell.text or cell[0].text for cell in ET.fromstring(re.search(r"<tbody>.*?</tbody>", page, re.S)[0])[0]]
    assert cells[:3] == [hostile, "verdict, passes", "certified, TV ≤ 0.015 → lossy, TV = 0.20"]


def test_a_page_that_is_no_html_file_is_refused_first(tmp_path, run_main):
    with pytest.raises(ParityError, match=r"--out .*ends in \.html"):
        run_main(command.main, tmp_path, tmp_path, "--out", tmp_path / "c.txt")
