"""Layers that look at a cell: each is one file, and on small cells of the embedded models says what it must."""

import numpy as np
import pytest

from parity.base.errors import ParityError
from parity.base.files import read_arrays, read_json, write_arrays, write_json
from parity.decode import loop
from parity.decode.shard_io import write_shard
from parity.equality.layers import CellFiles, run_layer
from parity.experiment.module_metadata import require
from parity.experiment.options import options
from parity.inputs import tasks
from parity.models import fetch
from tests.elsewhere import DEVICE, loading

MODELS = {
    "discrete": {"family": "llamagen", "grid": 8},
    "anysubset": {"family": "xlnet"},
    "continuous": {"family": "gmm"},
}
SAMPLING = {"guidance": 1.8, "temperature": 1.0, "top_k": 0, "top_p": 1.0}
SHARED = {
    "discrete": {"model": "scenes", "sampling": SAMPLING, "dtype": "float32"},
    "anysubset": {"model": "xlnet", "task_kind": "infilling", "cache": True},
    "continuous": {"model": "gmm", "sampling": {"temperature": 1.0}, "images": 2},
}
TASK = {"rows": 6, "data": "", "length": 24, "masked": 0.8, "prompt": "scattered"}


class Workplace:
    """Cells of a few rows of one kind of model, decoded and written as the rules do."""

    def __init__(self, kind, folder):
        self.kind, self.folder = kind, folder
        self.manifest = fetch.manifest(kind, kind, MODELS[kind], folder)
        write_json(folder / "manifest.json", self.manifest)
        if kind == "discrete":
            texts = ["a small red circle", "two large squares", "a blue ring", "a green star"]
            self.inputs = {"ids": np.array([f"{i}/0" for i in range(4)]), "captions": np.array(texts)}
            rng = np.random.default_rng(0)  # for the text encoder's: what the captions say makes no difference here
            self.inputs |= {"embeddings": rng.standard_normal((4, 24, 128), np.float32), "valid": np.ones((4, 24), int)}
        elif kind == "anysubset":
            task = tasks.build("infilling", TASK, tasks.words_of(self.manifest))
            self.inputs = {"ids": np.array(task.ids), "tokens": task.tokens, "known": task.known, "end": task.end}
        else:
            self.inputs = {"ids": np.array(["0", "1"])}
        write_arrays(folder / "inputs.npz", **self.inputs)

    def cell(self, method, given=None, seed=3, decoded=True):
        """A cell's folder, its files written when it is first asked for."""
        folder = self.folder / f"{method}-0000000{seed}"
        chosen = {"method": method, "options": options(self.kind, method, given or {}), "seed": seed}
        chosen |= SHARED[self.kind]
        if not folder.exists():
            write_json(folder / "spec.json", chosen)
            if decoded:
                loaded = loop.load(self.kind, self.manifest, chosen)
                shard = loop.decode(self.kind, loaded, chosen, self.inputs, batch=6)
                write_shard(folder / "shards/0-of-1.npz", shard.columns, {})
        return folder

    def run(self, layer, folder, settings=None, baseline=None, device="cpu"):
        """The layer's entries, of the files that it declares to read, and its laws."""
        layer = layer.replace("-", "_")
        said = require(f"equality/layers/{self.kind}", layer, ("READS", "WRITES"))
        named = (*said["READS"], *said["WRITES"])
        laws = folder / "laws.npz" if "laws" in named else None
        files = (
            [folder / "shards/0-of-1.npz"] if "shards" in named else [],
            [self.folder / "inputs.npz"] if "inputs" in named else [],
            self.folder / "manifest.json" if "checkpoint" in named else None,
            baseline if "baseline" in named else None,
        )
        cell = CellFiles(self.kind, folder, settings or {}, *files, None, laws, str(device))
        return run_layer(layer, cell), read_arrays(laws) if laws else {}


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    made = {}

    def of(kind):
        if kind not in made:
            made[kind] = Workplace(kind, tmp_path_factory.mktemp(kind))
        return made[kind]

    return of


def spoiled(folder, name, change):
    """A copy of a cell whose shard has another column."""
    other = folder.parent / f"{name}-00000009"
    columns = read_arrays(folder / "shards/0-of-1.npz")
    columns.pop("provenance")
    write_json(other / "spec.json", read_json(folder / "spec.json"))
    write_shard(other / "shards/0-of-1.npz", columns | change(columns), {})
    return other


def smallest(found):
    return min(r["p_holm"] for r in found["rows"] if r["p_holm"] is not None)


# --- declarations


# --- discrete


def test_discrete_tokens_of_the_target_pass_and_others_do_not(workplace):
    place = workplace("discrete")
    cell = place.cell("ar")
    found, laws = place.run("teacher-forced", cell, {"seeds": [11]})
    assert smallest(found) > 0.01 and {r["key"] for r in found["rows"]} == {"00000003"}
    assert any(", slot" in r["test"] for r in found["rows"])  # a lossless verifier: strata by slot
    assert laws["logp"].shape == laws["top1"].shape == (4, 64) and (laws["logp"] <= 0).all()
    turned = spoiled(cell, "turned", lambda c: {"tokens": c["tokens"][::-1]})
    assert smallest(place.run("teacher-forced", turned, {"seeds": [11]})[0]) < 1e-6


def test_inputs_of_other_rows_are_told(workplace):
    place = workplace("discrete")
    other = spoiled(place.cell("ar"), "other", lambda c: {"ids": c["ids"][::-1]})
    with pytest.raises(ParityError, match=r"their ids are not the samples' \(first: 0/0 against 3/0\)"):
        place.run("teacher-forced", other, {"seeds": [11]})


@pytest.mark.parametrize(("coupling", "same"), [("shared", True), ("fresh", False)])
def test_coupled_discrete_decoders_return_plain_decodings_tokens(workplace, coupling, same):
    place = workplace("discrete")
    cell = place.cell("jacobi", {"window": 8, "coupling": coupling}, seed=4 + same, decoded=False)
    found, _ = place.run("pathwise", cell, {"pathwise": 1})
    double, single = found["rows"]
    assert (double["verdict"] == "identical") == same and double["n"] == 1 and double["test"].endswith("float64")
    assert single["test"].endswith("float32") and not single["decides"]


def features(folder, shift, n=40):
    rng = np.random.default_rng(0)
    prompt, own = rng.standard_normal((2, n, 4))
    ids = np.array([f"{i}/0" for i in range(n)])
    write_json(folder / "spec.json", {"model": "scenes", "method": "sjd"})
    logp = prompt - 0.1 * own - shift
    logp[0, 0], logp[1, 1] = np.nan, -np.inf  # a forced token, and one that a lossy decoder should not have drawn
    return {"ids": ids, "logp": logp, "cosine": prompt[:, 0] + shift, "features": prompt + 0.1 * own + shift}


def test_paired_reads_features_and_finds_a_shift(tmp_path):
    settings = {"seeds": [11], "margin_clip": 0.02, "margin_logp": 0.05, "swaps": 99}
    baseline, real = tmp_path / "ar-00000001", tmp_path / "reference.npz"
    write_arrays(baseline / "features.npz", **features(baseline, 0.0))
    write_arrays(real, features=np.random.default_rng(1).standard_normal((50, 4)))
    for name, shift in (("sjd-00000002", 0.0), ("sjd-00000003", 0.5)):
        folder = tmp_path / name
        columns = features(folder, shift)
        columns["logp"][:, 2:] += 0.01 * np.random.default_rng(3).standard_normal((40, 2))
        columns["cosine"] += 0.01 * np.random.default_rng(4).standard_normal(40)
        write_arrays(folder / "features.npz", **columns)
        cell = CellFiles("discrete", folder, settings, baseline_folder=baseline, reference_file=real)
        rows = run_layer("paired", cell)["rows"]
        assert len(rows) == 8 and {r["seed"] for r in rows} == {11} and {r["key"] for r in rows} == {name[-8:]}
        t = {r["test"]: r["verdict"] for r in rows}
        assert (t["log p: paired t"] == "rejected") == (t["CLIP: paired t"] == "rejected") == (shift > 0)


# --- any-subset


def test_texts_of_the_network_pass_and_others_do_not(workplace):
    place = workplace("anysubset")
    cell = place.cell("assd", {"k": 4})
    found, laws = place.run("teacher-forced", cell)
    assert smallest(found) > 0.01 and {r["model"] for r in found["rows"]} == {"text"}
    assert any(", slot" in r["test"] for r in found["rows"]) and laws["logp"].shape == (6,)
    other = spoiled(cell, "other", lambda c: {"tokens": c["tokens"][::-1].copy()})
    turned, worse = place.run("teacher-forced", other)
    assert smallest(turned) < 1e-6 and worse["logp"].mean() < laws["logp"].mean()


@pytest.mark.parametrize("change", ["another task", "another network", "rows of unequal length"])
def test_texts_that_are_not_tested_have_their_log_probabilities(workplace, change):
    place = workplace("anysubset")
    cell = place.cell("assd", {"k": 4})
    ends = np.array([20, 24, 24, 24, 24, 24])
    shorter = {"end": ends, "missing": ends - read_arrays(cell / "shards/0-of-1.npz")["begin"]}
    other = spoiled(cell, change.replace(" ", "_"), lambda c: shorter if change.startswith("rows") else {})
    said = {"another task": {"task_kind": "stories"}, "another network": {"method": "gpt2"}}.get(change, {})
    write_json(other / "spec.json", read_json(cell / "spec.json") | said)
    found, laws = place.run("teacher-forced", other)
    assert found["rows"] == [] and np.isfinite(laws["logp"]).all()
    whole = place.run("teacher-forced", cell)[1]["logp"]
    same = laws["logp"] == pytest.approx(whole, rel=1e-4)
    assert same == (not change.startswith("rows")) and laws["logp"][1:] == pytest.approx(whole[1:], rel=1e-4)


# --- continuous


def test_one_token_of_control_and_drafted_methods(workplace):
    place, settings = workplace("continuous"), {"forced": 64, "conditions": 2}
    reference = place.cell("mar", seed=0)
    control, _ = place.run("one-token", place.cell("mar", seed=1, decoded=False), settings, reference)
    assert control["ratios"] == {} and smallest(control) > 0.01 and {r["method"] for r in control["rows"]} == {"mar"}
    drafted, _ = place.run("one-token", place.cell("cspd", {"gamma": 4}, decoded=False), settings, reference)
    assert set(drafted["ratios"]) == {"two_paths", "distance", "acceptance"}  # a mixture has no path of its own
    assert drafted["ratios"]["acceptance"]["n"] == 2 * 64 and smallest(drafted) > 0.01
    models = sorted({r["model"] for r in drafted["rows"]})
    assert [m.rsplit(" ", 1)[0] for m in models] == ["gmm, condition 0, place", "gmm, condition 1, place"]


@pytest.mark.parametrize(
    ("kind", "layer", "method", "given", "settings"),
    [
        ("discrete", "teacher-forced", "ar", {}, {"seeds": [11]}),
        ("anysubset", "teacher-forced", "assd", {"k": 4}, {}),
        ("continuous", "one-token", "cspd", {"gamma": 4}, {"forced": 64, "conditions": 2}),
    ],
)
def test_on_another_device_the_rows_are_the_same(workplace, kind, layer, method, given, settings):
    place = workplace(kind)
    cell = place.cell(method, given, seed=7, decoded=layer == "teacher-forced")
    baseline = place.cell("mar", seed=0) if layer == "one-token" else None
    here, _ = place.run(layer, cell, settings, baseline)
    with loading():
        there, _ = place.run(layer, cell, settings, baseline, DEVICE)
    assert len(there["rows"]) == len(here["rows"]) > 0
    for row, other in zip(here["rows"], there["rows"], strict=True):  # the same but for rounding
        assert other == {k: pytest.approx(v, rel=1e-4) if isinstance(v, float) else v for k, v in row.items()}
