"""Features by CLIP equal those that clean-fid computes from files; sizes and captions of pictures."""

from pathlib import Path

import numpy as np
import pytest
import torch
from cleanfid.fid import get_files_features
from PIL import Image

from parity.embedded import WEIGHTS, scenes
from parity.metrics.networks import clip as networks

FILE = WEIGHTS / "discrete" / "clip.safetensors"


@pytest.fixture(scope="module")
def clip() -> networks.CLIP:
    return networks.load(FILE)


@pytest.fixture(scope="module")
def pictures() -> tuple[list[str], np.ndarray]:
    """Captions of 24 Scenes, and their pictures uint8 [24, H, W, 3]."""
    drawn = [scenes.draw_example(seed) for seed in range(24)]
    return [c for c, _ in drawn], np.stack([p for _, p in drawn])


def test_features_equal_those_of_clean_fid_from_files(clip, pictures, tmp_path: Path):
    """More than ten pictures, so that sorting unpadded names would differ."""
    pixels = pictures[1]
    files = [str(tmp_path / f"{row:06d}.png") for row in range(len(pixels))]
    for file, picture in zip(files, pixels, strict=True):
        Image.fromarray(picture).save(file)
    settings = {"num_workers": 0, "batch_size": 64, "device": torch.device("cpu"), "verbose": False}
    with torch.inference_mode():
        theirs = get_files_features(
            files, lambda x: clip.encode_image(x / 127.5 - 1), custom_fn_resize=lambda x: x, **settings
        )
    assert np.array_equal(networks.picture_features(pixels, clip), theirs)
    assert not np.array_equal(networks.picture_features(pixels[::-1].copy(), clip), theirs)


def test_smaller_pictures_are_enlarged_by_repeating_pixels(clip, pictures):
    """A picture that is larger, or whose side does not divide the network's, is refused."""
    small = scenes.reduce_pictures(pictures[1][:3], 32)
    large = networks.enlarge(small, 64)
    assert large.shape == (3, 64, 64, 3)
    assert np.array_equal(scenes.reduce_pictures(large, 32), small)
    assert np.array_equal(networks.picture_features(small, clip), networks.picture_features(large, clip))
    assert not np.array_equal(networks.picture_features(small, clip), networks.picture_features(pictures[1][:3], clip))
    for side in (48, 128):
        with pytest.raises(ValueError, match="allowed: 64x64"):
            networks.picture_features(np.zeros((1, side, side, 3), np.uint8), clip)


def test_cosine_is_of_the_pictures_own_caption(clip, pictures):
    captions, pixels = pictures
    features = networks.cell_features(np.array(captions), pixels, clip)
    f = features["features"]
    text = networks.caption_features(captions, clip)
    expected = (f * text).sum(1) / np.linalg.norm(f, axis=1) / np.linalg.norm(text, axis=1)
    assert np.allclose(features["cosine"], expected, atol=1e-5)
    mismatched = networks.cell_features(np.array(captions[::-1]), pixels, clip)
    assert mismatched["cosine"].mean() < features["cosine"].mean() - 0.1
