"""Export of images to GenEval, DPG-Bench and T2I-CompBench, and import of their results."""

import json
import re

import numpy as np
import pytest
from PIL import Image

from parity.base.errors import ParityError
from parity.base.files import read_json, write_arrays
from parity.decode.shard_io import NEEDED, write_shard
from parity.experiment import prompt_files as prompts
from parity.experiment.schema import PromptSpec
from parity.metrics import export
from parity.metrics.__main__ import main

METADATA = [{"tag": "single_object", "include": [{"class": "bench", "count": 1}], "prompt": "a photo of a bench"}]
METADATA += [{"tag": "counting", "include": [{"class": "cow", "count": 2}], "prompt": "a photo of two cows"}]


def write_cell(folder, captions, repeats):
    """Write a cell of `repeats` images for each caption, in two shards, each of one grey: 10 times the prompt's
    number, plus the repeat's. Return its folder."""
    ids = [f"{i:05d}/{r:03d}" for i in range(len(captions)) for r in range(repeats)]
    greys = np.array([10 * i + r for i in range(len(captions)) for r in range(repeats)], dtype=np.uint8)
    pixels = np.broadcast_to(greys[:, None, None, None], (len(ids), 4, 6, 3))
    for k, indices in enumerate(np.array_split(np.arange(len(ids)), 2)):
        shard_ids = np.array(ids)[indices]
        n = len(indices)
        columns = {name: np.zeros((n, 2) if name in ("tokens", "step") else n) for name in NEEDED}
        shard_captions = np.array([captions[int(i[:5])] for i in shard_ids])
        write_shard(folder / f"shards/{k}-of-2.npz", columns | {"ids": shard_ids, "captions": shard_captions}, {})
        write_arrays(folder / f"images/{k}-of-2.npz", ids=shard_ids, pixels=pixels[indices])
    return folder


def read_greys(path):
    return np.unique(np.asarray(Image.open(path))).tolist()


def test_images_are_exported_for_geneval(tmp_path, run_main):
    """As evaluate_images.py reads them: folders and samples named by digits, one object in metadata.jsonl. A cell of
    the second prompt alone keeps its number."""
    (tmp_path / "m.jsonl").write_text("\n".join(map(json.dumps, METADATA)))
    cell = write_cell(tmp_path / "cell", [METADATA[1]["prompt"], METADATA[0]["prompt"]], 3)
    flags = ("--layout", "geneval", "--cell", cell, "--prompts", tmp_path / "m.jsonl", "--out", tmp_path / "out")
    run_main(main, "export", *flags)
    greys = {}
    for folder in (f for f in (tmp_path / "out").iterdir() if f.is_dir() and f.name.isdigit()):
        assert json.loads((folder / "metadata.jsonl").read_text()) == METADATA[int(folder.name)]
        samples = sorted(f for f in (folder / "samples").iterdir() if re.match(r"\d+\.png", f.name))
        greys[int(folder.name)] = [read_greys(f) for f in samples]
    assert greys == {1: [[0], [1], [2]], 0: [[10], [11], [12]]}
    with pytest.raises(ParityError, match="is not empty"):
        export.export("geneval", METADATA, [], tmp_path / "out")
    with pytest.raises(ParityError, match="'a photo of a hat' of the cell is not in the prompt file"):
        export.export("geneval", METADATA, [("0/0", "a photo of a hat", np.zeros((2, 2, 3)))], tmp_path / "new")


def test_images_are_exported_for_dpg_bench(tmp_path, run_main):
    """compute_dpg_bench.py cuts each image into four squares; the first row holds the first two."""
    text = 'item_id,text,proposition_id\nvrd1,"a hat, red",1\nvrd1,"a hat, red",2\nwhoops2,a cow,1\n'
    (tmp_path / "dpg.csv").write_text(text)
    read = prompts.read_prompts(PromptSpec(file="dpg.csv", format="dpg"), tmp_path)
    assert read == ["a hat, red", "a cow"]
    flags = ("--layout", "dpg", "--format", "dpg", "--prompts", tmp_path / "dpg.csv")
    run_main(main, "export", *flags, "--cell", write_cell(tmp_path / "cell", read, 4), "--out", tmp_path / "out")
    assert sorted(f.name for f in (tmp_path / "out").iterdir()) == ["vrd1.png", "whoops2.png"]
    square = np.asarray(Image.open(tmp_path / "out/whoops2.png"))
    assert square.shape == (8, 12, 3)
    assert square[::4, ::6, 0].tolist() == [[10, 11], [12, 13]]
    with pytest.raises(ParityError, match="3 images of prompt vrd1; allowed: 1 or 4"):
        run_main(main, "export", *flags, "--cell", write_cell(tmp_path / "three", read, 3), "--out", tmp_path / "out3")


def test_images_are_exported_for_t2i_compbench(tmp_path, run_main):
    """BLIP_vqa.py sorts by the number after the last _ and asks about the text before the first."""
    (tmp_path / "color_val.txt").write_text("a green bench\na blue bowl\n")
    cell = write_cell(tmp_path / "cell", ["a green bench", "a blue bowl"], 2)
    out = tmp_path / "out"
    flags = ("--layout", "t2i_compbench", "--cell", cell, "--prompts", tmp_path / "color_val.txt", "--out", out)
    run_main(main, "export", *flags)
    files = sorted((f.name for f in (out / "samples").iterdir()), key=lambda x: int(x.split("_")[-1].split(".")[0]))
    assert [f.split("_")[0] for f in files] == ["a green bench"] * 2 + ["a blue bowl"] * 2
    assert [read_greys(out / "samples" / f) for f in files] == [[0], [1], [10], [11]]
    for prompt in ("a/b", "a_b", "a" * 300):
        with pytest.raises(ParityError, match="allowed: 240 bytes"):
            export.name_t2i_compbench(0, {"prompt": prompt}, [], 0)


DPG = (
    "x/vrd1.png, 1.0, 0.5, 0.75\nx/vrd2.png, 0.5\nModel: m\nL1 category scores:\n\tentity: 80.0\n\tattribute: 60.5\n"
    "L2 category scores:\n\tentity - whole: 70.0\nImage path: x\nSave results to: y\nDPG-Bench score: 71.25\n"
)
GENEVAL = [("counting", 1), ("counting", 0), ("single_object", 1), ("single_object", 1)]
ROWS = [json.dumps({"tag": t, "correct": bool(c), "filename": f"{i}.png"}) for i, (t, c) in enumerate(GENEVAL)]
RESULTS = {
    "geneval": ("\n".join(ROWS), {"geneval": 0.75, "geneval_counting": 0.5, "geneval_single_object": 1.0}),
    "dpg": (DPG, {"dpg": 0.7125, "dpg_entity": 0.8, "dpg_attribute": 0.605}),
    "t2i_compbench": (json.dumps([{"answer": "0.2500"}, {"answer": "0.7500"}] * 2), {"t2i_compbench": 0.5}),
}


@pytest.fixture
def cell(tmp_path):
    return write_cell(tmp_path / "cell", ["one", "two"], 2)


def test_results_are_read_back(tmp_path, run_main, cell):
    expected = {}
    for layout, (text, layout_figures) in RESULTS.items():
        (tmp_path / "r").write_text(text)
        run_main(main, "export", "--layout", layout, "--results", tmp_path / "r", "--cell", cell)
        expected |= layout_figures
    assert read_json(cell / "benchmarks.json") == pytest.approx(expected)
    (tmp_path / "r").write_text(ROWS[2])
    run_main(main, "export", "--layout", "geneval", "--results", tmp_path / "r", "--cell", cell)
    figures = read_json(cell / "benchmarks.json")
    assert (figures["geneval"], figures["geneval_why"]) == (1, "1 of 4 images")
    assert "geneval_counting" not in figures
    assert figures["dpg"] == 0.7125


@pytest.mark.parametrize(
    ("layout", "text", "problem"),
    [
        ("geneval", "\n".join(ROWS[:1] * 2), "2 results of 1 images"),
        ("geneval", "\n".join([*ROWS, ROWS[0].replace("0.png", "5.png")]), "of 5 images; allowed: .* has 4"),
        ("dpg", DPG.partition("\n")[0] + "\n" + DPG, "3 results of 2 images"),
        ("dpg", DPG[DPG.index("Model") :], "0 results of 0 images"),
        ("t2i_compbench", json.dumps([{"answer": "0.5"}] * 5), "of 5 images; allowed: .* has 4"),
    ],
)
def test_results_of_other_images_are_refused(tmp_path, cell, layout, text, problem):
    (tmp_path / "r").write_text(text)
    with pytest.raises(ParityError, match=problem):
        export.store_results(layout, tmp_path / "r", cell)
    assert not (cell / "benchmarks.json").exists()


@pytest.mark.parametrize("layout", export.LAYOUTS)
@pytest.mark.parametrize("text", ["", "[]", '[{"answer": "nan"}]', "DPG-Bench score: 900\n"])
def test_results_of_something_else_are_one_line(tmp_path, layout, text):
    (tmp_path / "r").write_text(text)
    with pytest.raises(ParityError, match=rf"--results .*: no results of {layout}"):
        export.read_results(layout, tmp_path / "r")
