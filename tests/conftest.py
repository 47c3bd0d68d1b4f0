"""Fixtures for all tests of the workflow's package."""

import copy
import hashlib
from dataclasses import asdict

import pytest
from hypothesis import HealthCheck, settings

# how long an example takes fails nothing
settings.register_profile("parity", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("parity")


@pytest.fixture
def run_main(monkeypatch):
    """A function that runs a command's `main` with arguments, in this process."""

    def run(main, *arguments):
        monkeypatch.setattr("sys.argv", ["command", *map(str, arguments)])
        main()

    return run


@pytest.fixture
def all_weights(tmp_path, monkeypatch):
    """A folder of weights in place of the package's, as after `recipes install`; the draft model and the 8x8 grid are
    small and random. With the digests of the model and of SHA256SUMS from before they were added."""
    import torch

    from parity.experiment import weights
    from parity.experiment.schema import ModelSpec
    from parity.models.discrete.llamagen import LlamaGenConfig, Transformer
    from parity.train.loop import publish
    from recipes.discrete import LLAMAGENS

    folder = tmp_path / "weights"
    source = weights.EMBEDDED
    sums, speculators = [], []
    folder.mkdir()
    for line in (source / "SHA256SUMS").read_text().splitlines():
        if line.split()[1] not in ("draft.safetensors", "llamagen8.safetensors"):
            is_speculator = line.split()[1] in ("drafter.safetensors", "heads.safetensors")
            (speculators if is_speculator else sums).append(line)
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
    (folder / "SHA256SUMS").write_text("\n".join([*sums, *speculators]) + "\n")
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
