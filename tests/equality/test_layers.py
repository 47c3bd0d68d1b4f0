"""Layers that test a cell: their verdicts on small cells of the embedded models, and their statistics."""

from functools import cache

import numpy as np
import pytest
import torch
from parity_certify.verdict import judge_decoders
from parity_decoders.continuous.cspd import cspd
from parity_decoders.continuous.mar import mar
from parity_decoders.protocols.continuous import Pair

from parity.base.errors import ParityError
from parity.base.files import read_arrays, read_json, write_arrays, write_json
from parity.decode import loop
from parity.decode.shard_io import write_shard
from parity.equality.layers import CellFiles, run_layer
from parity.equality.layers.continuous import one_token
from parity.equality.layers.continuous.pathwise import make_distance_row
from parity.equality.layers.discrete import paired
from parity.equality.pathwise import make_token_row
from parity.experiment.module_metadata import require
from parity.experiment.options import claim, options
from parity.inputs import tasks
from parity.metrics.likelihood import teacher_forced_logits
from parity.models import fetch
from parity.models.continuous.tabular import TabularMixture, random_mixture
from tests.decode.conftest import MODELS, SAMPLING
from tests.elsewhere import DEVICE, simulate_job_device
from tests.tables import keep_drafts

SHARED = {
    "discrete": {"model": "scenes", "sampling": SAMPLING, "dtype": "float32"},
    "anysubset": {"model": "xlnet", "task_kind": "infilling", "cache": True},
    "continuous": {"model": "gmm", "sampling": {"temperature": 1.0}, "images": 2},
}
TASK = {"rows": 6, "data": "", "length": 24, "masked": 0.8, "prompt": "scattered"}


class Workplace:
    """A folder with the manifest and inputs of a few rows of a kind, in which cells are decoded and layers run."""

    def __init__(self, kind, folder):
        self.kind, self.folder = kind, folder
        self.manifest = fetch.make_manifest(kind, kind, MODELS[kind], folder)
        write_json(folder / "manifest.json", self.manifest)
        if kind == "discrete":
            texts = ["a small red circle", "two large squares", "a blue ring", "a green star"]
            self.inputs = {"ids": np.array([f"{i}/0" for i in range(4)]), "captions": np.array(texts)}
            rng = np.random.default_rng(0)  # random embeddings in place of the text encoder's
            self.inputs |= {"embeddings": rng.standard_normal((4, 24, 128), np.float32), "valid": np.ones((4, 24), int)}
        elif kind == "anysubset":
            task = tasks.build("infilling", TASK, tasks.load_vocabulary(self.manifest))
            self.inputs = {"ids": np.array(task.ids), "tokens": task.tokens, "known": task.known, "end": task.end}
        else:
            self.inputs = {"ids": np.array(["0", "1"])}
        write_arrays(folder / "inputs.npz", **self.inputs)

    def make_cell(self, method, overrides=None, seed=3, decoded=True):
        """Write the specification of a cell, and decode its shard if `decoded`, unless its folder exists. `overrides`
        replace default options. Return its folder."""
        folder = self.folder / f"{method}-0000000{seed}"
        spec = {"method": method, "options": options(self.kind, method, overrides or {}), "seed": seed}
        spec |= SHARED[self.kind]
        if not folder.exists():
            write_json(folder / "spec.json", spec)
            if decoded:
                loaded = loop.load(self.kind, self.manifest, spec)
                shard = loop.decode(self.kind, loaded, spec, self.inputs, batch=6)
                write_shard(folder / "shards/0-of-1.npz", shard.columns, {})
        return folder

    def run(self, layer, folder, settings=None, baseline=None, device="cpu"):
        """Run a layer on the files of a cell that it declares to read, against the cell in folder `baseline` where it
        compares. Return its entries, and the arrays of distributions that it wrote."""
        layer = layer.replace("-", "_")
        declared = require(f"equality/layers/{self.kind}", layer, ("READS", "WRITES"))
        names = (*declared["READS"], *declared["WRITES"])
        probs = folder / "probs.npz" if "probs" in names else None
        files = (
            [folder / "shards/0-of-1.npz"] if "shards" in names else [],
            [self.folder / "inputs.npz"] if "inputs" in names else [],
            self.folder / "manifest.json" if "checkpoint" in names else None,
            baseline if "baseline" in names else None,
        )
        cell = CellFiles(self.kind, folder, settings or {}, *files, None, probs, str(device))
        return run_layer(layer, cell), read_arrays(probs) if probs else {}


@pytest.fixture(scope="module")
def get_workplace(tmp_path_factory):
    """A function that returns the Workplace of a kind, the same each time."""
    return cache(lambda kind: Workplace(kind, tmp_path_factory.mktemp(kind)))


def copy_changed(folder, name, change):
    """Copy a cell with the columns of its shard that `change(columns)` returns replaced; return the new folder."""
    copy = folder.parent / f"{name}-00000009"
    columns = read_arrays(folder / "shards/0-of-1.npz")
    columns.pop("provenance")
    write_json(copy / "spec.json", read_json(folder / "spec.json"))
    write_shard(copy / "shards/0-of-1.npz", columns | change(columns), {})
    return copy


def find_smallest_p(entries):
    return min(r["p_holm"] for r in entries["rows"] if r["p_holm"] is not None)


def has_slots(entries):
    """Return whether a layer also tested tokens by their slot in the window, which it does for lossless verifiers."""
    return any(", slot" in r["test"] for r in entries["rows"])


# --- layers of image tokens


def test_tokens_of_the_target_pass(get_workplace):
    workplace = get_workplace("discrete")
    entries, probs = workplace.run("teacher-forced", workplace.make_cell("ar"), {"seeds": [11]})
    assert find_smallest_p(entries) > 0.01
    assert {r["key"] for r in entries["rows"]} == {"00000003"}
    assert has_slots(entries)
    assert probs["logp"].shape == probs["top1"].shape == (4, 64)
    assert (probs["logp"] <= 0).all()


def test_tokens_of_other_captions_are_rejected(get_workplace):
    workplace = get_workplace("discrete")
    cell = copy_changed(workplace.make_cell("ar"), "reversed", lambda c: {"tokens": c["tokens"][::-1]})
    entries, _ = workplace.run("teacher-forced", cell, {"seeds": [11]})
    assert find_smallest_p(entries) < 1e-6


TOP_K = {"sampling": SAMPLING | {"top_k": 4}}


def change_token(folder, name, rank, dtype):
    """Copy a cell of top-k 4 in a dtype, the last token of a row replaced by that of a rank of its distribution."""
    spec = read_json(folder / "spec.json")

    def change(columns):
        loaded = loop.load("discrete", read_json(folder.parent / "manifest.json"), spec)
        inputs = {k: v[:1] for k, v in read_arrays(folder.parent / "inputs.npz").items()}
        tokens = columns["tokens"].copy()
        model = loaded.model(inputs, SAMPLING | {"top_k": 0})
        logits = teacher_forced_logits(model, torch.from_numpy(tokens[:1].astype(np.int64)))
        tokens[0, -1] = int(logits[0, -1].argsort(descending=True)[rank])
        return {"tokens": tokens}

    copy = copy_changed(folder, name, change)
    write_json(copy / "spec.json", spec | TOP_K | {"dtype": dtype})
    return copy


BORDERS = [("bfloat16", 5, ""), ("bfloat16", 40, "zero"), ("float32", 5, "zero")]


@pytest.mark.parametrize(("dtype", "rank", "error"), BORDERS)
def test_a_token_at_the_border_of_top_k_is_rounding_in_a_short_dtype_alone(get_workplace, dtype, rank, error):
    """Rank 5 is excluded by top-k 4 and kept by top-k 8; the last token changes no distribution."""
    workplace = get_workplace("discrete")
    plain = workplace.make_cell("ar")
    spec = read_json(plain / "spec.json") | TOP_K
    folder = plain.parent / "top-00000008"
    if not folder.exists():
        write_json(folder / "spec.json", spec)
        loaded = loop.load("discrete", workplace.manifest, spec)
        write_shard(
            folder / "shards/0-of-1.npz", loop.decode("discrete", loaded, spec, workplace.inputs, 6).columns, {}
        )
    changed = change_token(folder, f"{dtype}-{rank}", rank, dtype)
    if error:
        with pytest.raises(ParityError, match="of probability zero was sampled"):
            workplace.run("teacher-forced", changed, {"seeds": [0]})
        return
    entries, _ = workplace.run("teacher-forced", changed, {"seeds": [0]})
    (border,) = (r for r in entries["rows"] if r["test"] == "border")
    assert border["effect"] > 0 and border["verdict"] == "not rejected", border
    assert not any(r["test"] == "support" for r in entries["rows"])


@pytest.mark.parametrize(("coupling", "is_same"), [("shared", True), ("fresh", False)])
def test_coupled_decoders_return_plain_decodings_tokens(get_workplace, coupling, is_same):
    workplace = get_workplace("discrete")
    cell = workplace.make_cell("jacobi", {"window": 8, "coupling": coupling}, seed=4 + is_same, decoded=False)
    entries, _ = workplace.run("pathwise", cell, {"pathwise": 1})
    double, single = entries["rows"]
    assert (double["verdict"] == "identical") == is_same
    assert (double["test"], double["n"]) == ("same tokens, float64", 1)
    assert (single["test"], single["decides"]) == ("same tokens, float32", False)


def draw_features(folder, shift, n=40):
    """Write a specification to `folder` and draw random features, log-probabilities and CLIP cosines of n images, moved
    by `shift`; prompts have the same part in each call."""
    rng = np.random.default_rng(0)
    prompt, image = rng.standard_normal((2, n, 4))
    ids = np.array([f"{i}/0" for i in range(n)])
    write_json(folder / "spec.json", {"model": "scenes", "method": "sjd"})
    logp = prompt - 0.1 * image - shift
    logp[0, 0] = np.nan  # NaN, as of a forced token
    logp[1, 1] = -np.inf  # as of a token that a lossy decoder should not have drawn
    return {"ids": ids, "logp": logp, "cosine": prompt[:, 0] + shift, "features": prompt + 0.1 * image + shift}


@pytest.mark.parametrize(("shift", "verdict"), [(0.0, "not rejected"), (0.5, "rejected")])
def test_paired_reads_features_and_finds_a_shift(tmp_path, shift, verdict):
    settings = {"seeds": [11], "margin_clip": 0.02, "margin_logp": 0.05, "swaps": 99}
    baseline, real, folder = (tmp_path / name for name in ("ar-00000001", "reference.npz", "sjd-00000002"))
    write_arrays(baseline / "features.npz", **draw_features(baseline, 0.0))
    write_arrays(real, features=np.random.default_rng(1).standard_normal((50, 4)))
    columns = draw_features(folder, shift)
    columns["logp"][:, 2:] += 0.01 * np.random.default_rng(3).standard_normal((40, 2))
    columns["cosine"] += 0.01 * np.random.default_rng(4).standard_normal(40)
    write_arrays(folder / "features.npz", **columns)
    cell = CellFiles("discrete", folder, settings, baseline_folder=baseline, reference_file=real)
    rows = run_layer("paired", cell)["rows"]
    assert [(r["seed"], r["key"]) for r in rows] == [(11, "00000002")] * 8
    verdicts = {r["test"]: r["verdict"] for r in rows}
    assert (verdicts["log p: paired t"], verdicts["CLIP: paired t"]) == (verdict, verdict)


# --- layers of texts


def test_texts_of_the_network_pass_and_others_do_not(get_workplace):
    workplace = get_workplace("anysubset")
    cell = workplace.make_cell("assd", {"k": 4})
    entries, probs = workplace.run("teacher-forced", cell)
    assert find_smallest_p(entries) > 0.01
    assert {r["model"] for r in entries["rows"]} == {"text"}
    assert has_slots(entries)
    assert probs["logp"].shape == (6,)
    reversed_cell = copy_changed(cell, "reversed", lambda c: {"tokens": c["tokens"][::-1].copy()})
    reversed_entries, reversed_probs = workplace.run("teacher-forced", reversed_cell)
    assert find_smallest_p(reversed_entries) < 1e-6
    assert reversed_probs["logp"].mean() < probs["logp"].mean()


@pytest.mark.parametrize("change", ["another task", "another network", "rows of unequal length"])
def test_texts_that_are_not_tested_have_log_probabilities(get_workplace, change):
    workplace = get_workplace("anysubset")
    cell = workplace.make_cell("assd", {"k": 4})
    is_shorter = change.startswith("rows")
    ends = np.array([20, 24, 24, 24, 24, 24])
    shorter = {"end": ends, "missing": ends - read_arrays(cell / "shards/0-of-1.npz")["begin"]}
    copy = copy_changed(cell, change.replace(" ", "_"), lambda c: shorter if is_shorter else {})
    changed = {"another task": {"task_kind": "stories"}, "another network": {"method": "gpt2"}}.get(change, {})
    write_json(copy / "spec.json", read_json(cell / "spec.json") | changed)
    entries, probs = workplace.run("teacher-forced", copy)
    assert entries["rows"] == []
    assert np.isfinite(probs["logp"]).all()
    whole_logp = workplace.run("teacher-forced", cell)[1]["logp"]
    assert (probs["logp"][0] == pytest.approx(whole_logp[0], rel=1e-4)) == (not is_shorter)
    assert probs["logp"][1:] == pytest.approx(whole_logp[1:], rel=1e-4)


# --- layers of vectors


def run_one_token(workplace, method, overrides, seed):
    """Run the layer `one-token` on a cell of vectors, conditioned on tokens of plain decoding; return its entries."""
    cell = workplace.make_cell(method, overrides, seed, decoded=False)
    settings = {"forced": 64, "conditions": 2}
    return workplace.run("one-token", cell, settings, workplace.make_cell("mar", seed=0))[0]


def test_one_token_of_a_control_passes(get_workplace):
    entries = run_one_token(get_workplace("continuous"), "mar", {}, 1)
    assert entries["ratios"] == {}
    assert find_smallest_p(entries) > 0.01
    assert {r["method"] for r in entries["rows"]} == {"mar"}


def test_one_token_of_a_drafted_method_has_ratios(get_workplace):
    entries = run_one_token(get_workplace("continuous"), "cspd", {"gamma": 4}, 3)
    # A mixture is drawn in one step, so that there is no ratio along a path.
    assert set(entries["ratios"]) == {"two_paths", "distance", "acceptance"}
    assert entries["ratios"]["acceptance"]["n"] == 2 * 64
    assert find_smallest_p(entries) > 0.01
    models = sorted({r["model"] for r in entries["rows"]})
    assert [m.rsplit(" ", 1)[0] for m in models] == ["gmm, condition 0, place", "gmm, condition 1, place"]


@pytest.mark.parametrize(
    ("kind", "layer", "method", "overrides", "settings"),
    [
        ("discrete", "teacher-forced", "ar", {}, {"seeds": [11]}),
        ("anysubset", "teacher-forced", "assd", {"k": 4}, {}),
        ("continuous", "one-token", "cspd", {"gamma": 4}, {"forced": 64, "conditions": 2}),
    ],
)
def test_on_another_device_the_rows_are_the_same(get_workplace, kind, layer, method, overrides, settings):
    workplace = get_workplace(kind)
    cell = workplace.make_cell(method, overrides, seed=7, decoded=layer == "teacher-forced")
    baseline = workplace.make_cell("mar", seed=0) if layer == "one-token" else None
    on_cpu, _ = workplace.run(layer, cell, settings, baseline)
    with simulate_job_device():
        on_device, _ = workplace.run(layer, cell, settings, baseline, DEVICE)
    assert on_cpu["rows"]
    for a, b in zip(on_cpu["rows"], on_device["rows"], strict=True):  # figures are the same to rounding
        assert b == {k: pytest.approx(v, rel=1e-4) if isinstance(v, float) else v for k, v in a.items()}


# --- the layer that compares coupled decoders with plain decoding


@pytest.mark.parametrize(("exact", "verdict"), [(False, "differs by rounding"), (True, "rejected")])
def test_differences_by_rounding_reject_nothing(exact, verdict):
    a = np.zeros((1000, 4), int)
    b = a.copy()
    b[7, 2] = 1
    row = make_token_row(a, b, exact=exact)
    assert (row["verdict"], row["decides"], row["effect"]) == (verdict, exact, 0.001)
    assert "first: row 7, position 2" in row["note"]


@pytest.mark.parametrize(("error", "expected"), [(5e-4, "equal within eps"), (2e-3, "differs by more than eps")])
def test_a_path_within_its_tolerance_has_its_own_verdict(error, expected):
    """The claim is neither lossless nor lossy; one number too far apart contradicts it."""
    tokens, images = np.zeros((2, 1, 4, 2)), np.zeros((2, 1, 3, 8, 8))
    tokens[1, 0, 2, 1] = images[1, 0, 0, 0, 0] = error
    promise = claim("continuous", "coupled", options("continuous", "coupled", {"goal": "path"}))
    assert promise == "equal within eps"
    row = make_distance_row(tokens, images, 1e-3, method="coupled", key="k")
    assert row["psnr"] == pytest.approx(10 * np.log10(4 * 192 / error**2), abs=1e-6)
    verdict = judge_decoders([row], {"k": promise}, 0.01)[0]
    assert verdict["verdict"] == expected
    assert verdict["mismatch"] == (expected != promise)
    assert f"{row['psnr']:.0f} dB" in verdict["note"]


# --- the test of one token's distribution, on Gaussian mixtures


ONE = {"gamma": 1, "prefill": 0.0}


@pytest.fixture
def conditions():
    """A target and draft model of vectors, with an image of three tokens that is known up to its first and last
    rank."""
    pair = Pair(*(TabularMixture(random_mixture(np.random.default_rng(s), 3, 3, 2), 1) for s in (0, 1)))
    image = torch.from_numpy(np.random.default_rng(5).standard_normal((3, 2))), torch.tensor([2, 0, 1])
    return [(pair, (*image, rank)) for rank in (0, 2)]


@pytest.mark.parametrize(
    ("decoder", "options", "wrong"), [(mar, {}, False), (cspd, ONE, False), (keep_drafts, {}, True)]
)
def test_a_draft_is_told_from_its_target(conditions, decoder, options, wrong):
    columns = {"model": "tabular", "method": "m", "key": "k", "seed": 0}
    rows = one_token.compare_conditions(conditions, decoder, options, 256, (11, 13), **columns)
    tests = [r for r in rows if r["decides"]]
    assert any(r["verdict"] == "rejected" for r in tests) == wrong
    assert sorted(r["repeat"] for r in tests) == ([0] * 4 + [1] * 4 if wrong else [0] * 4)
    family = [r for r in tests if r["repeat"] == 0]  # Holm's correction is over both ranks
    assert all(r["p_holm"] >= r["p_value"] for r in family)
    assert max(r["p_holm"] / r["p_value"] for r in family) > 2
    assert {r["model"] for r in rows} == {"tabular, condition 0, place 0", "tabular, condition 1, place 2"}
    assert {r["test"] for r in rows if not r["decides"]} == {"mean shift", "spread ratio"}


# --- tests of samples that are paired by prompt


def draw_pairs(n=300, d=4, shift=0.0, seed=0):
    """Draw features [n, d] of two sides that share a part for each prompt, the first moved by `shift`; and the ids."""
    rng = np.random.default_rng(seed)
    prompt = 2 * rng.standard_normal((n, d))
    ids = [f"p{i}/0" for i in range(n)]
    return prompt + rng.standard_normal((n, d)) + shift, prompt + rng.standard_normal((n, d)), ids


def match_features(x, y, ids):
    return paired.match_sides("features", x, y, ids, ids)


def match_scores(x, y, ids, ids_y=None):
    """Match the first feature of two sides as scores, by their ids."""
    return paired.match_sides("s", x[:, 0], y[:, 0], ids, ids_y or ids)


@pytest.mark.parametrize("pairs", [paired.PAIRS, 40])
@pytest.mark.parametrize("shift", [0.0, 0.4])
def test_paired_rows_find_a_shift_and_no_shift(shift, pairs, monkeypatch):
    """Also where MMD compares images in blocks."""
    monkeypatch.setattr(paired, "PAIRS", pairs)
    x, y, ids = draw_pairs(shift=shift)
    t, boot, tost = paired.make_scalar_rows(match_scores(x, y, ids), margin=0.3, resamples=499)
    assert (t["p_value"] <= 0.05) == (shift > 0)
    assert t["low"] < t["effect"] < t["high"]
    assert boot["verdict"] == ("interval excludes 0" if shift else "interval holds 0")
    assert tost["verdict"].startswith("equivalent") == (shift == 0)
    assert (paired.make_mmd_row(match_features(x, y, ids), swaps=199)["p_value"] <= 0.05) == (shift > 0)


def test_fid_swap_finds_loss_of_diversity():
    x, y, ids = draw_pairs()
    real = 2 * np.random.default_rng(1).standard_normal((500, 4))
    assert paired.make_fid_row(real, match_features(x, y, ids))["p_value"] > 0.05
    assert paired.make_fid_row(real, match_features(0.8 * x, y, ids))["p_value"] <= 0.05


def test_the_order_of_images_does_not_matter():
    x, y, ids = draw_pairs(100)
    order = np.random.default_rng(0).permutation(100)
    shuffled = paired.match_sides("s", x[order, 0], y[:, 0], [ids[i] for i in order], ids)
    rows, shuffled_rows = (
        paired.make_scalar_rows(sides, margin=0.1, resamples=99) for sides in (match_scores(x, y, ids), shuffled)
    )
    assert rows == shuffled_rows


def test_repeats_of_a_prompt_are_averaged():
    x, y, _ = draw_pairs(100)
    ids = [f"p{i // 2}/{i % 2}" for i in range(100)]
    assert paired.make_scalar_rows(match_scores(x, y, ids), margin=0.1, resamples=99)[0]["n"] == 50


def test_sides_that_cannot_be_compared_are_an_error():
    x, y, ids = draw_pairs(20)
    with pytest.raises(ParityError, match="only on the first side: p19/0; only on the second side: other/0"):
        match_scores(x, y, ids, [*ids[:-1], "other/0"])
    x[3, 0] = np.nan
    with pytest.raises(ParityError, match="s: not finite for image p3/0"):
        match_scores(x, y, ids)


def test_few_prompts_and_equal_sides_are_not_run():
    x, y, ids = draw_pairs(5)
    rows = paired.make_scalar_rows(match_scores(x, y, ids), margin=0.1)
    assert {r["note"] for r in rows} == {"not run: needs n >= 10 prompts"}
    x, y, ids = draw_pairs(20)
    rows = paired.make_scalar_rows(match_scores(x, x, ids), margin=0.1)
    assert {(r["verdict"], r["effect"]) for r in rows} == {("not run", 0)}
    zeros = np.zeros((20, 30))
    row = paired.make_fid_row(np.eye(30), match_features(zeros, zeros, ids))
    assert row["note"] == "not run: needs n >= 31 images"
