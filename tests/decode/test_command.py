"""The command that decodes a shard of any kind: what it writes, and what it does not do twice."""

import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest

from parity.base.errors import ParityError
from parity.decode.shard_io import read_shard
from parity.experiment.options import KINDS

every_kind = pytest.mark.parametrize("job", list(KINDS), indirect=True)
NOWHERE = "no/manifest.json"  # no such checkpoint: a job that loads its model fails


def is_same(one, two, kind):
    """Return whether two arrays of tokens are equal; those of continuous models to 1e-4, since sums differ in order."""
    close = np.allclose(one, two, rtol=0, atol=1e-4) if kind == "continuous" else np.array_equal(one, two)
    return one.shape == two.shape and close


@every_kind
def test_rows_do_not_depend_on_their_batch(job, run_decode):
    """Every column is filled in."""
    batched, single = run_decode(job), run_decode(job, batch=1, code="1")
    assert is_same(single.tokens, batched.tokens, job.kind)
    assert np.array_equal(single.step, batched.step)
    assert single.batch.tolist() == [1, 1, 1]
    assert batched.batch.tolist() == [3, 3, 3]
    if job.kind == "anysubset":  # checked for this kind alone, which decodes the fastest
        assert not is_same(run_decode(job.replace_spec(seed=3)).tokens, batched.tokens, job.kind)
    assert all(len(c) == 3 for c in single.columns.values())
    assert single.ids.dtype.kind == "U"
    assert (single.step.max(1) >= 1).all()
    assert (single.passes >= 1).all()
    assert ((single.network_seconds > 0) & (single.network_seconds < single.seconds)).all()
    assert single.provenance["spec"] == job.spec
    assert single.provenance["code"] == "1"


@pytest.mark.parametrize("job", ["discrete", "anysubset"], indirect=True)
def test_a_job_is_refilled_where_its_method_can_be(job, run_decode):
    """Only images, and here only on request, because there is no GPU."""
    separate, refilled = run_decode(job, batch=2), run_decode(job, batch=2, code="1", refill="on")
    assert is_same(refilled.tokens, separate.tokens, job.kind)
    assert np.array_equal(refilled.step, separate.step)
    assert separate.batch.tolist() == [2, 2, 1] == separate.at_once.tolist()
    assert refilled.batch.tolist() == ([3] * 3 if job.kind == "discrete" else [2, 2, 1])
    assert refilled.at_once.tolist() == ([2] * 3 if job.kind == "discrete" else [2, 2, 1])


@pytest.mark.parametrize("job", ["anysubset"], indirect=True)
@pytest.mark.parametrize("damage", ["cut", "flip", "other"])
def test_a_damaged_file_of_the_store_is_decoded_again(job, run_decode, damage):
    shard = run_decode(job)
    (file,) = job.store.iterdir()
    data = bytearray(file.read_bytes())
    for i in range(len(data) // 2, len(data) // 2 + 200):  # damage more bytes than the header between two columns has
        data[i] ^= 0x5A
    if damage == "other":
        np.savez(file, ids=shard.ids)  # a readable file that is no shard
    else:
        file.write_bytes(bytes(data[: len(data) // 2]) if damage == "cut" else bytes(data))
    with pytest.raises(FileNotFoundError, match="manifest"):
        run_decode(job, checkpoint=NOWHERE)
    assert np.array_equal(run_decode(job).tokens, shard.tokens)


@pytest.mark.parametrize("job", ["anysubset"], indirect=True)
def test_a_job_decodes_only_shards_that_the_store_lacks(job, run_decode, capsys):
    """A lost shard alone is decoded again, with the same rows."""
    one_shard, two_shards = run_decode(job), run_decode(job, shards=2, code="1")
    assert np.array_equal(two_shards.ids, one_shard.ids)
    assert is_same(two_shards.tokens, one_shard.tokens, job.kind)
    stored = {file: read_shard(file) for file in job.store.iterdir() if len(read_shard(file).ids) < 3}
    assert sorted(len(shard.ids) for shard in stored.values()) == [1, 2]
    lost = next(file for file, shard in stored.items() if len(shard.ids) == 2)
    lost.unlink()
    with pytest.raises(FileNotFoundError, match="manifest"):
        run_decode(job, shards=2, code="1", checkpoint=NOWHERE)
    repeated = run_decode(job, shards=2, code="1")
    assert "1 of 2 shards" in capsys.readouterr().out
    assert is_same(repeated.tokens, one_shard.tokens, job.kind)
    # The first shard was taken from the store, with its time.
    assert np.array_equal(repeated.seconds[:1], two_shards.seconds[:1])
    assert is_same(run_decode(job, shards=2, code="1", checkpoint=NOWHERE).tokens, one_shard.tokens, job.kind)


def lengthen(job, count):
    """Make the job of this many rows: images numbered on, or the job's texts in turn under ids of their own."""
    if job.rows is None:
        return job.replace_spec(images=count)
    turn = np.arange(count) % len(job.rows["ids"])
    rows = {name: column[turn] for name, column in job.rows.items()}
    return replace(job, rows=rows | {"ids": np.array([f"text-{i}" for i in range(count)])})


@pytest.mark.parametrize("job", ["anysubset", "continuous"], indirect=True)
def test_parts_hold_the_rows_of_the_whole(job, run_decode):
    """Of a cell of texts or vectors each job takes its part. Another part has other tokens."""
    whole = run_decode(job)
    parts = [run_decode(job, part=(k, 2)) for k in range(2)]
    assert [len(part.ids) for part in parts] == [1, 2]
    assert np.array_equal(np.concatenate([part.ids for part in parts]), whole.ids)
    assert is_same(np.concatenate([part.tokens for part in parts]), whole.tokens, job.kind)
    assert not is_same(parts[0].tokens, parts[1].tokens[:1], job.kind)
    for part in ((2, 2), (0, 4)):
        with pytest.raises(ParityError, match=f"--part {part[0]} {part[1]}: allowed"):
            run_decode(job, part=part)


@pytest.mark.parametrize("job", ["continuous"], indirect=True)
def test_a_further_run_has_images_of_its_own(job, run_decode):
    """Numbered on: the further run of two images from the second on are the last two of a run of three."""
    three, further = run_decode(job), run_decode(job.replace_spec(images=2, first=1))
    assert further.ids.tolist() == ["1", "2"]
    assert is_same(further.tokens, three.tokens[1:], job.kind)
    assert not is_same(further.tokens, three.tokens[:2], job.kind)


@pytest.mark.parametrize("job", ["anysubset"], indirect=True)
def test_a_job_keeps_every_few_batches(job, run_decode):
    for batch in (1, 3):
        run_decode(lengthen(job, 9), batch=batch, shards=0, code=str(batch))
    stored = [read_shard(file) for file in job.store.iterdir()]
    assert sorted(len(shard.ids) for shard in stored if shard.provenance["code"] == "1") == [3, 3, 3]
    assert [len(shard.ids) for shard in stored if shard.provenance["code"] == "3"] == [9]


@pytest.mark.long
@pytest.mark.parametrize("job", ["anysubset", "continuous"], indirect=True)
def test_a_job_killed_in_its_middle_loses_the_shard_in_flight_alone(job, run_decode):
    """Killed by SIGKILL when the first of its shards is kept. What it kept is not decoded again, and the tokens are
    those of a job that was not killed."""
    n = {"anysubset": 20, "continuous": 4}[job.kind]  # of the first many are decoded in a second
    job = lengthen(job, n)
    command = [sys.executable, "-m", "parity.decode", *job.make_arguments(batch=1, shards=n)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None and not list(job.store.glob("[!.]*.npz")):
            time.sleep(0.001)
        process.kill()
    kept = {file.name: file.stat().st_ino for file in job.store.glob("[!.]*.npz")}
    assert 0 < len(kept) < n
    assert not (job.folder / "0-of-1.npz").exists()
    with pytest.raises(FileNotFoundError, match="manifest"):  # the others are to be decoded
        run_decode(job, batch=1, shards=n, checkpoint=NOWHERE)
    resumed = run_decode(job, batch=1, shards=n)
    stored = {file.name: file.stat().st_ino for file in job.store.glob("[!.]*.npz")}
    assert kept.items() <= stored.items()
    assert len(stored) == n
    unkilled = run_decode(job, batch=1, shards=n, code="1")
    assert np.array_equal(resumed.ids, unkilled.ids)
    assert np.array_equal(resumed.tokens, unkilled.tokens)
