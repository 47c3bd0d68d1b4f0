"""Downloads against a hub on localhost that has every fault: the file or one line, and never half of it."""

import hashlib
import shutil
import time
from pathlib import Path

import huggingface_hub as hub
import pytest
from huggingface_hub import constants

from parity.base.digests import of_several
from parity.base.errors import ParityError
from parity.base.weights import check, sha256
from parity.models import add, download, fetch
from parity.stand_ins import janus
from tests.models.hub import COMMIT, REPO, Hub

BODY = bytes(range(256)) * 4000  # 1 MB
DIGEST = hashlib.sha256(BODY).hexdigest()
SHARDS = {"model-1-of-2.safetensors": BODY, "model-2-of-2.safetensors": BODY[::-1]}
FOLDER = of_several({name: hashlib.sha256(body).hexdigest() for name, body in SHARDS.items()})
FILES = {
    "w.safetensors": BODY,
    "t5/config.json": b"{}",
    "t5/model-1-of-2.safetensors": BODY,
    "t5/model-2-of-2.safetensors": BODY[::-1],
    "t5/pytorch_model.bin": BODY,
    "t5/tokenizer.json": b"{}",
    "t5/tf_model.h5": BODY,
    "old/pytorch_model-1-of-1.bin": BODY,
    "old/notes.md": b"x",
}


@pytest.fixture
def server(tmp_path, monkeypatch):
    there = Hub(dict(FILES))
    monkeypatch.setattr(constants, "ENDPOINT", there.address)
    monkeypatch.setattr(
        constants, "HUGGINGFACE_CO_URL_TEMPLATE", there.address + "/{repo_id}/resolve/{revision}/{filename}"
    )
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        monkeypatch.setattr(constants, name, str(tmp_path / "cache"), raising=False)
    for name in ("HF_HUB_DOWNLOAD_TIMEOUT", "HF_HUB_ETAG_TIMEOUT"):
        monkeypatch.setattr(constants, name, 0.4)
        monkeypatch.setenv(name, "0.4")
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    monkeypatch.setattr(download, "SPARE", 0)
    yield there
    there.close()


def from_the_hub(server, tmp_path, attempts=2):
    file = download.download(REPO, COMMIT, "w.safetensors", attempts)
    check(file, DIGEST, "it")
    return file


def from_an_address(server, tmp_path, attempts=2):
    return download.address(f"{server.address}/plain/w.safetensors", DIGEST, tmp_path / "got", attempts)


WAYS = (from_the_hub, from_an_address)


def given(tmp_path):
    """Files that pass for whole: of a size, under a name that is not one of something begun."""
    every = [f for f in tmp_path.rglob("*") if f.is_file() and f.stat().st_size > 1000]
    return [f for f in every if not f.name.endswith((".part", ".incomplete"))]


@pytest.mark.parametrize("way", WAYS)
def test_a_file_comes_whole_and_once(server, tmp_path, way):
    first = way(server, tmp_path)
    assert first.read_bytes() == BODY
    server.asked.clear()
    assert way(server, tmp_path) == first and not [a for a in server.asked if a[0] == "GET"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("fault", ["truncates", "throttles", "hangs", "429", "503"])
def test_what_passes_is_gone_on_with(server, tmp_path, way, fault):
    server.break_it(fault, 1)
    assert way(server, tmp_path, 3).read_bytes() == BODY
    if way is from_an_address and fault in ("truncates", "hangs"):
        assert server.asked[-1][2] == f"bytes={len(BODY) // 2}-"  # what came was kept


LASTING = {
    "truncates": "cannot be had",
    "hangs": "cannot be had",
    "corrupts": "SHA-256 is .*; delete the file and get it again",
    "401": "HF_TOKEN.*not set",
    "403": "HF_TOKEN.*not set",
    "404": "no such file",
    "429": "too many requests: wait, or set HF_TOKEN",
    "503": "cannot be had",
    "a page": "SHA-256 is|Consistency check failed",
    "to a file": "cannot be had",
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("fault", LASTING)
def test_a_fault_that_lasts_is_one_line_and_leaves_nothing_that_passes(server, tmp_path, way, fault):
    server.break_it(fault)
    with pytest.raises(ParityError, match=LASTING[fault]) as told:
        way(server, tmp_path)
    assert "\n" not in str(told.value) and "passwd" not in str(told.value).split("file://")[0]
    if way is from_an_address:
        assert not given(tmp_path)
    server.break_it("")
    if (way, fault) != (from_the_hub, "corrupts"):  # its cache keeps what it never hashed: the line says to delete it
        assert way(server, tmp_path).read_bytes() == BODY


def test_no_half_of_a_file_is_what_the_digest_names(server, tmp_path):
    """The must-fail beside: what was begun, under the file's own name, is noticed."""
    half = tmp_path / "got" / f"{DIGEST[:16]}-w.safetensors"
    half.parent.mkdir()
    half.write_bytes(BODY[: len(BODY) // 2])
    with pytest.raises(ParityError, match="SHA-256 is"):
        from_an_address(server, tmp_path)


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://host/x", "https://", "http://me:secret@host/x", "x.pt"])
def test_only_plain_addresses_are_taken(tmp_path, url):
    with pytest.raises(ParityError, match="allowed: https://host/file"):
        download.address(url, DIGEST, tmp_path)


def test_a_file_that_is_too_large_stops(server, tmp_path):
    with pytest.raises(ParityError, match=f"{len(BODY)} bytes; allowed: at most 1000"):
        download.address(f"{server.address}/plain/w.safetensors", DIGEST, tmp_path, 1, largest=1000)
    assert not given(tmp_path)


def test_a_folder_comes_with_what_is_read_of_it(server):
    folder = download.snapshot(REPO, COMMIT, "t5/")
    assert sorted(f.name for f in folder.iterdir()) == sorted(
        name.removeprefix("t5/") for name in FILES if name.startswith("t5/") and "." + name[-2:] not in (".in", ".h5")
    )
    assert sha256(folder) == FOLDER
    assert [f.name for f in download.snapshot(REPO, COMMIT, "old/").iterdir()] == ["pytorch_model-1-of-1.bin"]
    assert download.at_hand("t5/", "", folder, REPO, COMMIT) == folder
    assert download.at_hand(f"hub:{REPO}@{COMMIT}:t5/", "", folder) == folder
    server.close()  # and then without a network
    assert download.snapshot(REPO, COMMIT, "t5/", 1) == folder


def test_a_folder_that_broke_off_is_gone_on_with(server):
    server.break_it("503")
    with pytest.raises(ParityError, match="cannot be had"):
        download.snapshot(REPO, COMMIT, "t5/", 1)
    server.break_it("")
    assert sha256(download.snapshot(REPO, COMMIT, "t5/", 1)) == FOLDER


def test_what_is_not_there_is_one_line(server):
    for part, words in (("none/", "holds no .safetensors"), ("../up/", "holds no")):
        with pytest.raises(ParityError, match=words.replace(".s", r"\*\.s")):
            download.snapshot(REPO, COMMIT, part, 1)
    with pytest.raises(ParityError, match="no such revision: take a commit from its page") as told:
        download.snapshot(REPO, "f" * 40, "t5/", 1)
    assert "\n" not in str(told.value)


def test_a_full_disk_is_said_before_anything_is_fetched(server, tmp_path, monkeypatch):
    free = shutil._ntuple_diskusage(10**9, 10**9, 10**6)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: free)
    with pytest.raises(ParityError, match=r"t5/ needs 0\.0 GB, .* has 0\.0 GB free; make room there, or set HF_HOME"):
        download.snapshot(REPO, COMMIT, "t5/", 1)
    for way in WAYS:
        with pytest.raises(ParityError, match="make room there"):
            way(server, tmp_path)
    assert not [a for a in server.asked if a[0] == "GET" and "resolve" in a[1]] and not given(tmp_path)

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(hub, "hf_hub_download", full)
    with pytest.raises(ParityError, match="no room on the disk: make room, or set HF_HOME"):
        from_the_hub(server, tmp_path)


def test_a_repository_in_transformers_layout_is_added_pinned_and_had(server, tmp_path):
    """Its folder by the commit, every file's digest; another commit, other bytes, half of it: one line each."""
    folder = tmp_path / "here" / janus.write(tmp_path / "here")["model"]
    server.files = {f.name: f.read_bytes() for f in folder.iterdir()} | {"README.md": b"x"}
    said = add.entry(f"hub:{REPO}")
    assert (said["source"], said["revision"], said["files"], said["family"]) == ("hub", COMMIT, {"model": "."}, "janus")
    assert said["sha256"] == {"model": sha256(folder)}
    manifest = fetch.manifest("discrete", "m", said, tmp_path / "out")
    got = Path(manifest["files"]["model"])
    assert {f.name for f in got.iterdir()} == set(server.files) - {"README.md"}
    with pytest.raises(ParityError, match=r"image\.models\.m\.files\.model = .*SHA-256 is"):
        fetch.manifest("discrete", "m", said | {"sha256": {"model": "0" * 64}}, tmp_path / "out")
    with pytest.raises(ParityError, match="no such revision"):
        fetch.manifest("discrete", "m", said | {"revision": "f" * 40}, tmp_path / "out")
