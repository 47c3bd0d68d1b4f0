"""Weights on disk: verified, read without executing anything, loaded whole or not at all."""

import argparse
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from parity.base.errors import ParityError
from parity.base.files import configured, header, sums
from parity.base.weights import check, listed, load_weights, network, read_weights, sha256, unpickle


@dataclass(frozen=True)
class Sizes:
    width: int
    levels: tuple[int, ...] = (1,)


class Net(torch.nn.Module):
    def __init__(self, c: Sizes):
        super().__init__()
        self.config, self.linear, self.norm = c, torch.nn.Linear(c.width, 2), torch.nn.LayerNorm(2)


def save(path: Path, state, config=None) -> Path:
    said = {"config": json.dumps(config)} if config is not None else None
    save_file({k: v.contiguous() for k, v in state.items()}, path, metadata=said)
    return path


@pytest.fixture
def file(tmp_path):
    """A network's weights in half precision, its sizes in the header."""
    torch.manual_seed(0)
    state = {k: v.half() for k, v in Net(Sizes(3)).state_dict().items()}
    return save(tmp_path / "net.safetensors", state, {"width": 3, "levels": [1, 2], "made_of": "data"})


def test_a_network_is_read_by_what_its_file_says(file):
    net = network(Net, Sizes, file, ignored=("made_of",))
    assert net.config == Sizes(3, (1, 2)) and not net.training
    assert all(v.dtype == torch.float32 and torch.equal(v, v.half().float()) for v in net.state_dict().values())
    assert read_weights(file, dtype=torch.float64)["norm.bias"].dtype == torch.float64


HEADERS = {
    "no header": (None, "says nothing of its sizes"),
    "unknown key": ({"width": 3, "depth": 1}, "its configuration names depth, which Sizes does not have"),
    "not whole": ({"levels": [1]}, "its configuration is not whole"),
}


@pytest.mark.parametrize("case", HEADERS)
def test_sizes_that_do_not_make_a_network_are_one_line(tmp_path, case):
    said, words = HEADERS[case]
    with pytest.raises(ParityError, match=words) as error:
        configured(Sizes, save(tmp_path / "f.safetensors", {"x": torch.zeros(1)}, said))
    assert "f.safetensors" in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("content", [b"", b"hello", b"\xff" * 8 + b"{}", b"\x02" + bytes(7) + b"{}"])
def test_what_has_no_header_says_nothing(tmp_path, content):
    (tmp_path / "f").write_bytes(content)
    assert header(tmp_path / "f") == {} == header(tmp_path / "nowhere")


@pytest.mark.parametrize("change", ["missing", "unexpected", "shape"])
def test_weights_must_fit(tmp_path, change):
    state = Net(Sizes(3)).state_dict()
    if change == "missing":
        del state["norm.weight"]
    else:
        state |= {"extra": torch.zeros(1)} if change == "unexpected" else {"norm.weight": torch.zeros(3)}
    words = {"missing": "missing norm.weight", "unexpected": "unexpected extra", "shape": "norm.weight has shape"}
    with pytest.raises(ParityError, match=words[change]) as error:
        load_weights(Net(Sizes(3)), save(tmp_path / "w.safetensors", state))
    assert "\n" not in str(error.value)
    if change == "unexpected":
        load_weights(Net(Sizes(3)), tmp_path / "w.safetensors", ignored=("extra",))


def test_a_digest_is_of_a_file_or_of_all_weights_of_a_folder(tmp_path):
    for name in "ab":
        save(tmp_path / f"{name}.safetensors", {name: torch.ones(2)})
    both = b"".join((tmp_path / f"{name}.safetensors").read_bytes() for name in "ab")
    assert sha256(tmp_path) == hashlib.sha256(both).hexdigest()
    total = sha256(tmp_path / "a.safetensors")
    check(tmp_path / "a.safetensors", total, "image.models.m")
    (tmp_path / "only.bin").write_bytes(b"x")
    with pytest.raises(ParityError, match=r"image\.models\.m = .*SHA-256 is .* expected 0000"):
        check(tmp_path / "a.safetensors", "0" * 64, "image.models.m")
    with pytest.raises(ParityError, match="no such file"):
        check(tmp_path / "c.safetensors", total, "image.models.m")


def test_a_folder_without_safetensors_has_no_digest(tmp_path):
    """Not the digest of nothing, which every such folder would share."""
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(ParityError, match=r"holds no \*\.safetensors"):
        sha256(tmp_path)


def test_a_folders_list_decides_what_its_files_are(tmp_path):
    file, parts = save(tmp_path / "a.safetensors", {"a": torch.ones(2)}), {"part": "a.safetensors"}
    with pytest.raises(ParityError, match=r"^m: .*SHA256SUMS does not name a\.safetensors; run x, which does"):
        listed(tmp_path, parts, "m", "run x")
    (tmp_path / "SHA256SUMS").write_text(f"{sha256(file)}  a.safetensors\n")
    assert listed(tmp_path, parts, "m", "run x") == {
        "files": {"part": str(file)},
        "sha256": {"part": sums(tmp_path)["a.safetensors"]},
    }
    file.write_bytes(file.read_bytes() + b"x")
    with pytest.raises(ParityError, match="SHA-256"):
        listed(tmp_path, parts, "m", "run x")


class Evil:
    def __reduce__(self):
        return (Path.touch, (Path("evil-was-here"),))


def test_a_pickle_gives_its_tensors_and_executes_nothing(tmp_path, monkeypatch):
    """The moving average before the raw weights; the arguments of a training run do no harm, code is refused."""
    monkeypatch.chdir(tmp_path)
    raw, mean = {"x": torch.zeros(2)}, {"x": torch.ones(2), "step": 3}
    torch.save({"model": raw, "model_ema": mean, "args": argparse.Namespace(lr=1.0)}, "average.pth")
    assert torch.equal(unpickle(Path("average.pth"))["x"], torch.ones(2)) and len(unpickle(Path("average.pth"))) == 1
    torch.save(raw, "plain.pth")
    assert list(unpickle(Path("plain.pth"))) == ["x"]
    torch.save({"model": Evil()}, "evil.pth")
    Path("text.pth").write_text("hello")
    for name, words in {"evil.pth": "safely", "text.pth": "safely", "gone.pth": "no such file"}.items():
        with pytest.raises(ParityError, match=words) as error:
            unpickle(Path(name))
        assert "\n" not in str(error.value) and name in str(error.value)
    assert not Path("evil-was-here").exists()
