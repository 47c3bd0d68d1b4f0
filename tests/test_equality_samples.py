"""Layers 3, 4, 5 and 7, and the command line: must-fail beside must-pass."""

import json
import subprocess
import sys
import warnings
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch

from parity.base.noise import counted_noise
from parity.decode.discrete import decode
from parity.decoders.discrete.ar import ar
from parity.decoders.discrete.sjd import sjd
from parity.equality import __main__ as main
from parity.equality import anyorder, calibration, certify, paired, teacher_forced
from parity.equality import faults as mutants
from parity.equality import mixtures as continuous
from parity.equality.exact import Target
from parity.metrics import fid
from parity.models.anysubset import tabular
from parity.models.anysubset.protocol import Infilling
from parity.models.discrete.tabular import random_table

torch.set_num_threads(1)
ROOT = Path(__file__).parents[1]
TARGET = Target("six codes", random_table(6, 5, torch.Generator().manual_seed(0)), 5, 2)


def sample(decoder, n, seed=0, **options):
    """Tokens and steps [n, L], and the laws [n, L, V] that the target gives at these tokens."""
    model = TARGET.model(n)
    done = decode(
        model, decoder(model, torch.zeros(n, dtype=torch.int64), noise=counted_noise(seed, range(n)), **options), n
    )
    inputs = torch.cat([torch.zeros(n, 1, dtype=torch.int64), done.tokens[:, :-1]], 1)
    p = TARGET.model(n).logits(inputs, torch.arange(-1, 4).expand(n, -1)).softmax(-1)
    return done.tokens.numpy(), done.step.numpy(), p


def smallest(found):
    return min(r["p_holm"] for r in found if r["p_holm"] is not None)


def battery(tokens, p, seed=0, **values):
    return teacher_forced.battery(tokens, teacher_forced.stored(p), 2, rng=np.random.default_rng(seed), **values)


# --- teacher-forced


def test_battery_passes_a_lossless_decoder_and_rejects_a_stale_law():
    tokens, step, p = sample(sjd, 5_000, window=3)
    good = battery(tokens, p, slot=teacher_forced.slots(step), groups=np.arange(6) % 3, chunk=1000)
    assert {r["test"] for r in good} >= {
        "log p",
        "top-1 hit",
        "top-5 hit",
        "rank PIT, row 2",
        "equals upper, slot 1",
        "group 2",
    }
    assert smallest(good) > 0.05
    tokens, _, p = sample(mutants.jacobi, 5_000, fault="stored q")
    assert smallest(battery(tokens, p)) < 1e-4


def test_battery_does_not_depend_on_chunks_but_for_the_randomised_pit():
    tokens, _, p = sample(ar, 500)
    a, b = battery(tokens, p, chunk=500), battery(tokens, p, chunk=77)
    assert [r["statistic"] for r in a if "PIT" not in r["test"]] == pytest.approx(
        [r["statistic"] for r in b if "PIT" not in r["test"]]
    )
    assert [r["n"] for r in a] == [r["n"] for r in b]


def test_slot_is_the_place_in_the_pass():
    step = np.array([[1, 1, 2, 3, 3], [0, 1, 2, 2, 2], [1, 0, 1, 2, 0]])
    assert teacher_forced.slots(step).tolist() == [[0, 1, 0, 0, 1], [0, 0, 0, 1, 2], [0, 0, 0, 0, 0]]


def test_slot_is_known_before_the_token_and_acceptance_is_not():
    """On a correct decoder: strata by slot pass, strata by 'the run ended here' (the token was a correction) reject."""
    tokens, step, p = sample(sjd, 20_000, window=3)
    slot = teacher_forced.slots(step)
    ended = np.concatenate([step[:, 1:] != step[:, :-1], np.ones((len(step), 1), bool)], 1)
    sound = [r for r in battery(tokens, p, slot=slot, chunk=5000) if "slot" in r["test"]]
    unsound = [r for r in battery(tokens, p, slot=ended.astype(int), chunk=5000) if "slot" in r["test"]]
    assert smallest(sound) > 0.01
    assert smallest(unsound) < 1e-6


def test_certain_laws_are_not_run():
    p = torch.nn.functional.one_hot(torch.zeros(50, 4, dtype=torch.int64), 6).double()
    found = teacher_forced.battery(np.zeros((50, 4), int), teacher_forced.stored(p), 2, rng=np.random.default_rng(0))
    assert all(r["p_value"] is None and r["note"].startswith("not run: needs") for r in found)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda p, x: p[7, 2].fill_(float("nan")), "model m, position 2, row 7: p is not a law"),
        (lambda p, x: p[7, 2].mul_(1.1), "model m, position 2, row 7: p is not a law"),
        (
            lambda p, x: p[7, 2].scatter_(0, torch.tensor(x[7, 2]), 0).div_(p[7, 2].sum()),
            "position 2, row 7: token . of probability zero",
        ),
    ],
)
def test_bad_laws_are_errors_that_name_their_place(spoil, message):
    tokens, _, p = sample(ar, 20)
    spoil(p, tokens)
    with pytest.raises(ValueError, match=message):
        battery(tokens, p, model="m", chunk=6)


def test_a_lossy_decoder_may_leave_the_support_and_is_rejected_for_it():
    tokens, _, p = sample(ar, 20)
    p[7, 2].scatter_(0, torch.tensor(tokens[7, 2]), 0).div_(p[7, 2].sum())
    found = battery(tokens, p, model="m", chunk=6, strict=False)
    assert found[0]["test"] == "support" and found[0]["verdict"] == "rejected" and "1 of" in found[0]["note"]
    assert all(np.isfinite(r["statistic"]) for r in found if r["statistic"] is not None)


# --- paired


def pairs(n=300, d=4, shift=0.0, seed=0):
    rng = np.random.default_rng(seed)
    prompt = 2 * rng.standard_normal((n, d))
    ids = [f"p{i}/0" for i in range(n)]
    return prompt + rng.standard_normal((n, d)) + shift, prompt + rng.standard_normal((n, d)), ids


def test_paired_rows_find_a_shift_and_no_shift():
    for shift, found in ((0.0, False), (0.4, True)):
        x, y, ids = pairs(shift=shift)
        t, boot, tost = paired.scalar_rows(x[:, 0], y[:, 0], ids, ids, name="clip", margin=0.3, resamples=499)
        assert (t["p_value"] <= 0.05) == found and t["low"] < t["effect"] < t["high"]
        assert boot["verdict"] == f"interval {'excludes' if found else 'holds'} 0"
        assert tost["verdict"].startswith("equivalent") == (not found)
        assert (paired.mmd_row(x, y, ids, ids, swaps=199)["p_value"] <= 0.05) == found


def test_fid_swap_finds_loss_of_diversity():
    x, y, ids = pairs()
    real = 2 * np.random.default_rng(1).standard_normal((500, 4))
    assert paired.fid_row(real, x, y, ids, ids)["p_value"] > 0.05
    assert paired.fid_row(real, 0.8 * x, y, ids, ids)["p_value"] <= 0.05


def test_order_of_images_does_not_matter_and_repeats_are_averaged():
    x, y, ids = pairs(100)
    turn = np.random.default_rng(0).permutation(100)
    a = paired.scalar_rows(x[:, 0], y[:, 0], ids, ids, name="s", margin=0.1, resamples=99)
    b = paired.scalar_rows(x[turn, 0], y[:, 0], [ids[i] for i in turn], ids, name="s", margin=0.1, resamples=99)
    assert [r["p_value"] for r in a] == pytest.approx([r["p_value"] for r in b], nan_ok=True) or a[0]["p_value"] == b[
        0
    ]["p_value"]
    twice = [f"p{i // 2}/{i % 2}" for i in range(100)]
    assert paired.scalar_rows(x[:, 0], y[:, 0], twice, twice, name="s", margin=0.1, resamples=99)[0]["n"] == 50


def test_unequal_prompt_sets_are_listed():
    x, y, ids = pairs(20)
    with pytest.raises(
        ValueError, match="prompt sets differ; only on the first side: p19/0; only on the second side: other/0"
    ):
        paired.scalar_rows(x[:, 0], y[:, 0], ids, [*ids[:-1], "other/0"], name="s", margin=0.1)


def test_few_prompts_and_equal_sides_are_not_run():
    x, y, ids = pairs(5)
    assert (
        paired.scalar_rows(x[:, 0], y[:, 0], ids, ids, name="s", margin=0.1)[0]["note"]
        == "not run: needs n >= 10 prompts"
    )
    x, y, ids = pairs(20)
    assert paired.scalar_rows(x[:, 0], x[:, 0], ids, ids, name="s", margin=0.1)[0]["verdict"] == "not run"
    assert (
        paired.fid_row(np.eye(30), np.zeros((20, 30)), np.zeros((20, 30)), ids, ids)["note"]
        == "not run: needs n >= 31 images"
    )


def clean_fid(a, b):
    from cleanfid.fid import frechet_distance

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # sqrtm(disp=...) is deprecated
        return frechet_distance(a.mean(0), np.cov(a, rowvar=False), b.mean(0), np.cov(b, rowvar=False))


def test_frechet_distance_is_that_of_clean_fid():
    rng = np.random.default_rng(0)
    spectrum = (1 + np.arange(128)) ** -0.5
    a, b = rng.standard_normal((600, 128)) * spectrum, 1.05 * rng.standard_normal((700, 128)) * spectrum + 0.01
    assert fid.frechet(b, fid.reference_half(a)) == pytest.approx(clean_fid(a, b), rel=1e-8)
    assert fid.frechet(a, fid.reference_half(a)) == pytest.approx(0, abs=1e-10)


@pytest.mark.slow
def test_frechet_distance_at_full_size_is_equal_and_under_two_seconds():
    rng = np.random.default_rng(0)
    spectrum = (1 + np.arange(2048)) ** -0.5
    a, b = rng.standard_normal((5000, 2048)) * spectrum, 1.05 * rng.standard_normal((5000, 2048)) * spectrum
    half = fid.reference_half(a)
    assert fid.frechet(b, half) == pytest.approx(clean_fid(a, b), rel=1e-8)


# --- continuous and any-subset


def test_rosenblatt_transform_is_uniform_and_inverts_the_sampler():
    model = continuous.random_mixture(np.random.default_rng(0), 3, 3, 2)
    u = model.rosenblatt(continuous.exact_sampler(model, 20_000, np.random.default_rng(1)))
    assert u.shape == (20_000, 6) and np.abs(u.mean(0) - 0.5).max() < 0.01
    assert np.abs(np.corrcoef(u.T) - np.eye(6)).max() < 0.03


@pytest.mark.parametrize("fault", get_args(continuous.Fault))
def test_continuous_decoder_passes_and_its_mutants_do_not(fault):
    model, rng = continuous.random_mixture(np.random.default_rng(0)), np.random.default_rng(0)
    samples = continuous.speculative(model, 20_000, rng, fault=fault)
    found = continuous.continuous_rows(samples, model, rng=rng, energy_n=100, draws=999)
    assert any(r["verdict"] == "rejected" for r in found if r["decides"]) == (fault != "none")


def test_sample_that_is_not_finite_is_an_error():
    model = continuous.random_mixture(np.random.default_rng(0))
    samples = np.zeros((2000, 3, 1))
    samples[5, 1] = np.inf
    with pytest.raises(ValueError, match="position 1, row 5: sample is not finite"):
        continuous.continuous_rows(samples, model, rng=np.random.default_rng(0))
    assert (
        continuous.continuous_rows(samples[:5], model, rng=np.random.default_rng(0))[0]["note"]
        == "not run: needs n >= 1000"
    )


def test_any_subset_conditionals_are_those_of_the_joint():
    """A consistent table's sequential law is the same whatever the order; a random table's is not, so the order is part of the law."""
    for table, same in ((tabular.consistent_table, True), (tabular.random_table, False)):
        model = tabular.TabularAnySubset(table(3, 3, torch.Generator().manual_seed(0)))
        start = Infilling(
            torch.full((1, 3), 3), torch.arange(3)[None], torch.zeros(1, dtype=torch.int64), torch.tensor([3])
        )
        ahead = tabular.joint_law(model, start).reshape(3, 3, 3)
        back = tabular.joint_law(model, start._replace(order=start.order.flip(1))).reshape(3, 3, 3)
        assert ahead.sum() == pytest.approx(1) and np.allclose(ahead, back.transpose(2, 1, 0)) == same


def test_any_subset_decoders_pass_and_their_mutants_do_not():
    found = anyorder.anyorder(n=20_000, seeds=[0], draws=999)
    assert all(r["as_required"] for r in found if r["test"] == "all four"), [
        (r["method"], r["p_value"]) for r in found if r["test"] == "all four"
    ]


def test_open_any_subset_position_is_an_error():
    target = anyorder.targets(["random 3x5"])[0]
    start = target.start(2)
    tokens = torch.where(start.tokens == target.model.mask, 0, start.tokens)
    tokens[1, 4] = target.model.mask
    with pytest.raises(ValueError, match="row 1, position 4: token 3 is not in the vocabulary"):
        tabular.codes(target.model, start, tokens)


# --- calibration


@pytest.mark.slow
def test_sizes_of_all_tests_are_nominal():
    rows, p_values = calibration.calibration(replicates=1000)
    sizes = {r["test"]: r["verdict"] for r in rows if r["layer"] == "calibration"}
    assert set(sizes.values()) == {"size ok"}, sizes
    assert set(p_values) == set(sizes)


# --- command line


def test_users_decoders_get_their_verdicts():
    """The documented example: the correct one through the command, the subtly wrong one through the call."""
    arguments = [
        "certify",
        "docs/example_decoders.py:lookahead",
        "--models",
        "small",
        "--n",
        "5000",
        "--margin",
        "0.08",
    ]
    good = subprocess.run(
        [sys.executable, "-m", "parity.equality", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert good.returncode == 0 and good.stdout.startswith("lookahead: certified lossless"), good.stdout + good.stderr
    bad = certify(main.load(f"{ROOT}/docs/example_decoders.py:hasty"), n=5_000, models="small")
    assert bad.verdict["verdict"].startswith("lossy: TV = 0.1") and bad.verdict["mismatch"]
    assert str(bad).startswith("hasty: lossy: TV = 0.1") and "(repeat, seed 1)" in str(bad)


def test_call_takes_options():
    assert certify(sjd, n=3_000, models="small", margin=0.1, window=2).verdict["verdict"] == "certified lossless"
    assert main.option("window=2") == ("window", 2) and main.option("init=random") == ("init", "random")


@pytest.mark.parametrize(
    ("name", "message"), [("nowhere.py:f", "no such file"), ("sjd", "expected MODULE:FUNCTION"), ("json:sjd", "has no")]
)
def test_unreadable_name_is_an_error(name, message):
    with pytest.raises(SystemExit, match=message):
        main.load(name)


def test_rows_file_is_json_without_nan(tmp_path):
    out = tmp_path / "rows.json"
    options = [
        "--options",
        '{"window": 2, "coupling": "shared"}',
        "--n",
        "2000",
        "--models",
        "small",
        "--draws",
        "199",
        "--pathwise",
    ]
    main.run(main.parser().parse_args(["exact", "--method", "jacobi", *options, "--out", str(out)]))
    found = json.loads(out.read_text(), parse_constant=lambda c: pytest.fail(c))
    assert {r["test"] for r in found["rows"]} >= {
        "joint G",
        "Valiant-Valiant",
        "pairs",
        "conditionals",
        "all four",
        "TV certificate",
    }
    assert {r["verdict"] for r in found["rows"] if r["test"] == "same tokens, float64"} == {"identical"}
