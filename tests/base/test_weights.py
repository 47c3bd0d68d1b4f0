"""Weights on disk are verified, read without executing code, and loaded whole or not at all."""

import argparse
import hashlib
import json
import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from parity.base import digests, headers, weights
from parity.base.digests import check, sha256
from parity.base.errors import ParityError
from parity.base.files import sums
from parity.base.weights import load_built, load_network, read_shapes, tensors, unpickle, verify_files


@dataclass(frozen=True)
class Sizes:
    width: int
    levels: tuple[int, ...] = (1,)


class Net(torch.nn.Module):
    def __init__(self, c: Sizes):
        super().__init__()
        self.config = c
        self.linear = torch.nn.Linear(c.width, 2)
        self.norm = torch.nn.LayerNorm(2)


def save(path: Path, state: dict[str, torch.Tensor], config: dict | None = None) -> Path:
    """Save tensors by name as a safetensors file, with a configuration in its header if given; return the path."""
    metadata = {"config": json.dumps(config)} if config is not None else None
    save_file({k: v.contiguous() for k, v in state.items()}, path, metadata=metadata)
    return path


@pytest.fixture
def file(tmp_path):
    """The file of a small Net's random weights in half precision, with its sizes in the header."""
    torch.manual_seed(0)
    state = {k: v.half() for k, v in Net(Sizes(3)).state_dict().items()}
    return save(tmp_path / "net.safetensors", state, {"width": 3, "levels": [1, 2], "made_of": "data"})


def test_a_network_has_the_sizes_in_its_files_header(file):
    net = load_network(Net, Sizes, file, ignored=("made_of",))
    assert net.config == Sizes(3, (1, 2))
    assert not net.training
    assert all(v.dtype == torch.float32 and torch.equal(v, v.half().float()) for v in net.state_dict().values())
    assert dict(tensors(file, dtype=torch.float64))["norm.bias"].dtype == torch.float64


def compute_folder_digest(folder, *names):
    """Compute the digest of the named files of a folder as `sha256sum * | sha256sum` does."""
    lines = [f"{hashlib.sha256((folder / name).read_bytes()).hexdigest()}  {name}\n" for name in names]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def test_a_folders_digest_covers_all_its_weights(tmp_path):
    shards = [f"a-{i}-of-2.safetensors" for i in (1, 2)]
    for name in shards:
        save(tmp_path / name, {name: torch.ones(2)})
    assert sha256(tmp_path) == compute_folder_digest(tmp_path, *shards)
    digest = sha256(tmp_path / shards[0])
    check(tmp_path / shards[0], digest, "models.m")
    (tmp_path / "only.bin").write_bytes(b"x")
    with pytest.raises(ParityError, match=r"models\.m = .*SHA-256 is .* expected 0000"):
        check(tmp_path / shards[0], "0" * 64, "models.m")
    with pytest.raises(ParityError, match="no such file"):
        check(tmp_path / "c.safetensors", digest, "models.m")


@pytest.mark.parametrize("index", ["model.safetensors.index.json", "pytorch_model.bin.index.json"])
def test_an_incomplete_folder_is_one_line(tmp_path, index):
    stem, kind = index.split(".")[:2]
    names = [f"{stem}-{i}-of-2.{kind}" for i in (1, 2)]
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ParityError, match=r"holds no \*\.safetensors"):
        sha256(tmp_path)
    (tmp_path / index).write_text(json.dumps({"weight_map": dict(zip("ab", names, strict=True))}))
    for name in names:
        (tmp_path / name).write_bytes(b"x")
    assert sha256(tmp_path) == compute_folder_digest(tmp_path, *names)
    (tmp_path / names[1]).unlink()
    with pytest.raises(ParityError, match=rf"half a checkpoint: .* 1 of them missing, such as {names[1]}"):
        sha256(tmp_path)
    (tmp_path / index).write_text("<html>")
    with pytest.raises(ParityError, match="not an index of shards"):
        sha256(tmp_path)


TENSORS = {name: torch.randn(3) for name in "abcd"}


def write_weights(folder: Path, layout: str) -> Path:
    """Write TENSORS to a new folder: as one file ("one"), as two shards with an index ("indexed"), or as two shards
    that only their numbers join. Return the folder."""
    folder.mkdir(parents=True)
    if layout == "one":
        save(folder / "model.safetensors", TENSORS)
        return folder
    shards = {f"model-{i}-of-2.safetensors": dict(list(TENSORS.items())[2 * i - 2 : 2 * i]) for i in (1, 2)}
    for name, state in shards.items():
        save(folder / name, state)
    if layout == "indexed":
        weight_map = {tensor: name for name, state in shards.items() for tensor in state}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder


@pytest.mark.parametrize("key", ["", "model", "ema"])
@pytest.mark.parametrize("layout", ["one", "indexed", "counted"])
@pytest.mark.parametrize("stray", ["old_model.safetensors", "zzz.safetensors", "pytorch_model.bin", "last.pth"])
def test_a_stray_file_of_the_same_tensors_is_refused_by_name(tmp_path, layout, stray, key):
    folder = write_weights(tmp_path / "m", layout)
    zeros = {f"module.{k}": torch.zeros(3) for k in TENSORS}
    assert {k: v.tolist() for k, v in tensors(folder)} == {k: v.tolist() for k, v in TENSORS.items()}
    if stray.endswith(".safetensors"):
        save(folder / stray, zeros)
    else:
        torch.save({key: zeros} if key else zeros, folder / stray, _use_new_zipfile_serialization=key != "model")
    for read in (sha256, read_shapes, lambda path: dict(tensors(path))):
        with pytest.raises(ParityError, match=rf"{stray} holds tensors that model.* move the other out of the folder"):
            read(folder)


@pytest.mark.parametrize("layout", ["one", "indexed", "counted"])
def test_other_tensors_beside_the_weights_are_not_read(tmp_path, layout):
    folder = write_weights(tmp_path / "m", layout)
    save(folder / "vq.safetensors", {"z": torch.ones(1)})
    torch.save({"state": {0: torch.ones(1)}, "model": Evil}, folder / "optimizer.pt")
    (folder / "training_args.bin").write_bytes(b"x")
    for file in list(folder.glob("*.*")):  # a Mac adds such files
        (folder / f"._{file.name}").write_bytes(b"\0\5\x16\7" + bytes(100))
    assert {k: v.tolist() for k, v in tensors(folder)} == {k: v.tolist() for k, v in TENSORS.items()}


def test_a_cached_repository_in_two_formats_is_read(tmp_path):
    """A snapshot of the whole repository is read as the repository itself would be."""
    folder = write_weights(tmp_path / "models--o--n/snapshots" / ("c" * 40), "one")
    torch.save({k: torch.zeros(3) for k in TENSORS}, folder / "pytorch_model.bin")
    assert {k: v.tolist() for k, v in tensors(folder)} == {k: v.tolist() for k, v in TENSORS.items()}


OPEN = {  # folders whose file names do not tell which file holds the weights
    "two files": (["a.safetensors", "b.safetensors"], "both a.safetensors and b.safetensors"),
    "shards of two": (["a-1-of-1.safetensors", "b-1-of-1.safetensors"], "shards of two networks"),
    "half": (["a-1-of-2.safetensors"], "half a checkpoint: 1 of 2 shards"),
    "two indices": (["a.safetensors.index.json", "b.safetensors.index.json"], "two indices"),
    "file and index": (["model.safetensors", "a.safetensors", "a.safetensors.index.json"], "both model.safetensors"),
}


@pytest.mark.parametrize("case", OPEN)
def test_ambiguous_names_of_weights_are_refused(case):
    names, message = OPEN[case]
    with pytest.raises(ParityError, match=message):
        digests.select_weights(names, lambda index: {"a.safetensors"})


def test_shards_that_hold_one_tensor_twice_are_refused(tmp_path):
    folder = write_weights(tmp_path / "m", "indexed")
    save(folder / "model-2-of-2.safetensors", {k: TENSORS[k] for k in "bcd"})
    with pytest.raises(ParityError, match=r"model-2-of-2.safetensors holds tensors that model-1.* such as b"):
        sha256(folder)


def test_a_large_file_is_hashed_once_until_it_changes(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(digests, "LARGE", 4)
    file = tmp_path / "w.safetensors"
    file.write_bytes(b"here")
    list_cached = lambda: list((tmp_path / "cache").rglob("*"))  # noqa: E731
    first = sha256(file)
    assert not list_cached()  # a fresh file is not cached: its next write may have the same time
    os.utime(file, ns=(1, 10**18))
    assert sha256(file) == first
    assert list_cached()
    with monkeypatch.context() as m:
        m.setattr(digests.hashlib, "file_digest", lambda *_: pytest.fail("hashed again"))
        assert sha256(file) == first
    file.write_bytes(b"gone")
    assert sha256(file) == hashlib.sha256(b"gone").hexdigest() != first


def test_files_are_verified_by_their_folders_list(tmp_path):
    file = save(tmp_path / "a.safetensors", {"a": torch.ones(2)})
    files = {"part": "a.safetensors"}
    with pytest.raises(ParityError, match=r"^m: .*SHA256SUMS does not name a\.safetensors; run x, which does"):
        verify_files(tmp_path, files, "m", "run x")
    (tmp_path / "SHA256SUMS").write_text(f"{sha256(file)}  a.safetensors\n")
    digest = sums(tmp_path)["a.safetensors"]
    verified = {"files": {"part": str(file)}, "sha256": {"part": digest}, "verified": [["m.part", str(file), digest]]}
    assert verify_files(tmp_path, files, "m", "run x") == verified
    file.write_bytes(file.read_bytes() + b"x")
    with pytest.raises(ParityError, match="SHA-256"):
        verify_files(tmp_path, files, "m", "run x")


class Evil:
    """An object that creates the file evil-was-here when it is unpickled."""

    def __reduce__(self):
        return (Path.touch, (Path("evil-was-here"),))


def test_a_pickle_is_read_without_executing_code(tmp_path, monkeypatch):
    """The moving average comes before the raw weights. Arguments of a training run are ignored, code is refused."""
    monkeypatch.chdir(tmp_path)
    raw, mean = {"x": torch.zeros(2)}, {"x": torch.ones(2), "step": 3}
    torch.save({"model": raw, "model_ema": mean, "args": argparse.Namespace(lr=1.0)}, "average.pth")
    assert torch.equal(unpickle(Path("average.pth"))["x"], torch.ones(2))
    assert len(unpickle(Path("average.pth"))) == 1
    torch.save(raw, "plain.pth")
    assert list(unpickle(Path("plain.pth"))) == ["x"]
    torch.save({"model": Evil()}, "evil.pth")
    Path("text.pth").write_text("hello")
    for name, words in {"evil.pth": "safely", "text.pth": "safely", "gone.pth": "no such file"}.items():
        with pytest.raises(ParityError, match=words) as error:
            unpickle(Path(name))
        assert name in str(error.value)
    assert not Path("evil-was-here").exists()


def test_prefixes_of_training_wrappers_are_removed(tmp_path):
    """Those of torch.compile, FSDP and DistributedDataParallel; a layer that is called module stays."""
    names = ["module.a", "_orig_mod.b.c", "d._fsdp_wrapped_module.e", "f.module.g", "module._orig_mod.h"]
    torch.save({"model": {name: torch.ones(2) for name in names}, "args": argparse.Namespace()}, tmp_path / "w.pt")
    assert list(unpickle(tmp_path / "w.pt")) == ["a", "b.c", "d.e", "f.module.g", "h"]


PAGES = {
    "page.safetensors": (b"<!DOCTYPE html><html>sign in</html>", "web page"),
    "pointer.bin": (b"version https://git-lfs.github.com/spec/v1", "a pointer"),
    "number.pt": ({"model": 3}, "holds no tensors by name"),
    "ema.pt": ({"ema": {"x": torch.ones(2)}, "step": 3}, "it holds ema, step; allowed: .* under model_ema, model,"),
    "empty.pt": (b"", "an empty file"),
    "empty.safetensors": (b"", "an empty file"),
    "few.safetensors": (b"12345", "cut off"),
    "junk.safetensors": (b"\2" + bytes(7) + b"[]" * 9, "its header cannot be read"),
}


@pytest.mark.parametrize("name", PAGES)
def test_a_file_without_weights_is_one_line(tmp_path, name):
    content, message = PAGES[name]
    if isinstance(content, bytes):
        (tmp_path / name).write_bytes(content)
    else:
        torch.save(content, tmp_path / name)
    with pytest.raises(ParityError, match=message) as error:
        read_shapes(tmp_path / name)
    assert name in str(error.value)


@pytest.mark.parametrize("share", [0.02, 0.5, 0.95])
@pytest.mark.parametrize("name", ["w.safetensors", "w.pt", "old.pt"])
def test_a_truncated_file_is_one_line(tmp_path, name, share):
    state = {f"{i}.weight": torch.ones(50, 50) for i in range(5)}
    file = tmp_path / name
    if name.endswith("pt"):
        torch.save({"model": state}, file, _use_new_zipfile_serialization=name == "w.pt")
    else:
        save(file, state)
    file.write_bytes(file.read_bytes()[: int(share * file.stat().st_size)])
    with pytest.raises(ParityError, match=r"cut off.*(get it again|says \d+)|might be corrupted\.$") as error:
        read_shapes(file)
    assert name in str(error.value)


def test_shapes_are_read_without_torch(tmp_path):
    """From safetensors and both kinds of pickle, and no code in a file is executed."""
    state = {"a": torch.ones(2, 3), "module.b": torch.nn.Parameter(torch.ones(4))}
    save(tmp_path / "w.safetensors", state)
    checkpoint = {"model": {"a": torch.ones(9)}, "model_ema": state, "args": argparse.Namespace(lr=1), "more": Evil()}
    torch.save(checkpoint, tmp_path / "w.pt")
    torch.save(state, tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    for name in ("w.safetensors", "w.pt", "old.pth"):
        assert headers.read_tensor_shapes(tmp_path / name) == {"a": (2, 3), "b": (4,)}
    assert not Path("evil-was-here").exists()


class Buffered(torch.nn.Module):
    """A network with a table that no file holds."""

    def __init__(self, c: Sizes):
        super().__init__()
        self.linear = torch.nn.Linear(c.width, c.width)
        self.register_buffer("table", torch.arange(c.width) / 1024, persistent=False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_network_built_without_drawing_equals_the_network(tmp_path, dtype):
    """Its weights and tables are those of a network built in full, and no random number is drawn."""
    full = Buffered(Sizes(5))
    random_state = torch.random.get_rng_state()
    file = save(tmp_path / "w.safetensors", full.state_dict())
    net = load_built(partial(Buffered, Sizes(5)), file, dtype=dtype)
    assert torch.equal(torch.random.get_rng_state(), random_state)
    assert not net.training
    assert all(torch.equal(v, full.state_dict()[k].to(dtype)) for k, v in net.state_dict().items())
    assert net.table.dtype == dtype
    assert torch.equal(net.table, full.table.to(dtype))
    assert net.linear.weight.requires_grad
    x = torch.ones(1, 5, dtype=dtype)
    assert torch.equal(net.linear(x), full.to(dtype).linear(x))


def test_a_pickle_is_read_whole_a_part_at_a_time(tmp_path, monkeypatch):
    """It is opened again after this many bytes, except in torch's older format, which each opening would read whole."""
    state = {str(i): torch.randn(10) for i in range(8)}
    opened = []
    unpickle_file = weights.unpickle
    monkeypatch.setattr(weights, "MAPPED", 60)
    monkeypatch.setattr(weights, "unpickle", lambda file: opened.append(file.name) or unpickle_file(file))
    for name, is_archive in (("new.pt", True), ("old.pt", False)):
        torch.save(state, tmp_path / name, _use_new_zipfile_serialization=is_archive)
        read = dict(weights.tensors(tmp_path / name))
        assert read.keys() == state.keys()
        assert all(torch.equal(read[key], state[key]) for key in state)
    assert opened.count("new.pt") == 4
    assert opened.count("old.pt") == 1
