"""Downloads from a hub on localhost with faults give the whole file or an error of one line."""

import hashlib
import time
from pathlib import Path

import pytest
from huggingface_hub import constants

from parity.base.digests import combine_digests
from parity.base.errors import ParityError
from parity.base.weights import check, sha256
from parity.models import add, fetch, hub
from parity.stand_ins.discrete import janus
from parity.stand_ins.text import gpt2, xlnet
from tests.models.local_hub import COMMIT, REPO, Hub

BODY = bytes(range(256)) * 4000  # about 1 MB
DIGEST = hashlib.sha256(BODY).hexdigest()
SHARDS = {"model-1-of-2.safetensors": BODY, "model-2-of-2.safetensors": BODY[::-1]}
FOLDER = combine_digests({name: hashlib.sha256(body).hexdigest() for name, body in SHARDS.items()})
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
    """A hub on localhost in place of huggingface_hub's, with a fresh cache and no pauses between tries."""
    hub_server = Hub(dict(FILES))
    monkeypatch.setattr(constants, "ENDPOINT", hub_server.address)
    address = hub_server.address + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", address)
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        monkeypatch.setattr(constants, name, str(tmp_path / "cache"), raising=False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)  # no pauses between the tries of huggingface_hub
    yield hub_server
    hub_server.close()


def download_from_hub(server, tmp_path):
    """Download a file of the hub's repository and check its digest; return it."""
    file = hub.download(REPO, COMMIT, "w.safetensors")
    check(file, DIGEST, "it")
    return file


def download_from_address(server, tmp_path):
    """Download the same file from a plain address below `server`; return it."""
    return hub.download_address(f"{server.address}/plain/w.safetensors", DIGEST, tmp_path / "got")


DOWNLOADS = (download_from_hub, download_from_address)


@pytest.mark.parametrize("download", DOWNLOADS)
def test_a_file_is_downloaded_whole_and_once(server, tmp_path, download):
    first = download(server, tmp_path)
    assert first.read_bytes() == BODY
    server.requests.clear()
    assert download(server, tmp_path) == first
    assert not [a for a in server.requests if a[0] == "GET"]


@pytest.mark.parametrize("download", DOWNLOADS)
@pytest.mark.parametrize("fault", ["corrupts", "401", "404", "a page"])
def test_a_lasting_fault_is_one_line_and_leaves_no_file(server, tmp_path, download, fault):
    server.fault = fault
    with pytest.raises(ParityError) as error:
        download(server, tmp_path)
    assert "HF_TOKEN" in str(error.value) or fault != "401" or download is download_from_address
    assert not [f for f in (tmp_path / "got").rglob("*") if f.is_file()]
    server.fault = ""
    if download is download_from_address or fault != "corrupts":  # a corrupted file stays in the hub's cache
        assert download(server, tmp_path).read_bytes() == BODY


@pytest.mark.parametrize("download", DOWNLOADS)
def test_a_busy_server_is_asked_again(server, tmp_path, download, monkeypatch):
    server.fault = "503"
    pauses = []

    def end_fault(seconds):
        pauses.append(seconds)
        server.fault = ""

    monkeypatch.setattr(time, "sleep", end_fault)
    assert download(server, tmp_path).read_bytes() == BODY
    assert len(pauses) == 1
    server.fault = "404"
    server.files["w.safetensors"] = b""
    with pytest.raises(ParityError):
        hub.download_address(f"{server.address}/plain/w.safetensors", DIGEST, tmp_path / "new")
    assert len(pauses) == 1


@pytest.mark.parametrize("url", ["file:///etc/passwd", "https://", "http://me:secret@host/x"])
def test_only_plain_addresses_are_accepted(tmp_path, url):
    with pytest.raises(ParityError, match="allowed: https://host/file"):
        hub.download_address(url, DIGEST, tmp_path)


def test_a_folder_is_downloaded_without_unread_files(server):
    folder = hub.download_folder(REPO, COMMIT, "t5/")
    expected = {"config.json", "tokenizer.json", *SHARDS}
    assert {f.name for f in folder.iterdir()} == expected
    assert sha256(folder) == FOLDER
    assert [f.name for f in hub.download_folder(REPO, COMMIT, "old/").iterdir()] == ["pytorch_model-1-of-1.bin"]
    assert fetch.locate("t5/", "", folder, REPO, COMMIT) == folder
    assert fetch.locate(f"hub:{REPO}@{COMMIT}:t5/", "", folder) == folder
    server.close()  # from here on, nothing can be downloaded
    assert hub.download_folder(REPO, COMMIT, "t5/") == folder


def test_a_missing_folder_or_revision_is_one_line(server):
    for path in ("none/", "../up/"):
        with pytest.raises(ParityError, match=r"holds no \*\.safetensors"):
            hub.download_folder(REPO, COMMIT, path)
    with pytest.raises(ParityError, match="no such revision"):
        hub.download_folder(REPO, "f" * 40, "t5/")


def test_a_repository_in_transformers_layout_is_added(server, tmp_path):
    """By its commit, with every file's digest. Another commit, other bytes and half of it are one line each."""
    folder = tmp_path / "here" / janus(tmp_path / "here")["model"]
    server.files = {f.name: f.read_bytes() for f in folder.iterdir()} | {"README.md": b"x"}
    entry = add.find(f"hub:{REPO}").entry
    assert (entry["source"], entry["revision"], entry["files"]) == ("hub", COMMIT, {"model": "."})
    assert entry["family"] == "janus"
    assert entry["sha256"] == {"model": sha256(folder)}
    manifest = fetch.make_manifest("discrete", "m", entry, tmp_path / "out")
    got = Path(manifest["files"]["model"])
    assert {f.name for f in got.iterdir()} == set(server.files) - {"README.md"}
    with pytest.raises(ParityError, match=r"models\.m\.files\.model = .*SHA-256 is"):
        fetch.make_manifest("discrete", "m", entry | {"sha256": {"model": "0" * 64}}, tmp_path / "out")
    with pytest.raises(ParityError, match="no such revision"):
        fetch.make_manifest("discrete", "m", entry | {"revision": "f" * 40}, tmp_path / "out")


def read_files(folder):
    return {f.name: f.read_bytes() for f in folder.iterdir()}


def test_text_models_are_fetched_at_their_commit(server, tmp_path):
    """Of the tokenizer's repository only the tokenizer is fetched."""
    local = {name: tmp_path / path for write in (xlnet, gpt2) for name, path in write(tmp_path).items()}
    server.files = {f"{name}/{f.name}": f.read_bytes() for name, folder in local.items() for f in folder.iterdir()}
    server.files["tokenizer/model.safetensors"] = BODY
    digests = {name: sha256(local[name]) for name in ("xlnet", "judge")}
    raw = {"family": "xlnet", "source": "hub", "files": {name: f"hub:{REPO}@{COMMIT}:{name}" for name in local}}
    manifest = fetch.make_manifest("anysubset", "xlnet", raw | {"sha256": digests}, tmp_path / "out")
    fetched = {name: read_files(Path(folder)) for name, folder in manifest["files"].items()}
    assert fetched == {name: read_files(folder) for name, folder in local.items()}
    with pytest.raises(ParityError, match=r"files.judge = .*expected 0000"):
        fetch.make_manifest("anysubset", "xlnet", raw | {"sha256": digests | {"judge": "0" * 64}}, tmp_path / "out")
