"""`parity train`: speculators of a checkpoint, from its own samples, used by the decoders that need them."""

import json
from functools import partial
from pathlib import Path

import pandas as pd
import pytest
import torch
import yaml
from safetensors.torch import load_file

import parity
from parity.base.errors import ParityError
from parity.experiment.options import options
from parity.stand_ins import make_entry
from parity.train import __main__ as command
from parity.train import auto, loop, speculators
from tests.train.conftest import Killed, kill_at, run

FEW = ("--steps", 4, "--batch", 4, "--images", 8, "--drawn", 4, "--device", "cpu")
ROOT = Path(__file__).parents[2]
CAPTIONS = [str(i) for i in range(16)]  # which are classes, too
SAMPLING = {"guidance": 2.0, "temperature": 0.9, "top_k": 40}


@pytest.fixture(autouse=True)
def evaluated_once(monkeypatch):
    """Evaluate a speculator in the end alone."""
    monkeypatch.setattr(command, "EVALUATIONS", 1)
    monkeypatch.setattr(speculators, "DECODED", 2)
    monkeypatch.setattr(speculators, "HELD_OUT", 4)


def write_experiment(layout: str, folder: Path, **sizes) -> Path:
    """Write a stand-in and an experiment with it as the model "m"; returns the experiment's file."""
    (folder / "captions.txt").write_text("\n".join(CAPTIONS) + "\n")
    image = {"prompts": {"file": str(folder / "captions.txt"), "limit": 16, "max_words": 119}, "sampling": SAMPLING}
    entry = make_entry(layout, folder / "model", **sizes)
    content = {"experiment": "e", "models": {"m": entry}, "image": {**image, "methods": {"ar": [{}]}}}
    file = folder / "m.yaml"
    file.write_text(yaml.safe_dump(content))
    return file


def decode(generator, method: str) -> list:
    """Decode two captions by a method, with the options of the experiment."""
    options = generator.config.image.methods[method][0]
    return generator.generate(CAPTIONS[:2], method=method, seed=5, **options)


@pytest.mark.parametrize("kind", ["heads", *(pytest.param(k, marks=pytest.mark.long) for k in ("draft", "drafter"))])
def test_a_killed_training_goes_on_and_its_speculator_decodes(kind, tmp_path, monkeypatch):
    """The weights equal those of an undisturbed run, what was drawn is not drawn again, and the decoder that uses the
    speculator, by the experiment that was written, draws plain decoding's tokens."""
    monkeypatch.setattr(loop, "fit", partial(loop.fit, saved_every=0))
    if kind == "draft":  # there is no room for the target's features, so they are computed at each reading
        monkeypatch.setattr(speculators, "KEPT", 0)
    file = write_experiment("llamagen_c2i", tmp_path, side=4)
    run(monkeypatch, kind, "--configfile", file, "--out", "whole", *FEW)
    with monkeypatch.context() as patch:
        kill_at(patch, speculators.Lesson, "learn", 3)
        with pytest.raises(Killed):
            run(patch, kind, "--configfile", file, "--out", "killed", *FEW)
    assert Path("killed", f"{kind}.pt").exists()
    drawn = {f: f.stat().st_mtime_ns for f in Path("killed").rglob("*.npz")}
    run(monkeypatch, kind, "--configfile", file, "--out", "killed", *FEW)
    assert drawn
    assert drawn.items() <= {f: f.stat().st_mtime_ns for f in Path("killed").rglob("*.npz")}.items()
    whole, killed = (load_file(Path(out, f"{kind}.safetensors")) for out in ("whole", "killed"))
    assert all(torch.equal(whole[name], killed[name]) for name in whole)
    record = json.loads(Path("whole", f"{kind}.json").read_text())
    assert record["log"][-1]["equal"] == 1
    assert record["log"][-1]["passes"] <= 16
    assert f"# {kind} of m" in Path("whole", f"{kind}.md").read_text()
    generator = parity.load("m", Path("whole", f"{kind}.yaml"))
    plain, fast = (decode(generator, method) for method in ("ar", speculators.METHODS[kind]))
    assert all(torch.equal(a.tokens, b.tokens) for a, b in zip(plain, fast, strict=True))


def test_training_lowers_the_divergence(tmp_path, monkeypatch):
    file = write_experiment("llamagen_c2i", tmp_path, side=4)
    monkeypatch.setattr(command, "EVERY", 12)
    monkeypatch.setattr(command, "EVALUATIONS", 2)
    run(monkeypatch, "heads", "--configfile", file, "--out", "o", *FEW[2:], "--steps", 24)
    log = [row["right"] for row in json.loads(Path("o/heads.json").read_text())["log"] if "right" in row]
    assert log[-1] < 0.98 * log[0]


@pytest.mark.long
@pytest.mark.parametrize("layout", ["janus", "chameleon"])
@pytest.mark.parametrize("kind", ["heads", "drafter"])
def test_language_models_get_heads_and_drafters(layout, kind, tmp_path, monkeypatch):
    """Forced tokens of a grammar (Lumina-mGPT's lines) are left out of what is learnt."""
    file = write_experiment(layout, tmp_path)
    run(monkeypatch, kind, "--configfile", file, "--out", "o", *FEW)
    assert json.loads(Path(f"o/{kind}.json").read_text())["log"][-1]["equal"] == 1
    generator = parity.load("m", Path(f"o/{kind}.yaml"))
    plain, fast = (decode(generator, method) for method in ("ar", speculators.METHODS[kind]))
    assert all(torch.equal(a.tokens, b.tokens) for a, b in zip(plain, fast, strict=True))


def test_wrong_requests_are_one_line(tmp_path, monkeypatch):
    file = write_experiment("janus", tmp_path)
    for arguments, line in (
        (("draft", "--configfile", file), "draft: none is trained for m, of janus; allowed: heads, drafter"),
        (("heads", "--configfile", file, "--model", "n"), "--model 'n': .* allowed: m"),
        (("heads", "--configfile", file, "--steps", 0), "--.steps = 0: allowed"),
        (("heads", "--configfile", file, "--layers", 2), "--layers: allowed for draft alone"),
        ((), "kind: none; allowed: heads, draft, drafter, or --auto"),
    ):
        with pytest.raises(ParityError, match=line):
            run(monkeypatch, *arguments, "--out", "o", "--device", "cpu")
    assert not Path("o").exists()


def test_a_table_says_what_gains_most_before_anything_is_trained(tmp_path, monkeypatch, capsys):
    file = write_experiment("llamagen_c2i", tmp_path, side=4)
    run(monkeypatch, "--auto", "--configfile", file, "--device", "cpu")
    printed = capsys.readouterr().out
    assert all(name in printed for name in ("mtj_heads", "mtj_draft", "eagle", "mtj ", "Predicted to gain most"))


def test_predictions_are_from_the_passes_that_the_docs_show():
    counts = pd.read_csv(ROOT / "docs/figures/full.csv").query("role == 'method'")
    chosen = [(row.method, json.loads(row.options)) for row in counts.itertuples()]
    for method, (best, _) in auto.COUNTED.items():
        rows = [row == (method, options("discrete", method, auto.NODES[method])) for row in chosen]
        assert counts.nfe[rows].item() / 256 == pytest.approx(best, abs=5e-4), method
