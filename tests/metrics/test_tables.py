"""Tables are what was written, or one line."""

import numpy as np
import pandas as pd
import pytest

from parity.base.errors import ParityError
from parity.metrics.tables import read_table, write_table

COLUMNS = {
    "id": np.array(["a", "b", "c"]),
    "caption": np.array(["é", "", "x y"]),
    "nfe": np.arange(3),
    "clip": np.array([0.5, np.nan, 1.0], dtype=np.float32),
    "step": [[1, 2], [], [3]],
}


def test_a_table_is_what_was_written_and_anybody_can_read_it(tmp_path):
    write_table(tmp_path / "t.parquet", COLUMNS)
    found = read_table(tmp_path / "t.parquet")
    assert found.equals(pd.read_parquet(tmp_path / "t.parquet")) and found["nfe"].tolist() == [0, 1, 2]
    assert [list(s) for s in found["step"]] == COLUMNS["step"]
    pd.DataFrame({"x": [1]}).to_parquet(tmp_path / "theirs.parquet")
    assert read_table(tmp_path / "theirs.parquet")["x"].tolist() == [1]
    with pytest.raises(FileNotFoundError):
        read_table(tmp_path / "gone.parquet")


def test_a_changed_bit_of_a_value_and_a_cut_are_one_line(tmp_path):
    write_table(tmp_path / "t.parquet", {"x": np.random.default_rng(0).random(1000)})
    data = (tmp_path / "t.parquet").read_bytes()
    for bit in np.linspace(8 * 200, 8 * (len(data) - 1000), 20).astype(int):
        (tmp_path / "t.parquet").write_bytes(
            data[: bit // 8] + bytes([data[bit // 8] ^ 1 << bit % 8]) + data[bit // 8 + 1 :]
        )
        with pytest.raises(ParityError, match=r"t\.parquet: damaged"):
            read_table(tmp_path / "t.parquet")
    for cut in (b"", data[:-9], data[:40]):
        (tmp_path / "t.parquet").write_bytes(cut)
        with pytest.raises(ParityError, match=r"t\.parquet: damaged"):
            read_table(tmp_path / "t.parquet")
