"""`parity models pin` gets commits and digests from the hub without downloading weights."""

import hashlib

import pytest
import yaml

from parity.base.digests import sha256
from parity.base.errors import ConfigError, ParityError
from parity.experiment import pins
from parity.models import pin

COMMIT = "a" * 40
SHARDS = ("model-1-of-2.safetensors", "model-2-of-2.safetensors")


def list_folder(folder):
    """List a folder's files as the hub lists a repository: sizes of all, digests of weights alone."""
    files = {str(f.relative_to(folder)): f for f in sorted(folder.rglob("*")) if f.is_file()}
    digests = {
        name: hashlib.sha256(f.read_bytes()).hexdigest() if f.suffix in (".safetensors", ".bin", ".ckpt") else ""
        for name, f in files.items()
    }
    return pin.Listed("o/n", COMMIT, digests, {name: f.stat().st_size for name, f in files.items()})


@pytest.fixture
def repository(tmp_path):
    """A folder like a repository: shards, weights in two more formats, whose content are their names, and a note."""
    for name in (*SHARDS, "pytorch_model.bin", "sub/pytorch_model.bin", "vq.ckpt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(name.encode())
    (tmp_path / "note.txt").write_text("small")
    return tmp_path


@pytest.mark.parametrize("path", [".", "sub", "vq.ckpt"])
def test_the_hubs_digest_equals_that_of_the_files(repository, path):
    assert pin.digest(list_folder(repository), path) == sha256(repository / path)
    digest = pin.digest(list_folder(repository), path)
    victim = {".": SHARDS[1], "sub": "sub/pytorch_model.bin", "vq.ckpt": "vq.ckpt"}[path]
    (repository / victim).write_bytes(b"other")
    assert sha256(repository / path) != digest


def test_a_missing_path_is_named(repository):
    with pytest.raises(ParityError, match=r"o/n at aaaaaaaa: no weights at 'other'; it holds model-1-of-2"):
        pin.digest(list_folder(repository), "other")


def test_only_files_on_the_hub_are_weighed(repository, monkeypatch):
    monkeypatch.chdir(repository)
    monkeypatch.setattr(pin, "list_files", lambda repo, commit: list_folder(repository))
    elsewhere = f"hub:x/y@{COMMIT}:vq.ckpt"
    assert pin.weigh("o/n", COMMIT, {"vq": "vq.ckpt", "other": elsewhere}) == 2 * len("vq.ckpt")
    assert pin.weigh("o/n", COMMIT, {"model": "."}) == len("".join(SHARDS))
    assert pin.weigh("o/n", COMMIT, {"model": ".", "text": "note.txt"}) == pin.weigh("o/n", COMMIT, {"model": "."})


def test_a_local_part_is_pinned_by_its_digest(tmp_path, repository, monkeypatch):
    """A text encoder in a folder beside a repository needs no hub, and a run without its pin is refused in one line."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t5").mkdir()
    (tmp_path / "t5/model.safetensors").write_bytes(b"first")
    monkeypatch.setattr(pin, "list_files", lambda repo, branch: list_folder(repository))
    model = {"source": "hub", "repo": "o/n", "files": {"vq": "vq.ckpt", "text": "t5"}}
    experiment, out = tmp_path / "e.yaml", tmp_path / "pins.yaml"
    experiment.write_text(yaml.safe_dump({"models": {"xl": model}}))
    with pytest.raises(ConfigError, match="'t5' has no sha256 yet; `parity models pin"):
        pins.fill_model(dict(model), lambda name: pins.make_pin_reader(out)(name) if "t5" in name else pins.NONE)
    for content in (b"first", b"another"):
        (tmp_path / "t5/model.safetensors").write_bytes(content)
        pin.write(experiment, out, tell=lambda text: None)
        pinned = pins.fill_pins(yaml.safe_load(experiment.read_text()), pins.make_pin_reader(out))["models"]["xl"]
        assert pinned["revision"] == COMMIT
        assert pinned["files"] == model["files"]
        assert pinned["sha256"] == {"vq": sha256(repository / "vq.ckpt"), "text": sha256(tmp_path / "t5")}
