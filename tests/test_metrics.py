"""Properties of the figures: known values on data whose answer is known, orientation, order, and what a single image can tell."""

import numpy as np
import pytest
import torch
from cleanfid.fid import frechet_distance
from hypothesis import given, settings
from hypothesis import strategies as st

from parity.base.files import Shard
from parity.base.noise import batch_noise
from parity.decode.discrete import decode
from parity.decoders.discrete.ar import ar
from parity.decoders.discrete.sjd import sjd
from parity.embedded import scenes
from parity.metrics import features, spread
from parity.metrics.cell import cell_metrics
from parity.metrics.clip import clip_score
from parity.metrics.fid import fid_and_error, frechet, reference_half
from parity.metrics.kid import kid_and_error
from parity.metrics.likelihood import likelihood, token_log_probabilities
from parity.metrics.manifold import precision_recall, precision_recall_errors
from parity.metrics.networks import clip as embedded_clip
from parity.metrics.speed import batches, speed, step_compression
from parity.models.discrete.tabular import TabularModel, joint, random_table


def gaussian(n: int, d: int, seed: int, shift: float = 0.0, scale: float = 1.0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, d)) * scale * np.arange(1, d + 1) ** -0.5 + shift


@pytest.fixture(scope="module")
def clip() -> torch.nn.Module:
    torch.manual_seed(0)
    return embedded_clip.build()


@pytest.fixture(scope="module")
def pictures() -> tuple[list[str], np.ndarray]:
    drawn = [scenes.example(seed) for seed in range(24)]
    return [c for c, _ in drawn], np.stack([p for _, p in drawn])


def shard(rows: int = 6, batch: int = 4, method: str = "sjd") -> Shard:
    """A real decoding of a tabular model, as the workflow would store it."""
    table = random_table(3, 6, torch.Generator().manual_seed(0))
    parts = []
    for first in range(0, rows, batch):
        ids = [f"p{i}/0" for i in range(first, min(rows, first + batch))]
        model = TabularModel(table, 6, len(ids), width=3)
        noise = batch_noise(0, ids, "cpu", torch.float64)
        start = torch.zeros(len(ids), dtype=torch.int64)
        steps = sjd(model, start, noise=noise, window=3) if method == "sjd" else ar(model, start, noise=noise)
        parts.append((ids, decode(model, steps, len(ids))))
    wide = max(d.passes for _, d in parts)

    def join(name):
        return np.concatenate([getattr(d, name).numpy() for _, d in parts])

    return Shard(
        ids=np.array([i for ids, _ in parts for i in ids]),
        captions=np.array(["a small red circle on a blue background"] * rows),
        tokens=join("tokens").astype(np.int32),
        step=join("step"),
        nfe=join("nfe"),
        nodes=join("nodes"),
        kept=np.concatenate([np.pad(d.kept.numpy(), ((0, 0), (0, wide - d.passes))) for _, d in parts]),
        seconds=np.concatenate([np.full(len(ids), d.seconds) for ids, d in parts]),
        batch=np.concatenate([np.full(len(ids), len(ids)) for ids, _ in parts]),
        passes=np.concatenate([np.full(len(ids), d.passes) for ids, d in parts]),
        provenance={"device": "cpu", "dtype": "float64"},
    )


@settings(max_examples=20, deadline=None)
@given(n=st.integers(20, 60), d=st.integers(2, 12), shift=st.floats(-1, 1), scale=st.floats(0.3, 3))
def test_frechet_is_that_of_clean_fid(n, d, shift, scale):
    x, y = gaussian(n, d, 1, shift, scale), gaussian(70, d, 2)
    theirs = frechet_distance(
        x.mean(0), np.atleast_2d(np.cov(x, rowvar=False)), y.mean(0), np.atleast_2d(np.cov(y, rowvar=False))
    )
    assert frechet(x, reference_half(y)) == pytest.approx(theirs, abs=1e-8)


@pytest.mark.parametrize("n", [30, 200])
def test_frechet_of_a_set_with_itself_is_zero_also_where_the_covariance_is_singular(n):
    x = gaussian(n, 64, 0)
    assert frechet(x, reference_half(x)) == pytest.approx(0, abs=1e-6)


def test_frechet_of_a_shift_is_its_square():
    x = gaussian(50, 8, 0)
    assert frechet(x + 0.5, reference_half(x)) == pytest.approx(8 * 0.25, abs=1e-8)


def test_fid_error_is_near_the_spread_over_seeds():
    """Twice either way; the measured ratio is 1.1 to 1.2 (spread.half_jackknife)."""
    y = reference_half(gaussian(200, 32, 99))
    values = [frechet(gaussian(64, 32, s, scale=1.2), y) for s in range(100)]
    errors = [fid_and_error(gaussian(64, 32, s, scale=1.2), y, np.arange(64), count=60)[1] for s in range(5)]
    assert 0.5 < np.mean(errors) / np.std(values) < 2


def test_kid_is_zero_on_average_for_one_law_and_not_for_two():
    same = [kid_and_error(gaussian(64, 8, s), gaussian(64, 8, s + 100), subsets=30)[0] for s in range(20)]
    assert abs(np.mean(same)) < 3 * np.std(same) / np.sqrt(20) + 1e-12
    value, error = kid_and_error(gaussian(64, 8, 0, shift=1), gaussian(64, 8, 1), subsets=30)
    assert value > 5 * error > 0


def test_precision_is_of_the_generated_and_recall_of_the_reference():
    """Generated images inside the middle of the reference: all precise, little covered. With the sides swapped: the other way round."""
    wide, narrow = gaussian(200, 2, 0), gaussian(200, 2, 1, scale=0.05)
    precision, recall = precision_recall(narrow, wide)
    assert precision == 1 and recall < 0.2
    assert precision_recall(wide, narrow) == (recall, precision)


def test_precision_and_recall_errors_are_near_the_spread_over_seeds():
    y = gaussian(150, 16, 99)
    values = np.std([precision_recall(gaussian(64, 16, s, scale=1.3), y) for s in range(80)], 0)
    errors = np.mean(
        [precision_recall_errors(gaussian(64, 16, s, scale=1.3), y, np.arange(64), count=60) for s in range(5)], 0
    )
    assert (errors / values > 0.5).all() and (errors / values < 2).all()


@pytest.mark.parametrize("call", [kid_and_error, precision_recall])
def test_too_few_images_are_named(call):
    with pytest.raises(ValueError, match=r"features: 3 rows"):
        call(gaussian(3, 4, 0), gaussian(50, 4, 1))


def test_perplexity_of_a_tabular_model_is_that_of_its_enumerated_joint():
    """Every sequence once, each weighted by its own probability: exp of the entropy per token."""
    V, L = 3, 4
    table = random_table(V, L, torch.Generator().manual_seed(1))
    law = joint(TabularModel(table, L, V**L), V, L)
    sequences = torch.cartesian_prod(*[torch.arange(V)] * L)
    logp = token_log_probabilities(TabularModel(table, L, V**L), sequences)
    assert torch.allclose(logp.sum(1).exp(), law, atol=1e-12)
    drawn = torch.multinomial(law, 20_000, replacement=True, generator=torch.Generator().manual_seed(2))
    found = likelihood(logp[drawn].numpy(), np.arange(20_000))
    entropy = float(torch.exp(-(law * law.log()).sum() / L))
    assert abs(found["perplexity"] - entropy) < 4 * found["perplexity_se"]
    assert found["excluded"] == 0


def test_forced_positions_have_no_likelihood():
    V, L = 3, 4
    forced = torch.tensor([-1, 2, -1, -1])
    model = TabularModel(random_table(V, L, torch.Generator().manual_seed(1)), L, 2, forced=forced)
    logp = token_log_probabilities(model, torch.tensor([[0, 2, 1, 1], [1, 2, 0, 0]])).numpy()
    assert np.isnan(logp[:, 1]).all() and np.isfinite(logp[:, [0, 2, 3]]).all()
    assert likelihood(logp, np.arange(2))["logp_mean"] == pytest.approx(np.nanmean(logp))


def test_excluded_tokens_are_counted_and_do_not_make_figures_infinite():
    logp = np.array([[-1.0, -np.inf], [-1.0, np.nan]])
    found = likelihood(logp, np.arange(2))
    assert found["excluded"] == pytest.approx(1 / 3) and found["logp_mean"] == -1


def test_plain_sampling_takes_one_pass_a_token():
    found = speed(shard(method="ar"))
    assert found["nfe"] == 6 and found["nfe_se"] == 0
    assert found["step_compression"] == found["step_compression_low"] == found["step_compression_high"] == 1
    assert found["nodes_per_pass"] == found["nodes_per_token"] == 1


def test_speed_counts_a_batch_once():
    s = shard(rows=6, batch=4)
    s.seconds = np.array([2.0] * 4 + [1.0] * 2)
    s.passes = np.array([5] * 4 + [4] * 2)
    found = speed(s)
    assert batches(s).tolist() == [0] * 4 + [1] * 2
    assert found["batches"] == 2 and found["batch"] == 4
    assert found["seconds_per_image"] == pytest.approx(3 / 6)
    assert found["tokens_per_second"] == pytest.approx(36 / 3)
    assert found["ms_per_forward"] == pytest.approx(3000 / 9)
    assert found["step_compression_low"] <= step_compression(s).mean() <= found["step_compression_high"]


def test_forced_tokens_are_not_counted_as_decoded():
    s = shard()
    forced = np.arange(6) == 5
    assert (step_compression(s, forced) * s.nfe == 5).all()
    s.step = np.where(forced, 0, s.step)  # filled in before any pass
    assert (step_compression(s) * s.nfe == 5).all()


def test_error_of_a_mean_is_sd_over_root_n_and_counts_prompts_not_images():
    x = np.random.default_rng(0).standard_normal(50)
    mean, error = spread.mean_and_error(x, np.arange(50))
    assert mean == pytest.approx(x.mean()) and error == pytest.approx(x.std(ddof=1) / np.sqrt(50))
    assert spread.mean_and_error(x.repeat(4), np.arange(50).repeat(4))[1] == pytest.approx(error)
    assert np.isnan(spread.mean_and_error(x, np.zeros(50, dtype=int))[1])


def test_bootstrap_interval_covers():
    """Nominal 95%; under 85% of 200 has probability below 1e-6 at 95%."""
    hits = 0
    for s in range(200):
        low, high = spread.bootstrap_interval(
            np.random.default_rng(s).standard_normal(40), np.arange(40), count=400, seed=s
        )
        hits += low <= 0 <= high
    assert hits >= 170


def test_half_jackknife_of_a_mean_is_its_standard_error():
    x = np.random.default_rng(0).standard_normal(61)
    error = spread.half_jackknife(lambda rows: x[rows].mean(), np.arange(61), count=4000)
    assert error[0] == pytest.approx(x.std(ddof=1) / np.sqrt(61), rel=0.05)


def test_features_are_the_networks_own_in_the_order_given(clip, pictures):
    """More than ten pictures, so that a sorted list of unpadded names would differ; the PNG detour changes no value."""
    pixels = pictures[1]
    found = features.picture_features(pixels, clip, batch=7)
    clip.eval()
    with torch.inference_mode():
        direct = clip.encode_image(torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 127.5 - 1).numpy()
    assert found.dtype == np.float32 and np.abs(found - direct).max() < 1e-4


def test_smaller_pictures_are_enlarged_by_repeating_pixels(clip, pictures):
    """Not one that is larger, or whose side does not divide the network's."""
    small = scenes.reduced(pictures[1][:3], 32)
    large = features.enlarged(small, 64)
    assert large.shape == (3, 64, 64, 3) and np.array_equal(scenes.reduced(large, 32), small)
    assert np.array_equal(features.picture_features(small, clip), features.picture_features(large, clip))
    assert not np.array_equal(features.picture_features(small, clip), features.picture_features(pictures[1][:3], clip))
    for shape in ((1, 48, 48, 3), (1, 128, 128, 3), (1, 32, 64, 3)):
        with pytest.raises(ValueError, match="allowed: 64x64"):
            features.picture_features(np.zeros(shape, dtype=np.uint8), clip)


def test_cosine_belongs_to_the_pictures_own_caption(clip, pictures):
    captions, pixels = pictures
    ids = np.array([f"{i}/0" for i in range(len(captions))])
    found = features.cell_features(ids, np.array(captions), pixels, clip)
    text = features.caption_features(captions, clip)
    f = found["features"]
    expected = (f * text).sum(1) / np.linalg.norm(f, axis=1) / np.linalg.norm(text, axis=1)
    assert np.allclose(found["cosine"], expected, atol=1e-5)
    swapped = features.cell_features(ids[::-1], np.array(captions[::-1]), pixels[::-1], clip)
    assert np.allclose(swapped["cosine"][::-1], found["cosine"], atol=1e-5)
    assert clip_score(found["cosine"], np.arange(len(ids)))["clip_score"] == pytest.approx(found["cosine"].mean())


def test_pictures_of_the_wrong_kind_are_named(clip):
    with pytest.raises(ValueError, match=r"float64 \(2, 8, 8, 3\); allowed: uint8"):
        features.picture_features(np.zeros((2, 8, 8, 3)), clip)


def test_a_cells_row_is_flat_and_complete(clip, pictures):
    captions, pixels = pictures
    s = shard(rows=24, batch=24)
    s.captions = np.array(captions)
    found = features.cell_features(s.ids, s.captions, pixels, clip)
    y = features.picture_features(np.stack([scenes.example(seed)[1] for seed in range(100, 140)]), clip)
    logp = np.log(np.full(s.tokens.shape, 0.25))
    row = cell_metrics(s, found, y, reference_half(y), logp)
    for name in (
        "nfe",
        "fid",
        "kid",
        "precision",
        "recall",
        "clip_score",
        "perplexity",
        "logp_mean",
        "seconds_per_image",
        "tokens_per_second",
    ):
        assert row[name] is not None and f"{name}_se" in row, name
    assert row["perplexity"] == pytest.approx(4)
    assert row["seconds_per_image_se"] is None  # one batch shows no spread
    assert not any(isinstance(v, float) and not np.isfinite(v) for v in row.values())
    assert cell_metrics(s, found, y, reference_half(y), logp) == row  # seeded
    with pytest.raises(ValueError, match="ids"):
        cell_metrics(s, {**found, "ids": found["ids"][::-1]}, y, reference_half(y), logp)
    assert "fid" not in cell_metrics(s, None, None, None, None)
