"""Files are whole or absent, and damage is noticed when they are read."""

import asyncio
import errno
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from parity.base import files, machine
from parity.base.errors import ParityError
from parity.experiment import paths


@pytest.mark.parametrize("call", ["write", "fsync", "replace"])
def test_a_writer_that_fails_leaves_the_old_file_and_no_litter(tmp_path, monkeypatch, call):
    path = tmp_path / "x.json"
    files.write_json(path, {"a": 1})

    def fail(*_):
        raise OSError(28, "No space left on device")

    if call == "write":
        monkeypatch.setattr(Path, "write_bytes", fail)
    else:
        monkeypatch.setattr(os, call, fail)
    with pytest.raises(OSError, match="No space"):
        files.write_json(path, {"a": 2})
    monkeypatch.undo()
    assert files.read_json(path) == {"a": 1} and [p.name for p in tmp_path.iterdir()] == ["x.json"]


def test_a_killed_writer_never_leaves_half_a_file(tmp_path):
    """SIGKILL at random moments of a process that rewrites one file without pause: the file is always whole."""
    code = f"""
import sys
sys.path.insert(0, {json.dumps(os.path.dirname(os.path.dirname(os.path.dirname(files.__file__))))})
from pathlib import Path
from parity.base import files, machine
files.publish(Path({json.dumps(str(tmp_path / "f"))}), b"a" * 300_000)
print("go", flush=True)
while True:
    for c in (b"a", b"b"):
        files.publish(Path({json.dumps(str(tmp_path / "f"))}), c * 300_000)
"""
    rng = np.random.default_rng(0)
    for _ in range(8):
        with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as writer:
            writer.stdout.readline()
            try:
                writer.wait(timeout=rng.uniform(0.001, 0.05))
            except subprocess.TimeoutExpired:
                writer.kill()
        data = (tmp_path / "f").read_bytes()
        assert data in (b"a" * 300_000, b"b" * 300_000)


def test_digest_ignores_order_and_sees_values():
    assert files.digest({"a": 1, "b": [1, 2]}) == files.digest({"b": [1, 2], "a": 1})
    assert len({files.digest(v) for v in ({"a": 1}, {"a": 1.5}, {"a": "1"}, {"b": 1}, {"a": [1]})}) == 5


def test_a_damaged_file_of_arrays_is_named_and_one_that_is_missing_is_missing(tmp_path):
    files.write_arrays(tmp_path / "x.npz", x=np.arange(5))
    assert files.read_arrays(tmp_path / "x.npz")["x"].tolist() == [0, 1, 2, 3, 4]
    (tmp_path / "x.npz").write_bytes((tmp_path / "x.npz").read_bytes()[:-9])
    with pytest.raises(ParityError, match=r"x\.npz: damaged \(.*\); delete it and run again"):
        files.read_arrays(tmp_path / "x.npz")
    with pytest.raises(FileNotFoundError):
        files.read_arrays(tmp_path / "y.npz")


def test_numbered_files_are_found_again_by_one_name(tmp_path):
    """What the workflow names together a command takes apart, in order; a gap, or too few, is one line."""
    names = [str(tmp_path / f"{k}-of-12.npz") for k in range(12)]
    for name in (*names, str(tmp_path / "0-of-2.npz"), str(tmp_path / ".0-of-12.npz.part")):
        open(name, "w").close()
    assert [str(p) for p in files.apart(Path(paths.together(names)))] == names
    assert (
        files.apart(tmp_path / "0-of-2.npz")
        == [tmp_path / "0-of-2.npz"]
        == [Path(paths.together([f"{tmp_path}/0-of-2.npz"]))]
    )
    for lacking in ("*-of-2.npz", "*-of-3.npz", "*.json"):
        with pytest.raises(ParityError, match="numbered from 0 without a gap"):
            files.apart(tmp_path / lacking)
    os.remove(names[3])
    with pytest.raises(ParityError, match="11 files"):
        files.apart(tmp_path / "*-of-12.npz")
    with pytest.raises(ValueError, match="not files of one folder"):
        paths.together([names[0], "elsewhere/1-of-12.npz"])


@pytest.mark.parametrize(
    "value",
    [{"b": 1.5, "a": [None, "é"]}, [{"id": "0"}], {10: 1, 9: 2}, {}],
    ids=["object", "list", "numbers", "empty"],
)
def test_no_bit_of_a_result_that_is_another_goes_unseen(tmp_path, value):
    """One line, or what was written (a space that became a tab)."""
    path = tmp_path / "x.json"
    files.write_result(path, value)
    data, whole = path.read_bytes(), json.loads(json.dumps(value))
    assert files.read_json(path) == whole
    for bit in range(8 * len(data)):
        path.write_bytes(data[: bit // 8] + bytes([data[bit // 8] ^ 1 << bit % 8]) + data[bit // 8 + 1 :])
        try:
            assert files.read_json(path) == whole, bit
        except ParityError as error:
            assert "\n" not in str(error) and str(error).endswith("; delete it and run again")
    for cut in (b"", data[:-9]):
        path.write_bytes(cut)
        with pytest.raises(ParityError, match=r"x\.json: damaged"):
            files.read_json(path)


def test_what_is_not_sealed_is_read_as_it_is(tmp_path):
    files.write_json(tmp_path / "x.json", {"sha256": {"a": "0"}, "entries": [1]})
    assert files.read_json(tmp_path / "x.json") == {"sha256": {"a": "0"}, "entries": [1]}


def test_a_folder_is_what_its_sums_say(tmp_path):
    files.publish(tmp_path / "a.csv", b"1\n")
    files.check_sums(tmp_path)
    files.publish(tmp_path / "SHA256SUMS", f"{hashlib.sha256(b'1' + bytes([10])).hexdigest()}  a.csv\n".encode())
    files.check_sums(tmp_path)
    (tmp_path / "a.csv").write_bytes(b"2\n")
    with pytest.raises(ParityError, match=r"a\.csv: damaged \(it is not as it was made\); delete it and run again"):
        files.check_sums(tmp_path)
    (tmp_path / "a.csv").unlink()
    files.check_sums(tmp_path)


def test_a_record_that_cannot_be_read_is_one_that_is_not_there():
    def read(self, key):
        return {"whole": 1}[key] if key != "bits" else b"\xff".decode()

    records = type("Records", (), {"_read_record": read})
    machine.pass_over_damaged(records)
    assert records()._read_record("whole") == 1 and records()._read_record("bits") is None
    with pytest.raises(KeyError):
        records()._read_record("gone")


def test_what_is_replaced_of_snakemake_is_there():
    """A version that calls it something else would read damaged records, and compare times, as before."""
    import snakemake.api  # noqa: F401  before its dag, which imports it
    from snakemake.dag import DAG
    from snakemake.persistence.file import FilePersistence

    assert callable(FilePersistence._read_record) and callable(DAG.check_output_mtime)
    plan = type("Plan", (), {"check_output_mtime": None})
    machine.pass_over_clocks(plan)
    assert asyncio.run(plan().check_output_mtime("job", [])) is None


def test_a_full_disk_names_the_file(tmp_path):
    with pytest.raises(OSError, match=r"out\.json"), files.whole(tmp_path / "out.json") as part:
        part.write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device")
    assert not list(tmp_path.iterdir())
