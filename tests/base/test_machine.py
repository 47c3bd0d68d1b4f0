"""What the workflow asks of the machine: whether Snakemake's record of what results were made from was lost."""

import pytest

from parity.base.errors import ParityError
from parity.base.machine import note_lost_record


def write(*files):
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("")


@pytest.mark.parametrize(
    ("results", "record", "is_lost"),
    [
        ((), None, False),  # a first run
        ((), (), False),
        (("tiny/report.html",), ("cmVz",), False),
        (("tiny/report.html",), (), True),
        (("tiny/report.html",), None, True),
        (("cells/discrete/m/ar-0/shards/0-of-1.npz",), None, True),
        (("equality/discrete/ar-0.json",), (), True),
        (("store/ab/x.npz",), None, False),  # named by a digest of all that it depends on
        (("store/ab/x.npz", "inputs/x.json"), None, True),
        ((".store.lock",), (), False),
    ],
)
def test_results_without_a_record_are_noted(tmp_path, results, record, is_lost):
    (tmp_path / "results").mkdir()
    write(*(tmp_path / "results" / name for name in results))
    if record is not None:
        (tmp_path / "metadata").mkdir()
        write(*(tmp_path / "metadata" / name for name in record))
    note = tmp_path / "results/made-anew.txt"
    line = note_lost_record(tmp_path / "results", tmp_path / "metadata", note)
    assert ("made anew, because" in line, note.exists()) == (is_lost, is_lost)


def test_a_note_that_cannot_be_written_is_one_line(tmp_path):
    write(tmp_path / "results/tiny/report.html")
    with pytest.raises(ParityError, match=r"made-anew\.txt: cannot be written .*allowed: --directory"):
        note_lost_record(tmp_path / "results", tmp_path / "metadata", tmp_path / "none/made-anew.txt")
