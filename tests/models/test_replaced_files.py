"""A file that is replaced under its path after a run's start stops the jobs that follow, and names itself."""

import os
from pathlib import Path

import pytest

from parity.base.digests import parts, read_manifest, sha256
from parity.base.errors import ParityError
from parity.base.files import write_json
from parity.models import fetch
from parity.stand_ins import make_entry, write


def make_pair(folder):
    """Write a published continuous pair, which is converted when it is fetched; return its entry."""
    files = {name: str(folder / path) for name, path in write("mar", folder).items()}
    digests = {name: sha256(Path(file)) for name, file in files.items()}
    return {"files": files, "sha256": digests, "network": {"grid": 4}}


def make_with(first, second, folder):
    entries = [make_entry(name, folder / name) for name in (first, second)]
    return {**entries[0], **{key: entries[0][key] | entries[1][key] for key in ("files", "sha256")}}


def make_judge(folder):
    """Write a file that stands for Inception's; return its entry."""
    folder.mkdir()
    (folder / "inception.pth").write_bytes(bytes(100))
    return {"file": str(folder / "inception.pth"), "sha256": sha256(folder / "inception.pth")}


MADE = {  # kind, family, and a function of a folder that writes files and returns the entry of a configuration
    "transformer, tokenizer, text encoder, drafter": (
        "discrete", "llamagen", lambda folder: make_with("llamagen", "eagle_drafter", folder),
    ),
    "a folder": ("discrete", "janus", lambda folder: make_entry("janus", folder)),
    "a pair": ("continuous", "mar", make_pair),
    "a converted pair": ("continuous", "mar", lambda folder: make_entry("mar", folder)),
    "text": ("anysubset", "xlnet", lambda folder: make_with("xlnet", "gpt2", folder)),
    "a judge": ("networks", "inception", make_judge),
}  # fmt: skip


@pytest.mark.parametrize("case", MADE)
def test_a_replaced_file_stops_what_follows(tmp_path, case):
    kind, family, make = MADE[case]
    entry = make(tmp_path / "files") | ({} if kind == "networks" else {"family": family, "source": "files"})
    write_json(tmp_path / "manifest.json", fetch.make_manifest(kind, family, entry, tmp_path / "out"))
    manifest = read_manifest(tmp_path / "manifest.json")
    verified = manifest["verified"]
    digests = entry.get("sha256", manifest["sha256"])
    assert set(digests.values() if isinstance(digests, dict) else [digests]) <= {digest for *_, digest in verified}
    for key, path, digest in verified:
        file = parts(Path(path))[0]
        content, status = file.read_bytes(), file.stat()
        file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))  # size, time and inode are as before
        with pytest.raises(ParityError) as error:
            read_manifest(tmp_path / "manifest.json")
        assert all(word in str(error.value) for word in (key, path, digest, sha256(Path(path)), "put the former file"))
        file.write_bytes(content)
    assert read_manifest(tmp_path / "manifest.json") == manifest
