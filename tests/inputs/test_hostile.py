"""Files that claim more than they hold, or hold more than they claim, are refused in one line.

Of each kind that a user can name: text data, weights, pickles, headers, statistics, images, JSON of others.
"""

import gzip
import io
import json
import zipfile

import numpy as np
import pytest
import torch

from parity.base import files, text_files
from parity.base.errors import ParityError
from parity.base.weights import read_shapes, unpickle
from parity.inputs import image_files, readers
from parity.inputs.image_files import read_statistics


def read_text_rows(path):
    return readers.read_rows(str(path), ("text",), 1)


def read_images(path):
    return list(image_files.read_images(path)[1])


def write_false_array(path, claim):
    """Write an .npz whose array claims a dtype and shape, `claim`, but holds eight bytes."""
    header = {"descr": claim[0], "fortran_order": False, "shape": claim[1]}
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, header)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("arr_0.npy", stream.getvalue() + bytes(8))


def write_sparse_file(path):
    """Write a file of 10 TB that takes no space."""
    with path.open("wb") as stream:
        stream.truncate(10**13)


def write_gzip(path):
    """Write a gzip file of few bytes that unpacks to 20 MB."""
    with gzip.open(path, "wb", 1) as stream:
        for _ in range(20):
            stream.write(bytes(1_000_000))


def write_safetensors_header(path, header):
    """Write a safetensors file that ends after its header."""
    content = json.dumps(header).encode()
    path.write_bytes(len(content).to_bytes(8, "little") + content)


def save_expanded_view(path):
    """Save a tensor of 10^18 entries that share one number."""
    torch.save({"x": torch.zeros(1).expand(10**9, 10**9)}, path)


FAR = {"x": {"dtype": "F32", "shape": [10**9, 10**9], "data_offsets": [0, 4]}}
HOSTILE = {
    "a device as text data": ("a.txt", read_text_rows, lambda p: p.symlink_to("/dev/zero")),
    "text data of ten terabytes": ("a.txt", read_text_rows, write_sparse_file),
    "a small archive of much text": ("a.txt.gz", read_text_rows, write_gzip),
    "text data nested a million deep": ("a.jsonl", read_text_rows, lambda p: p.write_text("[" * 1_000_000)),
    "a header of safetensors that ends nowhere": (
        "a.safetensors", read_shapes, lambda p: p.write_bytes(b"\xff" * 7 + b"\1"),
    ),
    "a tensor beyond the file": ("a.safetensors", read_shapes, lambda p: write_safetensors_header(p, FAR)),
    "a pickled view of one number": ("a.pt", unpickle, save_expanded_view),
    "a pickle that is an archive of nothing": ("a.pt", unpickle, lambda p: zipfile.ZipFile(p, "w").close()),
    "statistics that are not finite": ("a.npz", read_statistics, lambda p: np.savez(p, mu=[np.nan], sigma=[[1.0]])),
    "images of no size": ("a.npz", read_images, lambda p: write_false_array(p, ("|u1", (1, -4, 4, 3)))),
    "images of terabytes": ("a.npz", read_images, lambda p: write_false_array(p, ("|u1", (10**9, 256, 256, 3)))),
    "images of objects": ("a.npz", read_images, lambda p: np.savez(p, arr_0=np.array([{}], dtype=object))),
    "images by columns": ("a.npz", read_images, lambda p: np.savez(p, arr_0=np.zeros((2, 4, 4, 3), "u1", "F"))),
    "images of floats": ("a.npz", read_images, lambda p: np.savez(p, arr_0=np.zeros((2, 4, 4, 3)))),
    "an archive that is cut": ("a.npz", read_images, lambda p: p.write_bytes(b"PK" + bytes(100))),
    "an image that is cut": ("a", read_images, lambda p: (p.mkdir(), (p / "a.png").write_bytes(b"\x89PNG\r\n"))),
    "a reference that is not there": ("a.npz", read_statistics, lambda p: None),
    "somebody's JSON nested a million deep": ("a.json", files.foreign_json, lambda p: p.write_text("[" * 1_000_000)),
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_file_is_one_line(tmp_path, case):
    name, read, make = HOSTILE[case]
    make(tmp_path / name)
    with pytest.MonkeyPatch.context() as m:
        m.setattr(text_files, "MOST", 1_000_000)
        with pytest.raises(ParityError) as error:
            read(tmp_path / name)
    assert name in str(error.value)
    assert len(str(error.value)) < 500


def test_harmless_files_are_read(tmp_path):
    with gzip.open(tmp_path / "a.txt.gz", "wt") as stream:
        stream.write("a b\n")
    assert read_text_rows(tmp_path / "a.txt.gz") == [{"text": "a b"}]
    np.savez(tmp_path / "a.npz", mu=np.zeros(3), sigma=np.eye(3), arr_0=np.zeros((2, 4, 4, 3), np.uint8))
    assert set(read_statistics(tmp_path / "a.npz")) == {"mu", "sigma"}
    assert len(read_images(tmp_path / "a.npz")) == 2
    tensor = torch.zeros(6)
    torch.save({"x": tensor.view(2, 3), "y": tensor[:2]}, tmp_path / "a.pt")
    assert set(unpickle(tmp_path / "a.pt")) == {"x", "y"}
