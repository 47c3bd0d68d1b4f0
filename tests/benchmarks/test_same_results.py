"""Two folders of results, of either layout: the same cells are found the same, and one bit that differs is found."""

import json
import sys

import numpy as np
import pytest

SCRIPT = "same_results.py"
DISCRETE = {"model": "scenes", "revision": "r", "method": "sjd", "options": {"window": 4}, "seed": 2, "prompts": "p"}
TEXT = {"method": "assd", "options": {"k": 5}, "seed": 2, "task": "t", "cache": True, "batch": 4}
IMAGES = {"model": "mar", "method": "cspd", "options": {"gamma": 4}, "seed": 2, "sampling": {"steps": 6}, "images": 3}
PLACE = {"model": "scenes", "method": "sjd", "seed": 11, "repeat": 0, "n": 20}
ROW = {"layer": "paired", "test": "log p", "p_value": 0.25, **PLACE}


def put(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".npz":
        np.savez(path, **value)
    else:
        path.write_text(value if isinstance(value, str) else json.dumps(value))


def shard(n=3, wide=5, ids=None, **more):
    rng = np.random.default_rng(n)
    made = {"tokens": rng.integers(0, 9, (n, wide)), "nfe": rng.integers(1, 9, n), "seconds": rng.random(n)}
    kept = np.pad(np.ones((n, wide), dtype=np.int16), ((0, 0), (0, 2)))  # two passes of a slower row read beside it
    return {"ids": np.array(ids or [f"{i}/0" for i in range(n)]), "kept": kept, **made, **more}


def said(rows):
    return {"rows": rows, "seconds": 1.5}


def before(folder):
    """A folder of the layout before there was one of each kind."""
    cell = folder / "cells/scenes/sjd-aaaaaaaa"
    put(cell / "spec.json", DISCRETE)
    put(cell / "shards/0-of-1.npz", shard())
    put(cell / "metrics.json", {"fid": 3.5, "seconds_per_image": 2.0})
    put(folder / "text/cells/assd-bbbbbbbb.npz", text_shard("loop", TEXT | {"model": "r", "kind": "infilling"}))
    spec = IMAGES | {"weights": "r"}
    put(folder / "continuous/cells/mar-cspd-cccccccc.npz", image_shard(np.arange(3), spec))
    put(folder / "equality/paired/scenes/sjd-aaaaaaaa-dddddddd.json", said([ROW | {"key": "aaaaaaaa"}]))
    put(folder / "equality/exact/sjd-11111111.json", said([ROW | {"layer": "exact"}]))
    put(folder / "equality/mutants-10.json", {**said([ROW | {"layer": "mutants"}]), "found": 4})
    put(folder / "all/equality.csv", "layer,method,key,verdict\npaired,sjd,aaaaaaaa,consistent\n")
    put(folder / "all/summary.csv", "key,verdict,fid,ms_per_forward\naaaaaaaa,certified lossless,3.5,1.0\n")
    return folder


def after(folder):
    """The same results in the layout with a folder a kind: other keys, other names of columns and tables."""
    cells = (
        ("discrete", "scenes/sjd-eeeeeeee", DISCRETE, shard()),
        ("anysubset", "xlnet/assd-ffffffff", TEXT | {"task_kind": "infilling", "model": "xlnet", "revision": "r"}, 0),
        ("continuous", "mar/cspd-99999999", IMAGES | {"revision": "r"}, 0),
    )
    for kind, name, spec, columns in cells:
        put(folder / "cells" / kind / name / "spec.json", spec)
        if kind == "anysubset":
            columns = text_shard("step", {})
        if kind == "continuous":
            columns = image_shard(np.array(["0", "1", "2"]), {}) | {"plain_seconds": np.zeros(3)}
        put(folder / "cells" / kind / name / "shards/0-of-1.npz", columns)
    put(folder / "cells/discrete/scenes/sjd-eeeeeeee/metrics.json", {"fid": 3.5, "seconds_per_image": 9.0, "new": 1})
    put(folder / "equality/paired/discrete/scenes/sjd-eeeeeeee.json", said([ROW | {"key": "eeeeeeee", "note": ""}]))
    put(folder / "equality/exact/discrete/sjd-22222222.json", said([ROW | {"layer": "exact"}]))
    put(folder / "equality/faults-discrete-10.json", {**said([ROW | {"layer": "mutants"}]), "found": 4})
    put(folder / "all/equality.csv", "kind,layer,method,key,verdict\ndiscrete,paired,sjd,eeeeeeee,consistent\n")
    put(folder / "all/summary.csv", "kind,key,verdict,fid\ndiscrete,eeeeeeee,certified lossless,3.5\n")
    return folder


def text_shard(step, spec):
    made = {step: np.ones((3, 5), dtype=np.int16), "provenance": np.array(json.dumps({"spec": spec}))}
    return {k: v for k, v in shard().items() if k != "kept"} | made


def image_shard(ids, spec):
    tokens = np.random.default_rng(1).standard_normal((3, 4, 2)).astype(np.float32)
    return {"ids": ids, "tokens": tokens, "provenance": np.array(json.dumps({"spec": spec}))}


def differences(script, old, new):
    one, other = script.Reader(old).found, script.Reader(new).found
    finders = (script.missing, script.array_differences, script.figure_differences, script.equality_differences)
    return [line for find in finders for line in find(one, other)]


@pytest.mark.parametrize("makers", [(before, after), (before, before), (after, after)])
def test_the_same_results_are_the_same_in_any_layout(script, tmp_path, makers):
    old, new = (make(tmp_path / str(i)) for i, make in enumerate(makers))
    assert differences(script, old, new) == []
    assert len({cell for cell, column in script.Reader(new).found.arrays if column == "tokens"}) == 3


def rewritten(path, change):
    if path.suffix == ".npz":
        with np.load(path) as data:
            value = {k: data[k] for k in data.files}
        change(value)
        np.savez(path, **value)
    else:
        value = json.loads(path.read_text())
        change(value)
        path.write_text(json.dumps(value))


CELLS = "cells/discrete/scenes/sjd-eeeeeeee"


def one_token(columns):
    columns["tokens"][1, 2] += 1


def last_bit(columns):
    columns["tokens"][0, 0, 0] = np.nextafter(columns["tokens"][0, 0, 0], np.float32(9))


def last_bit_of_p(value):
    value["rows"][0]["p_value"] = np.nextafter(0.25, 1)


@pytest.mark.parametrize(
    "file, change, found",
    [
        (f"{CELLS}/shards/0-of-1.npz", one_token, "tokens: 1 of 15 differ, first at (1, 2)"),
        ("cells/continuous/mar/cspd-99999999/shards/0-of-1.npz", last_bit, "tokens: 1 of 24 differ"),
        ("cells/anysubset/xlnet/assd-ffffffff/shards/0-of-1.npz", lambda c: c.pop("step"), "step: only in OLD"),
        (f"{CELLS}/metrics.json", lambda m: m.update(fid=3.5000000000000004), "fid: 3.5 and 3.5000000000000004"),
        (f"{CELLS}/metrics.json", lambda m: m.pop("fid"), "fid: only in OLD"),
        ("equality/paired/discrete/scenes/sjd-eeeeeeee.json", last_bit_of_p, "paired: log p, scenes, seed 11: p_value"),
        (
            "equality/exact/discrete/sjd-22222222.json",
            last_bit_of_p,
            "exact discrete sjd, n = 20: log p, scenes",
        ),
        ("equality/faults-discrete-10.json", lambda t: t.update(found=3), "faults-discrete-10: found: 4 and 3"),
        ("equality/faults-discrete-10.json", lambda t: t["rows"].append(ROW), "only in NEW"),
    ],
)
def test_one_difference_is_one_line(script, tmp_path, file, change, found):
    old, new = before(tmp_path / "old"), after(tmp_path / "new")
    rewritten(new / file, change)
    (line,) = differences(script, old, new)
    assert found in line


def test_a_verdict_that_differs_is_found(script, tmp_path):
    old, new = before(tmp_path / "old"), after(tmp_path / "new")
    table = new / "all/summary.csv"
    table.write_text(table.read_text().replace("certified lossless", "consistent"))
    (line,) = differences(script, old, new)
    assert "verdict: certified lossless and consistent" in line


def test_times_keys_and_new_figures_are_not_compared(script, tmp_path):
    old, new = before(tmp_path / "old"), after(tmp_path / "new")
    rewritten(new / f"{CELLS}/shards/0-of-1.npz", lambda c: c.update(seconds=c["seconds"] + 1))
    rewritten(new / f"{CELLS}/metrics.json", lambda m: m.update(seconds_per_image=1.0, another=2.0))
    assert differences(script, old, new) == []


def test_what_is_missing_is_named(script, tmp_path, capsys, monkeypatch):
    old, new = before(tmp_path / "old"), after(tmp_path / "new")
    (new / "cells/continuous/mar/cspd-99999999/shards/0-of-1.npz").unlink()
    (line,) = differences(script, old, new)
    assert line == "continuous mar cspd (gamma 4) seed 2: only in OLD"
    for flags, code in (([], 1), (["--common"], 0)):
        monkeypatch.setattr(sys, "argv", ["same_results.py", str(old), str(new), *flags])
        with pytest.raises(SystemExit) as left:
            script.main()
        assert left.value.code == code
    assert "compared: cells 1 discrete, 1 anysubset, 0 continuous" in capsys.readouterr().out
