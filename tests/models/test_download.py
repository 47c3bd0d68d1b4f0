"""Downloads from a hub on localhost, with faults: the file or one line, and never half of it."""

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

BODY = bytes(range(256)) * 4000  # 1 MB
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
    there = Hub(dict(FILES))
    monkeypatch.setattr(constants, "ENDPOINT", there.address)
    address = there.address + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", address)
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        monkeypatch.setattr(constants, name, str(tmp_path / "cache"), raising=False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)  # between the tries of huggingface_hub
    yield there
    there.close()


def from_the_hub(server, tmp_path):
    file = hub.download(REPO, COMMIT, "w.safetensors")
    check(file, DIGEST, "it")
    return file


def from_an_address(server, tmp_path):
    return hub.download_address(f"{server.address}/plain/w.safetensors", DIGEST, tmp_path / "got")


WAYS = (from_the_hub, from_an_address)


@pytest.mark.parametrize("way", WAYS)
def test_a_file_comes_whole_and_once(server, tmp_path, way):
    first = way(server, tmp_path)
    assert first.read_bytes() == BODY
    server.asked.clear()
    assert way(server, tmp_path) == first
    assert not [a for a in server.asked if a[0] == "GET"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("fault", ["corrupts", "401", "404", "a page"])
def test_a_fault_that_lasts_is_one_line_and_leaves_nothing_that_passes(server, tmp_path, way, fault):
    server.fault = fault
    with pytest.raises(ParityError) as told:
        way(server, tmp_path)
    assert "\n" not in str(told.value)
    assert "HF_TOKEN" in str(told.value) or fault != "401" or way is from_an_address
    assert not [f for f in (tmp_path / "got").rglob("*") if f.is_file()]
    server.fault = ""
    if (way, fault) != (from_the_hub, "corrupts"):  # its cache keeps what it never hashed: the line says to delete it
        assert way(server, tmp_path).read_bytes() == BODY


@pytest.mark.parametrize("way", WAYS)
def test_a_server_that_is_busy_is_asked_again_and_an_answer_is_taken(server, tmp_path, way, monkeypatch):
    server.fault = "503"
    pauses = []

    def free(seconds):
        pauses.append(seconds)
        server.fault = ""

    monkeypatch.setattr(time, "sleep", free)
    assert way(server, tmp_path).read_bytes() == BODY
    assert len(pauses) == 1
    server.fault, server.files["w.safetensors"] = "404", b""
    with pytest.raises(ParityError):
        hub.download_address(f"{server.address}/plain/w.safetensors", DIGEST, tmp_path / "new")
    assert len(pauses) == 1


@pytest.mark.parametrize("url", ["file:///etc/passwd", "https://", "http://me:secret@host/x"])
def test_only_plain_addresses_are_taken(tmp_path, url):
    with pytest.raises(ParityError, match="allowed: https://host/file"):
        hub.download_address(url, DIGEST, tmp_path)


def test_a_folder_comes_with_what_is_read_of_it(server):
    folder = hub.download_folder(REPO, COMMIT, "t5/")
    assert sorted(f.name for f in folder.iterdir()) == sorted(
        name.removeprefix("t5/") for name in FILES if name.startswith("t5/") and "." + name[-2:] not in (".in", ".h5")
    )
    assert sha256(folder) == FOLDER
    assert [f.name for f in hub.download_folder(REPO, COMMIT, "old/").iterdir()] == ["pytorch_model-1-of-1.bin"]
    assert fetch.locate("t5/", "", folder, REPO, COMMIT) == folder
    assert fetch.locate(f"hub:{REPO}@{COMMIT}:t5/", "", folder) == folder
    server.close()  # and then without a network
    assert hub.download_folder(REPO, COMMIT, "t5/") == folder


def test_what_is_not_there_is_one_line(server):
    for part in ("none/", "../up/"):
        with pytest.raises(ParityError, match=r"holds no \*\.safetensors"):
            hub.download_folder(REPO, COMMIT, part)
    with pytest.raises(ParityError, match="no such revision") as told:
        hub.download_folder(REPO, "f" * 40, "t5/")
    assert "\n" not in str(told.value)


def test_a_repository_in_transformers_layout_is_added_pinned_and_had(server, tmp_path):
    """Its folder by the commit, every file's digest; another commit, other bytes, half of it: one line each."""
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


def test_text_models_of_repositories_are_fetched_at_their_commit(server, tmp_path):
    """The model, the judge and the tokenizer: of the tokenizer's repository nothing but the tokenizer is fetched."""
    here = {part: tmp_path / path for write in (xlnet, gpt2) for part, path in write(tmp_path).items()}
    server.files = {f"{part}/{f.name}": f.read_bytes() for part, folder in here.items() for f in folder.iterdir()}
    server.files["tokenizer/model.safetensors"] = BODY
    digests = {part: sha256(here[part]) for part in ("xlnet", "judge")}
    raw = {"family": "xlnet", "source": "hub", "files": {part: f"hub:{REPO}@{COMMIT}:{part}" for part in here}}
    manifest = fetch.make_manifest("anysubset", "xlnet", raw | {"sha256": digests}, tmp_path / "out")
    got = {part: {f.name: f.read_bytes() for f in Path(folder).iterdir()} for part, folder in manifest["files"].items()}
    assert got == {part: {f.name: f.read_bytes() for f in folder.iterdir()} for part, folder in here.items()}
    with pytest.raises(ParityError, match=r"files.judge = .*expected 0000"):
        fetch.make_manifest("anysubset", "xlnet", raw | {"sha256": digests | {"judge": "0" * 64}}, tmp_path / "out")
