"""Layers that look at a cell: each is one file, and on small cells of the embedded models says what it must; and their
statistics."""

import numpy as np
import pytest
import torch
from parity_certify.verdict import judge_decoders
from parity_decoders.continuous.cspd import cspd
from parity_decoders.continuous.mar import mar
from parity_decoders.discrete.jacobi import jacobi
from parity_decoders.protocols.continuous import Pair

from parity.base.errors import ParityError
from parity.base.files import read_arrays, read_json, write_arrays, write_json
from parity.decode import loop
from parity.decode.shard_io import write_shard
from parity.equality.layers import CellFiles, run_layer
from parity.equality.layers.continuous import one_token
from parity.equality.layers.continuous.pathwise import distance_row
from parity.equality.layers.discrete import paired
from parity.equality.pathwise import pathwise, token_row
from parity.equality.targets.discrete import targets
from parity.experiment.module_metadata import require
from parity.experiment.options import claim, options
from parity.inputs import tasks
from parity.models import fetch
from parity.models.continuous.tabular import TabularMixture, random_mixture
from tests.elsewhere import DEVICE, simulate_job_device

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
        self.manifest = fetch.make_manifest(kind, kind, MODELS[kind], folder)
        write_json(folder / "manifest.json", self.manifest)
        if kind == "discrete":
            texts = ["a small red circle", "two large squares", "a blue ring", "a green star"]
            self.inputs = {"ids": np.array([f"{i}/0" for i in range(4)]), "captions": np.array(texts)}
            rng = np.random.default_rng(0)  # for the text encoder's: what the captions say makes no difference here
            self.inputs |= {"embeddings": rng.standard_normal((4, 24, 128), np.float32), "valid": np.ones((4, 24), int)}
        elif kind == "anysubset":
            task = tasks.build("infilling", TASK, tasks.load_vocabulary(self.manifest))
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
    with simulate_job_device():
        there, _ = place.run(layer, cell, settings, baseline, DEVICE)
    assert len(there["rows"]) == len(here["rows"]) > 0
    for row, other in zip(here["rows"], there["rows"], strict=True):  # the same but for rounding
        assert other == {k: pytest.approx(v, rel=1e-4) if isinstance(v, float) else v for k, v in row.items()}


# --- pathwise


@pytest.mark.parametrize(("coupling", "verdict"), [("shared", "identical"), ("fresh", "rejected")])
def test_only_a_coupled_decoder_returns_the_very_tokens(coupling, verdict):
    found = pathwise(jacobi, targets("small"), {"window": 3, "coupling": coupling}, n=2000)
    exact = [r for r in found if r["test"].endswith("float64")]
    assert {r["verdict"] for r in exact} == {verdict} and all(r["decides"] for r in exact)
    assert all((r["effect"] > 0.1) == (verdict == "rejected") for r in exact)


def test_differences_by_rounding_are_stated_and_reject_nothing():
    a = np.zeros((1000, 4), int)
    b = a.copy()
    b[7, 2] = 1
    row = token_row(a, b, exact=False)
    assert row["effect"] == 0.001 and not row["decides"] and "first: row 7, position 2" in row["note"]
    assert row["verdict"] == "differs by rounding" and token_row(a, b, exact=True)["verdict"] == "rejected"


@pytest.mark.parametrize(("error", "said"), [(5e-4, "equal within eps"), (2e-3, "differs by more than eps")])
def test_a_path_within_its_tolerance_has_a_verdict_of_its_own(error, said):
    """The claim is neither lossless nor lossy; one number too far apart contradicts it."""
    tokens, pictures = np.zeros((2, 1, 4, 2)), np.zeros((2, 1, 3, 8, 8))
    tokens[1, 0, 2, 1], pictures[1, 0, 0, 0, 0] = error, error
    promise = claim("continuous", "coupled", options("continuous", "coupled", {"law": "path"}))
    row = distance_row(tokens, pictures, eps=1e-3, method="coupled", key="k")
    verdict = judge_decoders([row], {"k": promise}, 0.01)[0]
    assert promise == "equal within eps" and verdict["verdict"] == said
    assert verdict["mismatch"] == (said != promise) and f"{row['psnr']:.0f} dB" in verdict["note"]
    assert abs(row["psnr"] - 10 * np.log10(4 * 192 / error**2)) < 1e-6


# --- one token, on a law that is known


ONE = {"gamma": 1, "prefill": 0.0}


@pytest.fixture
def conditions():
    """An image of three tokens of two numbers, cut at its first place and at its last."""
    pair = Pair(*(TabularMixture(random_mixture(np.random.default_rng(s), 3, 3, 2), 1) for s in (0, 1)))
    image = torch.from_numpy(np.random.default_rng(5).standard_normal((3, 2))), torch.tensor([2, 0, 1])
    return [(pair, (*image, place)) for place in (0, 2)]


def as_drafted(models, start, *, noise):
    return mar(Pair(models.draft), start, noise=noise)


@pytest.mark.parametrize(
    ("decoder", "options", "wrong"), [(mar, {}, False), (cspd, ONE, False), (as_drafted, {}, True)]
)
def test_a_draft_is_told_from_its_target(conditions, decoder, options, wrong):
    found = one_token.compare_conditions(
        conditions, decoder, options, 256, (11, 13), model="tabular", method="m", key="k", seed=0
    )
    tests = [r for r in found if r["decides"]]
    assert any(r["verdict"] == "rejected" for r in tests) == wrong
    assert {r["repeat"] for r in tests} == ({0, 1} if wrong else {0}) and len(tests) == 4 * (1 + wrong)
    family = [r for r in tests if r["repeat"] == 0]  # of both places: two tests of one give a factor of 2 at most
    assert all(r["p_holm"] >= r["p_value"] for r in family) and max(r["p_holm"] / r["p_value"] for r in family) > 2
    assert {r["model"] for r in found} == {f"tabular, condition {c}, place {p}" for c, p in ((0, 0), (1, 2))}
    assert {r["test"] for r in found if not r["decides"]} == {"mean shift", "spread ratio"}


# --- paired by prompt


def pairs(n=300, d=4, shift=0.0, seed=0):
    rng = np.random.default_rng(seed)
    prompt = 2 * rng.standard_normal((n, d))
    ids = [f"p{i}/0" for i in range(n)]
    return prompt + rng.standard_normal((n, d)) + shift, prompt + rng.standard_normal((n, d)), ids


def both_features(x, y, ids):
    return paired.matched("features", x, y, ids, ids)


def scores(x, y, ids, others=None):
    return paired.matched("s", x[:, 0], y[:, 0], ids, others or ids)


def test_paired_rows_find_a_shift_and_no_shift():
    for shift, found in ((0.0, False), (0.4, True)):
        x, y, ids = pairs(shift=shift)
        t, boot, tost = paired.scalar_rows(scores(x, y, ids), margin=0.3, resamples=499)
        assert (t["p_value"] <= 0.05) == found and t["low"] < t["effect"] < t["high"]
        assert boot["verdict"] == f"interval {'excludes' if found else 'holds'} 0"
        assert tost["verdict"].startswith("equivalent") == (not found)
        assert (paired.mmd_row(both_features(x, y, ids), swaps=199)["p_value"] <= 0.05) == found


def test_fid_swap_finds_loss_of_diversity():
    x, y, ids = pairs()
    real = 2 * np.random.default_rng(1).standard_normal((500, 4))
    assert paired.fid_row(real, both_features(x, y, ids))["p_value"] > 0.05
    assert paired.fid_row(real, both_features(0.8 * x, y, ids))["p_value"] <= 0.05


def test_the_order_of_images_does_not_matter_and_repeats_are_averaged():
    x, y, ids = pairs(100)
    turn = np.random.default_rng(0).permutation(100)
    turned = paired.matched("s", x[turn, 0], y[:, 0], [ids[i] for i in turn], ids)
    both = [paired.scalar_rows(sides, margin=0.1, resamples=99) for sides in (scores(x, y, ids), turned)]
    assert both[0] == both[1]
    twice = [f"p{i // 2}/{i % 2}" for i in range(100)]
    assert paired.scalar_rows(scores(x, y, twice), margin=0.1, resamples=99)[0]["n"] == 50


def test_sides_that_cannot_be_compared_are_told():
    x, y, ids = pairs(20)
    with pytest.raises(ParityError, match="only on the first side: p19/0; only on the second side: other/0"):
        scores(x, y, ids, [*ids[:-1], "other/0"])
    x[3, 0] = np.nan
    with pytest.raises(ParityError, match="s: not finite for image p3/0"):
        scores(x, y, ids)


def test_few_prompts_and_equal_sides_are_not_run():
    x, y, ids = pairs(5)
    few = paired.scalar_rows(scores(x, y, ids), margin=0.1)
    assert {r["note"] for r in few} == {"not run: needs n >= 10 prompts"}
    x, y, ids = pairs(20)
    equal = paired.scalar_rows(scores(x, x, ids), margin=0.1)
    assert {r["verdict"] for r in equal} == {"not run"} and equal[0]["effect"] == 0
    wide = np.zeros((20, 30))
    assert paired.fid_row(np.eye(30), both_features(wide, wide, ids))["note"] == "not run: needs n >= 31 images"
