"""Files that claim more than they hold, or hold more than they say: one line, at once, and little memory.

Of each kind that a user can name: text data, weights, pickles, headers, statistics, pictures, somebody's JSON.
"""

import gzip
import io
import json
import tracemalloc
import zipfile

import numpy as np
import pytest
import torch

from parity.base import files
from parity.base.errors import ParityError
from parity.base.weights import read_shapes, unpickle
from parity.inputs import picture_files, readers

LITTLE = 20_000_000  # bytes of memory


def text(path):
    return readers.read_rows(str(path), ("text",), 1)


def statistics(path):
    return picture_files.read_statistics(path)


def every_picture(path):
    return list(picture_files.read_pictures(path)[1])


def array(path, **members):
    """An .npz whose members say what they are and hold eight bytes."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, (descr, shape) in members.items():
            stream = io.BytesIO()
            np.lib.format.write_array_header_1_0(stream, {"descr": descr, "fortran_order": False, "shape": shape})
            archive.writestr(f"{name}.npy", stream.getvalue() + bytes(8))


def sparse(path, size=10**13, start=b""):
    with path.open("wb") as stream:
        stream.write(start)
        stream.truncate(size)


def packed(path):
    with gzip.open(path, "wb", 1) as stream:
        for _ in range(20):
            stream.write(bytes(1_000_000))


def tensors(path, said):
    head = json.dumps(said).encode()
    path.write_bytes(len(head).to_bytes(8, "little") + head)


def view(path):
    torch.save({"x": torch.zeros(1).expand(10**9, 10**9)}, path)


FAR = {"x": {"dtype": "F32", "shape": [10**9, 10**9], "data_offsets": [0, 4]}}
HOSTILE = {
    "a device as text data": ("a.txt", text, lambda p: p.symlink_to("/dev/zero")),
    "text data of ten terabytes": ("a.txt", text, sparse),
    "a small archive of much text": ("a.txt.gz", text, packed),
    "text data nested a million deep": ("a.jsonl", text, lambda p: p.write_text("[" * 1_000_000)),
    "a header of safetensors that ends nowhere": (
        "a.safetensors", read_shapes, lambda p: p.write_bytes(b"\xff" * 7 + b"\1"),
    ),
    "a tensor beyond the file": ("a.safetensors", read_shapes, lambda p: tensors(p, FAR)),
    "a pickled view of one number": ("a.pt", unpickle, view),
    "a pickle that is an archive of nothing": ("a.pt", unpickle, lambda p: zipfile.ZipFile(p, "w").close()),
    "statistics that are not finite": ("a.npz", statistics, lambda p: np.savez(p, mu=[np.nan], sigma=[[1.0]])),
    "pictures of no size": ("a.npz", every_picture, lambda p: array(p, arr_0=("|u1", (1, -4, 4, 3)))),
    "pictures of many terabytes": ("a.npz", every_picture, lambda p: array(p, arr_0=("|u1", (10**9, 256, 256, 3)))),
    "pictures of objects": ("a.npz", every_picture, lambda p: np.savez(p, arr_0=np.array([{}], dtype=object))),
    "pictures by columns": ("a.npz", every_picture, lambda p: np.savez(p, arr_0=np.zeros((2, 4, 4, 3), "u1", "F"))),
    "pictures of floats": ("a.npz", every_picture, lambda p: np.savez(p, arr_0=np.zeros((2, 4, 4, 3)))),
    "an archive that is cut": ("a.npz", every_picture, lambda p: p.write_bytes(b"PK" + bytes(100))),
    "a picture that is cut": ("a", every_picture, lambda p: (p.mkdir(), (p / "a.png").write_bytes(b"\x89PNG\r\n"))),
    "a reference that is not there": ("a.npz", statistics, lambda p: None),
    "somebody's JSON nested a million deep": ("a.json", files.foreign_json, lambda p: p.write_text("[" * 1_000_000)),
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_file_is_one_line_and_little_memory(tmp_path, case):
    name, read, make = HOSTILE[case]
    make(tmp_path / name)
    with pytest.MonkeyPatch.context() as m:
        m.setattr(readers, "MOST", 1_000_000)
        tracemalloc.start()
        try:
            with pytest.raises(ParityError) as error:
                read(tmp_path / name)
            assert tracemalloc.get_traced_memory()[1] < LITTLE
        finally:
            tracemalloc.stop()
    assert "\n" not in str(error.value)
    assert name in str(error.value)
    assert len(str(error.value)) < 500


def test_what_is_within_bounds_is_read(tmp_path):
    with gzip.open(tmp_path / "a.txt.gz", "wt") as stream:
        stream.write("a b\n")
    assert text(tmp_path / "a.txt.gz") == [{"text": "a b"}]
    np.savez(tmp_path / "a.npz", mu=np.zeros(3), sigma=np.eye(3), arr_0=np.zeros((2, 4, 4, 3), np.uint8))
    assert set(statistics(tmp_path / "a.npz")) == {"mu", "sigma"}
    assert len(every_picture(tmp_path / "a.npz")) == 2
    both = torch.zeros(6)
    torch.save({"x": both.view(2, 3), "y": both[:2]}, tmp_path / "a.pt")
    assert set(unpickle(tmp_path / "a.pt")) == {"x", "y"}
