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


def test_no_bit_that_is_another_changes_a_value_unseen(tmp_path):
    """Of 400 in turn: either one line, or the same table (a bit that nothing reads)."""
    write_table(tmp_path / "t.parquet", COLUMNS)
    data, whole, seen = (tmp_path / "t.parquet").read_bytes(), read_table(tmp_path / "t.parquet"), 0
    for bit in np.linspace(0, 8 * len(data) - 1, 400).astype(int):
        (tmp_path / "t.parquet").write_bytes(
            data[: bit // 8] + bytes([data[bit // 8] ^ 1 << bit % 8]) + data[bit // 8 + 1 :]
        )
        try:
            assert read_table(tmp_path / "t.parquet").equals(whole), bit
        except ParityError as error:
            seen += 1
            assert "\n" not in str(error) and str(error).endswith("; delete it and run again")
    assert seen > 200
    for cut in (b"", data[:-9], data[:40]):
        (tmp_path / "t.parquet").write_bytes(cut)
        with pytest.raises(ParityError, match=r"t\.parquet: damaged"):
            read_table(tmp_path / "t.parquet")
