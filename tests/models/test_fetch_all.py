"""Fetching what an experiment needs, from a server on this machine: whole or not at all, once, nothing overwritten."""

import hashlib
import io
import time
import zipfile
from pathlib import Path

import pytest
import yaml

from parity.base.errors import ConfigError, ParityError
from parity.experiment import catalogue, pins
from parity.models import fetch_all, hub
from tests.models.local_hub import Hub
from tests.workflow.conftest import ROOT

CAPTIONS = b'{"images": [], "annotations": []}'
CATALOGUE = ROOT / "workflow/data.yaml"


def zip_files(**files):
    """Make a .zip of files, bytes by name, "__" in which stands for "/"."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files.items():
            archive.writestr(name.replace("__", "/"), content)
    return buffer.getvalue()


ARCHIVE = zip_files(inner__captions=CAPTIONS, val__a=b"first", val__b=b"second", value=b"another")


@pytest.fixture
def server(monkeypatch):
    """A server of a .zip and a text, without pauses between tries."""
    started = Hub({"all.zip": ARCHIVE, "plain.txt": b"text"})
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    yield started
    started.close()


def make_entry(server, name, content, member="", digest=""):
    """Make the catalogue's entry of a served file; digest: another SHA-256 than that of its content, None for none."""
    total = hashlib.sha256(content).hexdigest() if digest == "" else digest
    address = f"{server.address}/plain/{name}"
    return catalogue.Entry(address=address, sha256=total, member=member, licence="none")


def list_files(folder):
    """List the files of a folder, in subfolders too, with their contents."""
    return {str(f.relative_to(folder)): f.read_bytes() for f in folder.rglob("*") if f.is_file()}


@pytest.mark.parametrize(
    ("name", "served", "member", "expected"),
    [
        ("captions.json", "all.zip", "inner/captions", {"captions.json": CAPTIONS}),
        ("val", "all.zip", "val", {"val/a": b"first", "val/b": b"second"}),
        ("text.txt", "plain.txt", "", {"text.txt": b"text"}),
    ],
)
def test_a_file_is_downloaded_and_unpacked_once(server, tmp_path, name, served, member, expected):
    entry = make_entry(server, served, server.files[served], member)
    assert fetch_all.fetch_data(name, entry, tmp_path, "", print) == entry.sha256
    assert list_files(tmp_path) == expected
    assert not (tmp_path / fetch_all.WORK).exists()
    server.requests.clear()
    assert fetch_all.fetch_data(name, entry, tmp_path, "", print) == ""
    assert not server.requests


def test_a_file_that_is_there_is_never_touched(server, tmp_path):
    (tmp_path / "text.txt").write_bytes(b"the user's own")
    fetch_all.fetch_data("text.txt", make_entry(server, "plain.txt", b"text"), tmp_path, "", print)
    assert list_files(tmp_path) == {"text.txt": b"the user's own"}
    assert not server.requests


@pytest.mark.parametrize("fault", ["digest", "pinned", "404", "corrupts", "member", "no zip", "no server"])
def test_a_fault_is_one_line_and_leaves_no_file(server, tmp_path, fault):
    """After which the same call gets the file."""
    member = "inner/captions"
    good = make_entry(server, "all.zip", ARCHIVE, member)
    changes = {
        "digest": {"sha256": "0" * 64},
        "pinned": {"sha256": None},
        "member": {"member": "inner/other"},
        "no zip": {"address": f"{server.address}/plain/plain.txt", "sha256": None},
        "no server": {"address": "http://127.0.0.1:1/all.zip"},
    }
    server.fault = fault if fault in ("404", "corrupts") else ""
    with pytest.raises(ParityError) as error:
        entry = good.model_copy(update=changes.get(fault, {}))
        fetch_all.fetch_data("captions.json", entry, tmp_path, "1" * 64 if fault == "pinned" else "", print)
    assert "\n" not in str(error.value)
    assert "all.zip" in str(error.value) or fault in ("member", "no zip")
    assert list_files(tmp_path) == {}
    server.fault = ""
    fetch_all.fetch_data("captions.json", good, tmp_path, "", print)
    assert list_files(tmp_path) == {"captions.json": CAPTIONS}


def test_what_a_killed_download_left_is_no_file_and_the_next_succeeds(server, tmp_path):
    left = tmp_path / fetch_all.WORK / "captions.json"
    left.mkdir(parents=True)
    (left / "download.partial").write_bytes(b"half")
    fetch_all.fetch_data("captions.json", make_entry(server, "all.zip", ARCHIVE, "inner/captions"), tmp_path, "")
    assert list_files(tmp_path) == {"captions.json": CAPTIONS}


def test_a_digest_that_the_catalogue_lacks_is_pinned_and_compared(server, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    known = {"text.txt": make_entry(server, "plain.txt", b"text", digest=None)}
    raw = {"image": {"prompts": {"file": "data/text.txt"}}}
    out = tmp_path / "pins.yaml"
    assert fetch_all.fetch_all_data(raw, known, out, print) == []
    assert pins.read(out) == {"data:text.txt": {**pins.NONE, "sha256": hashlib.sha256(b"text").hexdigest()}}
    (tmp_path / "data/text.txt").unlink()
    server.files["plain.txt"] = b"another text"
    with pytest.raises(ParityError, match="invalid hash"):
        fetch_all.fetch_all_data(raw, known, out, print)


def test_what_must_be_asked_for_is_one_line_after_the_rest_was_fetched(server, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    asked = catalogue.Entry(ask="https://host/form", licence="research alone")
    known = {"stories.csv": asked, "text.txt": make_entry(server, "plain.txt", b"text")}
    tasks = {"stories": [{"data": "data/stories.csv"}], "infilling": [{"data": "data/text.txt"}]}
    raw = {"experiment": "e", "text": {"methods": {"sequential": [{}]}, "tasks": tasks}}
    with pytest.raises(ParityError) as error:
        fetch_all.fetch_all(raw, known, tmp_path / "pins.yaml", print)
    line = (
        "data/stories.csv: not here, and not fetched (research alone); ask for it at https://host/form and put it there"
    )
    assert str(error.value) == line
    assert (tmp_path / "data/text.txt").read_bytes() == b"text"
    with pytest.raises(ConfigError, match=r"data/stories.csv: .*https://host/form"):
        catalogue.check(raw, known, "snakemake fetch")
    (tmp_path / "data/stories.csv").write_text("mine")
    fetch_all.fetch_all(raw, known, tmp_path / "pins.yaml", print)
    catalogue.check(raw, known, "snakemake fetch")
    (tmp_path / "data/text.txt").unlink()
    with pytest.raises(ConfigError, match=r"^data/text.txt: not here; `snakemake fetch` fetches it"):
        catalogue.check(raw, known, "snakemake fetch")


def test_a_network_at_an_address_is_fetched_to_where_its_manifest_will_be(server, tmp_path, monkeypatch, make_stand_in):
    monkeypatch.chdir(tmp_path)
    model = {"family": "llamagen", "source": "files", **make_stand_in("llamagen")}
    judge = {"file": f"{server.address}/plain/plain.txt", "sha256": hashlib.sha256(b"text").hexdigest()}
    raw = {
        "models": {"xl": model},
        "networks": {"inception": judge},
        "image": {"methods": {"ar": [{}]}, "prompts": {"file": "classes:10"}},
    }
    fetch_all.fetch_all(raw, {}, tmp_path / "pins.yaml", print)
    (file,) = (tmp_path / "results/checkpoints/networks").glob("inception-*/downloads/*")
    assert file.read_bytes() == b"text"
    server.requests.clear()
    hub.download_address(judge["file"], judge["sha256"], file.parent)
    assert not server.requests
    raw["networks"]["inception"]["sha256"] = "0" * 64
    with pytest.raises(ParityError, match=r"plain\.txt cannot be had: invalid hash"):
        fetch_all.fetch_all(raw, {}, tmp_path / "pins.yaml", print)


def test_stand_ins_need_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fetch_all.fetch_all({"stand_in": True, "models": {"xl": {}}}, catalogue.read(CATALOGUE), Path("pins.yaml"), print)
    assert not list(tmp_path.iterdir())


def test_the_catalogue_has_every_file_that_an_experiment_names():
    known = catalogue.read(CATALOGUE)
    named = set()
    for file in sorted((ROOT / "workflow/experiments").glob("*.yaml")):
        raw = yaml.safe_load(file.read_text(encoding="utf-8"))
        values = [v for keys in catalogue.DATA for _, v in catalogue.iter_values(raw, keys.split("."))]
        files = {v for v in values if isinstance(v, str) and v.startswith(catalogue.FOLDER)}
        assert {f"{catalogue.FOLDER}{name}" for name in catalogue.list_named(raw, known)} == files, file.name
        named |= files
    assert len(named) > 5


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ({"licence": "MIT"}, "needs an address"),
        ({"licence": "MIT", "address": "https://host/x", "ask": "https://host/form"}, "needs an address"),
        ({"address": "https://host/x"}, "licence"),
        ({"licence": "MIT", "address": "file:///etc/passwd"}, "address"),
        ({"licence": "MIT", "address": "https://host/x", "sha256": "abc"}, "sha256"),
        ({"licence": "MIT", "address": "https://host/x", "md5": "abc"}, "md5"),
    ],
)
def test_a_wrong_entry_of_the_catalogue_is_refused(tmp_path, entry, problem):
    (tmp_path / "data.yaml").write_text(yaml.safe_dump({"x.txt": entry}))
    with pytest.raises(ConfigError, match=problem):
        catalogue.read(tmp_path / "data.yaml")
    for name in ("../x", ".hidden", "a/b"):
        (tmp_path / "data.yaml").write_text(yaml.safe_dump({name: {"licence": "MIT", "address": "https://host/x"}}))
        with pytest.raises(ConfigError):
            catalogue.read(tmp_path / "data.yaml")
