"""The training loop that every recipe shares."""

from itertools import count
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from parity.embedded import scenes
from parity.experiment import config
from parity.experiment.config import EMBEDDED
from parity.models import checkpoints
from parity.models.discrete.eagle import FeatureDrafter
from parity.models.discrete.llamagen import LlamaGenConfig, Transformer, read_config
from parity.training import drafter as train_drafter
from parity.training import loop as training
from parity.training import recipe
from parity.training.llamagen import CONFIG, CONFIGS, load_vq, scene_tokens
from parity.training.loop import publish


def fit(checkpoint, stop=None, hidden=lambda name: name == "net.0.weight"):
    """Weights and figures of a small run of eight steps, killed when it reports step `stop`."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))

    def loss(step):
        x = torch.randn(64, 4, generator=torch.Generator().manual_seed(step))
        return (net(x) - x[:, :2]).square().mean(), {}

    rows, seen = (
        training.train(
            {"net": net}, loss, steps=8, peak=0.05, checkpoint=checkpoint, warmup=2, every=2, average=0.5, hidden=hidden
        ),
        [],
    )
    for row in rows:
        seen.append(row)
        if row["step"] == stop:
            rows.close()
            break
    return [p.detach().clone() for p in net.parameters()], seen


def test_a_killed_training_goes_on_as_if_it_had_not_been(tmp_path, monkeypatch):
    """Both optimisers' states, the mean of the weights and the schedule come back from the checkpoint."""
    clock = count(0, 200)  # every report is a few minutes after the last, so each is followed by a checkpoint
    monkeypatch.setattr(training, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    whole, rows = fit(tmp_path / "whole.pt")
    fit(tmp_path / "killed.pt", stop=6)
    resumed, rest = fit(tmp_path / "killed.pt")
    assert [r["step"] for r in rest] == [6, 8] and rows[-1]["loss"] < rows[0]["loss"]
    assert all(torch.equal(a, b) for a, b in zip(whole, resumed, strict=True))
    adam, _ = fit(tmp_path / "adam.pt", hidden=lambda name: False)
    assert not torch.equal(whole[0], adam[0])  # the matrix that `hidden` names has another optimiser


def test_the_sizes_of_llamagen_share_what_they_must():
    """The draft model speaks of the same tokens after the same prefix; the 8x8 grid is the same network."""
    assert set(CONFIGS) == set(recipe.LLAMAGENS) <= set(recipe.CARDS)
    with torch.device("meta"):
        count = {name: sum(p.numel() for p in Transformer(c).parameters()) for name, c in CONFIGS.items()}
    draft = CONFIGS["draft"]
    assert all(getattr(draft, x) == getattr(CONFIG, x) for x in ("vocab", "grid", "prefix", "caption_dim"))
    assert all(c.dim // c.heads % 4 == 0 for c in CONFIGS.values()) and count["draft"] < count["llamagen"] / 6
    assert count["llamagen8"] == count["llamagen"] and CONFIGS["llamagen8"].grid == 8


def test_a_grid_of_half_the_size_is_made_of_pictures_reduced_by_means(tmp_path):
    """Tokens of each grid in a file of its own; what is in one is not read for the other."""
    pixels = np.stack([scenes.example(i)[1] for i in range(3)])
    small = scenes.reduced(pixels, 32)
    assert np.abs(small.astype(float) - pixels.astype(float).reshape(3, 32, 2, 32, 2, 3).mean((2, 4))).max() <= 0.5
    file = EMBEDDED / "vq.safetensors"
    found = {grid: scene_tokens(tmp_path, file, pixels, "x", grid) for grid in (16, 8, 16)}
    assert found[16].shape == (3, 256) and found[8].shape == (3, 64)
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(found[8], load_vq(file).encode(training.to_pictures(small)))
    assert sorted(f.name for f in tmp_path.iterdir()) == ["tokens-x-8.npy", "tokens-x.npy"]


def test_a_drafter_names_the_target_it_was_trained_on(tmp_path):
    """A few steps on eight pictures: its file loads beside its target and beside no other."""
    files = {
        k: config.EMBEDDED / f"{f}.safetensors"
        for k, f in (("vq_file", "vq"), ("target_file", "llamagen"), ("t5_file", "t5"))
    }
    settings = {"batch": 2, "examples": 8, "seed": 0, "processes": 1}
    out = tmp_path / "drafter.safetensors"
    log = train_drafter.main(work=tmp_path, out=out, steps=8, **files, **settings)
    assert log[-1]["step"] == 8 and 0 <= log[-1]["agree_0"] <= 1
    config.check_companion("m", config.ModelSpec(), out, "drafter")
    header = read_config(out)
    other = FeatureDrafter(LlamaGenConfig(**{k: v for k, v in header.items() if k != "target"}))
    checkpoints.load_weights(other, out)
    publish(other, tmp_path / "other.safetensors", {**header, "target": "0" * 64})
    with pytest.raises(config.ConfigError, match="trained for another target: the SHA-256"):
        config.check_companion("m", config.ModelSpec(), tmp_path / "other.safetensors", "drafter")
