"""The command that decodes a shard of any kind: what it writes, and what it does not do twice."""

import subprocess
import sys
from contextlib import contextmanager

import numpy as np
import pytest

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


@pytest.mark.long
@pytest.mark.parametrize("job", ["anysubset"], indirect=True)
def test_a_killed_job_leaves_nothing_and_can_be_repeated(job, run_decode):
    """Killed by SIGKILL after the first of three batches."""
    command = [sys.executable, "-m", "parity.decode", *job.make_arguments(batch=1)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        line = process.stderr.readline()
        process.kill()
    assert line.endswith("1 of 3\n")
    assert not job.store.exists()
    assert not (job.folder / "0-of-1.npz").exists()
    repeated = run_decode(job, batch=1)
    assert np.array_equal(repeated.tokens, run_decode(job, code="1").tokens)


@pytest.mark.parametrize("job", ["anysubset"], indirect=True)
def test_two_jobs_of_one_shard_decode_it_once(job, run_decode, monkeypatch):
    """The second waits and finds it, as after a killed Snakemake whose job still runs."""
    import parity.decode.__main__ as command

    first = run_decode(job)
    waited = []
    (file,) = job.store.iterdir()
    content = file.read_bytes()
    file.unlink()

    @contextmanager
    def lock_shard(shard):
        """As the lock of a shard that waits until the other job has written it: note the shard and write it."""
        waited.append(shard)
        shard.write_bytes(content)  # as if the other job had ended
        yield

    monkeypatch.setattr(command, "lock_shard", lock_shard)
    monkeypatch.setattr(command.loop, "decode", lambda *_: pytest.fail("decoded twice"))
    assert np.array_equal(run_decode(job).tokens, first.tokens)
    assert waited == [file]
