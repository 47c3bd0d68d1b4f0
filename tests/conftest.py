"""Fixtures for all tests, which run on one thread, as jobs run side by side and results must not depend on it; and on
the CPU, unless CUDA_VISIBLE_DEVICES is set: `CUDA_VISIBLE_DEVICES=0 pytest tests/decode/test_cuda.py`."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import copy
import hashlib
from dataclasses import asdict

import pytest
import torch

from parity.base.machine import cores

torch.set_num_threads(1)

# Files whose few tests take minutes. If one of them started last, the other worker would have nothing to do.
LONG = [
    f"tests/{name}.py"
    for name in (
        "workflow/test_interruptions", "workflow/test_stale", "workflow/test_five_steps", "workflow/test_families",
        "workflow/test_workflow", "workflow/test_one_place", "workflow/test_elsewhere", "recipes/test_recipes",
        "equality/test_statistics", "equality/test_long", "report/test_page", "models/test_stand_ins",
    )
] + ["certify/tests/test_transformers.py"]  # fmt: skip


@pytest.hookimpl(optionalhook=True)  # optional, as tests run without xdist, too
def pytest_xdist_auto_num_workers(config):
    """Return how many workers `-n auto` means: one more than there are cores, at most 8, as many tests wait for
    processes that they start; each takes up to 2 GB."""
    return min(8, cores() + 1)


def pytest_collection_modifyitems(items):
    """Put the longest files first and keep the order of the rest."""
    rank = {file: i for i, file in enumerate(LONG)}
    items.sort(key=lambda item: rank.get(item.nodeid.partition("::")[0], len(LONG)))


@pytest.fixture
def all_weights(tmp_path, monkeypatch):
    """A folder of weights in place of the package's, as after `recipes install`; the draft model and the 8x8 grid are
    small and random. With the digests of the model and of SHA256SUMS from before they were added."""
    from parity.experiment import weights
    from parity.experiment.schema import ModelSpec
    from parity.models.discrete.llamagen import LlamaGenConfig, Transformer
    from recipes.discrete import LLAMAGENS
    from recipes.loop import publish

    folder = tmp_path / "weights"
    source = weights.EMBEDDED
    sums, companions = [], []
    folder.mkdir()
    for line in (source / "SHA256SUMS").read_text().splitlines():
        if line.split()[1] not in ("draft.safetensors", "llamagen8.safetensors"):
            is_companion = line.split()[1] in ("drafter.safetensors", "heads.safetensors")
            (companions if is_companion else sums).append(line)
            (folder / line.split()[1]).symlink_to(source / line.split()[1])
    (folder / "SHA256SUMS").write_text("\n".join(sums) + "\n")
    digests = (
        weights.compute_revision(ModelSpec(family="llamagen")),
        hashlib.sha256((folder / "SHA256SUMS").read_bytes()).hexdigest()[:8],
    )
    torch.manual_seed(0)
    for i, name in enumerate(("draft", "llamagen8")):
        config = LlamaGenConfig(**{**asdict(LLAMAGENS[name]), "dim": 32, "layers": 1, "heads": 2})
        net = Transformer(config)
        torch.nn.init.normal_(net.output.weight, std=0.3)
        publish(net, folder / f"{name}.safetensors", asdict(config))
        digest = hashlib.sha256((folder / f"{name}.safetensors").read_bytes()).hexdigest()
        sums.insert(3 + i, f"{digest}  {name}.safetensors")
    (folder / "SHA256SUMS").write_text("\n".join([*sums, *companions]) + "\n")
    monkeypatch.setattr(weights, "EMBEDDED", folder)
    return folder, digests


@pytest.fixture(scope="session")
def make_stand_in(tmp_path_factory):
    """A function that returns a stand-in's configuration entry by name, with absolute paths, and writes each once."""
    from parity.stand_ins import make_entry

    folder = tmp_path_factory.mktemp("stand_ins")
    entries = {}

    def make_once(name):
        """Return a copy of a stand-in's entry; its files are written the first time."""
        if name not in entries:
            entries[name] = make_entry(name, folder / name)
        return copy.deepcopy(entries[name])

    return make_once
