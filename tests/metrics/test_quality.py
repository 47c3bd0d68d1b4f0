"""Figures of images and CLIP's features equal the libraries'; too few images are named."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from cleanfid.fid import frechet_distance, get_files_features
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch_fidelity.metric_isc import isc_features_to_metric
from torch_fidelity.metric_kid import kid_features_to_metric
from torch_fidelity.metric_prc import prc_features_to_metric

from parity.embedded import WEIGHTS, scenes
from parity.metrics import caption_scores, fid, manifold, recognition
from parity.metrics.estimates import columns_of, half_jackknife
from parity.metrics.fid import fid_and_error, frechet, reference_half
from parity.metrics.manifold import kid_and_error, precision_recall
from parity.metrics.networks import clip as networks


def draw_gaussian(n: int, d: int, seed: int, shift: float = 0.0, scale: float = 1.0) -> np.ndarray:
    """Draw n vectors of d numbers with falling variance, seeded, scaled and then moved by `shift`."""
    return np.random.default_rng(seed).standard_normal((n, d)) * scale * np.arange(1, d + 1) ** -0.5 + shift


def make_sample(outputs: dict, reference: dict, fewest: int = 2) -> SimpleNamespace:
    """Make what a quality metric reads of a cell: features by network, of its images and of the reference."""
    n = len(next(iter(outputs.values()), ()))
    fields = {"reference_outputs": reference, "groups": np.arange(n), "fewest": fewest, "protocol": ""}
    return SimpleNamespace(outputs=outputs, **fields)


def compute_moments(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return x.mean(0), np.atleast_2d(np.cov(x, rowvar=False))


@settings(max_examples=20)
@given(n=st.integers(20, 60), d=st.integers(2, 12), shift=st.floats(-1, 1), scale=st.floats(0.3, 3))
def test_frechet_equals_clean_fids(n, d, shift, scale):
    x, y = draw_gaussian(n, d, 1, shift, scale), draw_gaussian(70, d, 2)
    theirs = frechet_distance(*compute_moments(x), *compute_moments(y))
    assert frechet(x, reference_half(y)) == pytest.approx(theirs, abs=1e-8)


@pytest.mark.parametrize("n", [30, 200])
def test_frechet_of_a_set_with_itself_is_zero(n):
    """The covariance of 30 rows is singular."""
    x = draw_gaussian(n, 64, 0)
    assert frechet(x, reference_half(x)) == pytest.approx(0, abs=1e-6)


def test_fid_error_is_near_the_spread_over_seeds():
    """Within a factor of two; the measured ratio is 1.1 to 1.2 (estimates.half_jackknife)."""
    y = reference_half(draw_gaussian(200, 32, 99))
    values = [frechet(draw_gaussian(64, 32, s, scale=1.2), y) for s in range(100)]
    errors = [fid_and_error(draw_gaussian(64, 32, s, scale=1.2), y, np.arange(64), count=60)[1] for s in range(5)]
    assert 0.5 < np.mean(errors) / np.std(values) < 2


def test_kid_equals_torch_fidelitys():
    """To the bit with the same seed; another seed draws other subsets."""
    x, y = draw_gaussian(50, 8, 0, 0.3), draw_gaussian(40, 8, 1)
    settings = {"kid_subsets": 20, "kid_subset_size": 20, "verbose": False}
    theirs = kid_features_to_metric(torch.from_numpy(x), torch.from_numpy(y), rng_seed=0, **settings)
    value, error = kid_and_error(x, y, subsets=20)
    assert value == theirs["kernel_inception_distance_mean"]
    # The subsets are halves of the images, for which the error is rescaled by 1.
    assert error == pytest.approx(theirs["kernel_inception_distance_std"])
    assert kid_and_error(x, y, subsets=20, seed=1)[0] != value


def compute_shares(x: np.ndarray, y: np.ndarray) -> tuple[float, ...]:
    """Compute precision and recall of features x against the reference y, with two nearest neighbours."""
    return tuple(estimate.value for estimate in precision_recall(x, y, np.arange(len(x)), count=2))


@pytest.mark.parametrize("scale", [0.05, 0.7, 1.3])
def test_precision_and_recall_equal_torch_fidelitys(scale):
    x, y = draw_gaussian(60, 4, 1, scale=scale), draw_gaussian(80, 4, 0)
    prc_settings = {"prc_neighborhood": 3, "prc_batch_size": 100, "save_cpu_ram": False, "verbose": False}
    theirs = prc_features_to_metric(torch.from_numpy(x), torch.from_numpy(y), **prc_settings)
    assert compute_shares(x, y) == (theirs["precision"], theirs["recall"])


@pytest.mark.parametrize("nearest", [8, 60])
def test_errors_of_precision_and_recall_are_those_of_half_samples(nearest, monkeypatch):
    """Of eight images a half-sample often has fewer than three neighbours, which are then sought among all."""
    monkeypatch.setattr(manifold, "NEAREST", nearest)
    x, y, groups = draw_gaussian(60, 4, 1), draw_gaussian(80, 4, 0), np.arange(60) % 6

    def compute_halves(rows: np.ndarray) -> np.ndarray:
        return np.array(compute_shares(x[rows], y))

    errors = [estimate.error for estimate in precision_recall(x, y, groups, count=20)]
    assert errors == pytest.approx(half_jackknife(compute_halves, groups, 20), rel=1e-6)


@pytest.mark.parametrize("call", [kid_and_error, compute_shares])
def test_too_few_images_are_named(call):
    with pytest.raises(ValueError, match=r"features: 3 rows"):
        call(draw_gaussian(3, 4, 0), draw_gaussian(50, 4, 1))


@pytest.mark.parametrize("n", [24, 320])
def test_inception_score_equals_torch_fidelitys(n):
    """In splits of a hundred images; a certain and even classifier scores the number of classes."""
    logits = torch.from_numpy(3 * draw_gaussian(n, 6, 0)).float()
    splits = max(1, n // 100)
    theirs = isc_features_to_metric(logits, splits=splits)
    figures = columns_of(fid.measure(make_sample({"logits": logits.numpy()}, {})))
    assert figures == {"is": theirs["inception_score_mean"], "is_sd": theirs["inception_score_std"]}
    sure = 100 * torch.eye(6).repeat(n // 6, 1)
    assert fid.inception_score(sure, 1)[0] == pytest.approx(6, rel=1e-3)


def test_figures_compare_a_cell_with_its_reference():
    x, y = draw_gaussian(20, 4, 0).astype(np.float32), draw_gaussian(30, 4, 1).astype(np.float32)
    cosine = np.linspace(0.2, 0.4, 20)
    right = np.arange(20) % 4 == 0
    cell = make_sample({"features": x, "cosine": cosine, "right": right}, {"features": y, "right": np.ones(30, bool)})
    figures = columns_of(fid.measure(cell))
    assert figures["fid"] == frechet(x, reference_half(y))
    assert figures["fid_se"] > 0
    assert figures["reference_n"] == 30
    assert columns_of(manifold.measure(cell))["kid"] == kid_and_error(x, y)[0]
    assert tuple(columns_of(manifold.measure(cell))[k] for k in ("precision", "recall")) == compute_shares(x, y)
    assert columns_of(caption_scores.measure(cell))["clip_score"] == pytest.approx(0.3)
    assert recognition.measure(cell)["right"].value == 0.25
    assert recognition.measure(cell)["real_accuracy"] == 1


def test_a_cell_without_features_has_no_quality():
    for metric in (fid, manifold, caption_scores, recognition):
        assert columns_of(metric.measure(make_sample({}, {}))) == {}
    assert columns_of(fid.measure(make_sample({"features": draw_gaussian(7, 4, 0)}, {}))) == {}


@pytest.mark.parametrize(("images", "reference"), [(1, 30), (2, 30), (3, 30), (30, 3), (30, 1)])
def test_figures_of_too_few_images_say_why(images, reference):
    outputs = {"features": draw_gaussian(images, 4, 0), "cosine": np.linspace(0.2, 0.4, images)}
    cell = make_sample(outputs, {"features": draw_gaussian(reference, 4, 1)}, fewest=2)
    reason = f"too few {'images' if images < 4 else 'reference images'}: 4 or more are needed"
    assert columns_of(manifold.measure(cell)) == {f"{name}_why": reason for name in ("kid", "precision", "recall")}
    assert ("fid" in columns_of(fid.measure(cell))) == (min(images, reference) > 1)
    assert columns_of(caption_scores.measure(cell))["clip_score"] == pytest.approx(outputs["cosine"].mean())


FILE = WEIGHTS / "discrete" / "clip.safetensors"


@pytest.fixture(scope="module")
def clip() -> networks.CLIP:
    return networks.load(FILE)


@pytest.fixture(scope="module")
def images() -> tuple[list[str], np.ndarray]:
    """Captions of 24 Scenes, and their images uint8 [24, H, W, 3]."""
    drawn = [scenes.draw_example(seed) for seed in range(24)]
    return [c for c, _ in drawn], np.stack([p for _, p in drawn])


def test_features_equal_those_of_clean_fid_from_files(clip, images, tmp_path: Path):
    """More than ten images, so that sorting unpadded names would differ."""
    pixels = images[1]
    files = [str(tmp_path / f"{row:06d}.png") for row in range(len(pixels))]
    for file, image in zip(files, pixels, strict=True):
        Image.fromarray(image).save(file)
    settings = {"num_workers": 0, "batch_size": 64, "device": torch.device("cpu"), "verbose": False}
    with torch.inference_mode():
        theirs = get_files_features(
            files, lambda x: clip.encode_image(x / 127.5 - 1), custom_fn_resize=lambda x: x, **settings
        )
    assert np.array_equal(networks.image_features(pixels, clip), theirs)
    assert not np.array_equal(networks.image_features(pixels[::-1].copy(), clip), theirs)


def test_smaller_images_are_enlarged_by_repeating_pixels(clip, images):
    """An image that is larger, or whose side does not divide the network's, is refused."""
    small = scenes.reduce_images(images[1][:3], 32)
    large = networks.enlarge(small, 64)
    assert large.shape == (3, 64, 64, 3)
    assert np.array_equal(scenes.reduce_images(large, 32), small)
    assert np.array_equal(networks.image_features(small, clip), networks.image_features(large, clip))
    assert not np.array_equal(networks.image_features(small, clip), networks.image_features(images[1][:3], clip))
    for side in (48, 128):
        with pytest.raises(ValueError, match="allowed: 64x64"):
            networks.image_features(np.zeros((1, side, side, 3), np.uint8), clip)


def test_cosine_is_of_the_images_own_caption(clip, images):
    captions, pixels = images
    features = networks.cell_features(np.array(captions), pixels, clip)
    f = features["features"]
    text = networks.caption_features(captions, clip)
    expected = (f * text).sum(1) / np.linalg.norm(f, axis=1) / np.linalg.norm(text, axis=1)
    assert np.allclose(features["cosine"], expected, atol=1e-5)
    mismatched = networks.cell_features(np.array(captions[::-1]), pixels, clip)
    assert mismatched["cosine"].mean() < features["cosine"].mean() - 0.1
