"""The training loop that every recipe shares."""

from itertools import count
from types import SimpleNamespace

import torch
from torch import nn

from parity.embedded import training


def fit(checkpoint, stop=None, hidden=lambda name: name == "net.0.weight"):
    """Weights and figures of a small run of eight steps, killed when it reports step `stop`."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))

    def loss(step):
        x = torch.randn(64, 4, generator=torch.Generator().manual_seed(step))
        return (net(x) - x[:, :2]).square().mean(), {}

    rows, seen = (
        training.train({"net": net}, loss, steps=8, peak=0.05, checkpoint=checkpoint, warmup=2, every=2, average=0.5, hidden=hidden),
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
