"""The command that decodes a shard, of every kind of model: what it writes, and what it never does twice."""

import subprocess
import sys
from contextlib import contextmanager

import numpy as np
import pytest

from parity.decode.loop import PACED
from parity.decode.shard_io import NEEDED, read_shard
from parity.experiment.options import KINDS

every_kind = pytest.mark.parametrize("job", list(KINDS), indirect=True)
NOWHERE = "no/manifest.json"  # a job that has to load its model fails on it


def same(one, two, kind):
    """Whether two shards hold the same tokens; those of continuous models up to the order of sums in a product."""
    close = np.allclose(one, two, rtol=0, atol=1e-4) if kind == "continuous" else np.array_equal(one, two)
    return one.shape == two.shape and close


@every_kind
def test_a_row_alone_is_the_row_in_a_batch_and_a_shard_says_how_it_came_about(job, decoded):
    """Tokens and steps do not depend on the batch; on the seed they do. Every column is filled in; plain decoding was
    timed beside the first batches of the job, and beside no other."""
    together, alone = decoded(job), decoded(job, batch=1, code="1")
    assert same(alone.tokens, together.tokens, job.kind)
    assert np.array_equal(alone.step, together.step)
    assert alone.batch.tolist() == [1, 1, 1]
    assert together.batch.tolist() == [3, 3, 3]
    if job.kind == "anysubset":  # the fastest
        assert not same(decoded(job.asked(seed=3)).tokens, together.tokens, job.kind)
    assert set(NEEDED) <= set(alone.columns)
    assert all(len(c) == 3 for c in alone.columns.values())
    assert alone.ids.dtype.kind == "U"
    assert (alone.step.max(1) >= 1).all()
    assert (alone.passes >= 1).all()
    timed = np.arange(3) < PACED
    assert np.array_equal(np.isfinite(alone.plain_seconds), timed)
    assert (alone.plain_seconds[timed] > 0).all()
    assert ((alone.network_seconds > 0) & (alone.network_seconds < alone.seconds)).all()
    singles = [getattr(alone, name)[timed] for name in ("seconds", "plain_seconds")]
    assert np.array_equal([alone.single_seconds[timed], alone.plain_single_seconds[timed]], singles)  # batches of one
    assert alone.provenance["spec"] == job.spec
    assert alone.provenance["code"] == "1"


@pytest.mark.parametrize("job", ["discrete", "anysubset"], indirect=True)
def test_a_job_is_refilled_where_its_method_can_be(job, decoded):
    """Asked for, of images alone, whose methods say so; where a GPU is not, not by itself."""
    apart, one = decoded(job, batch=2), decoded(job, batch=2, code="1", refill="on")
    assert same(one.tokens, apart.tokens, job.kind)
    assert np.array_equal(one.step, apart.step)
    assert apart.batch.tolist() == [2, 2, 1] == apart.at_once.tolist()
    assert one.batch.tolist() == ([3] * 3 if job.kind == "discrete" else [2, 2, 1])
    assert one.at_once.tolist() == ([2] * 3 if job.kind == "discrete" else [2, 2, 1])


@pytest.mark.parametrize("job", ["anysubset"], indirect=True)
def test_what_is_in_the_store_is_decoded_no_second_time(job, decoded):
    """An option changed and changed back, or a result deleted: linked from the store, no model loaded. Of other code or
    another seed: decoded."""
    changed = job.asked(options={**job.spec["options"], "k": 3})
    first, _ = decoded(job), decoded(changed)
    (job.folder / "0-of-1.npz").unlink()
    assert np.array_equal(decoded(job, checkpoint=NOWHERE).tokens, first.tokens)
    assert len(list(job.store.iterdir())) == 2
    for other, code in ((job, "1"), (job.asked(seed=9), "0")):
        with pytest.raises(FileNotFoundError, match="manifest"):
            decoded(other, checkpoint=NOWHERE, code=code)


@pytest.mark.parametrize("job", ["anysubset"], indirect=True)
@pytest.mark.parametrize("damage", ["cut", "flip", "other"])
def test_a_damaged_file_of_the_store_is_decoded_again(job, decoded, damage):
    whole = decoded(job)
    (file,) = job.store.iterdir()
    data = bytearray(file.read_bytes())
    for i in range(len(data) // 2, len(data) // 2 + 200):  # more than the header between two columns
        data[i] ^= 0x5A
    if damage == "other":
        np.savez(file, ids=whole.ids)  # a file that is sound, and no shard
    else:
        file.write_bytes(bytes(data[: len(data) // 2]) if damage == "cut" else bytes(data))
    with pytest.raises(FileNotFoundError, match="manifest"):
        decoded(job, checkpoint=NOWHERE)
    assert np.array_equal(decoded(job).tokens, whole.tokens)


@pytest.mark.parametrize("job", ["anysubset"], indirect=True)
def test_a_job_of_several_shards_decodes_those_that_are_not_kept(job, decoded, capsys):
    """The same rows in one file, a shard lost alone decoded again; plain decoding is timed beside the first."""
    whole, some = decoded(job), decoded(job, shards=2, code="1")
    assert np.array_equal(some.ids, whole.ids)
    assert same(some.tokens, whole.tokens, job.kind)
    assert np.isfinite(some.plain_seconds).tolist() == [True, False, False]
    kept = {file: read_shard(file) for file in job.store.iterdir() if len(read_shard(file).ids) < 3}
    assert sorted(len(shard.ids) for shard in kept.values()) == [1, 2]
    lost = next(file for file, shard in kept.items() if len(shard.ids) == 2)
    lost.unlink()
    with pytest.raises(FileNotFoundError, match="manifest"):
        decoded(job, shards=2, code="1", checkpoint=NOWHERE)
    again = decoded(job, shards=2, code="1")
    assert "1 of 2 shards" in capsys.readouterr().out
    assert same(again.tokens, whole.tokens, job.kind)
    assert np.array_equal(again.seconds[:1], some.seconds[:1])  # of the one that was kept
    assert same(decoded(job, shards=2, code="1", checkpoint=NOWHERE).tokens, whole.tokens, job.kind)


@pytest.mark.slow
@pytest.mark.parametrize("job", ["anysubset"], indirect=True)
def test_a_killed_job_leaves_nothing_and_its_repetition_is_the_whole(job, decoded):
    """SIGKILL after the first of three batches."""
    command = [sys.executable, "-m", "parity.decode", *job.arguments(batch=1)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        line = process.stderr.readline()
        process.kill()
    assert line.endswith("1 of 3\n")
    assert not job.store.exists()
    assert not (job.folder / "0-of-1.npz").exists()
    again = decoded(job, batch=1)
    assert np.array_equal(again.tokens, decoded(job, code="1").tokens)


@pytest.mark.parametrize("job", ["anysubset"], indirect=True)
def test_two_jobs_at_one_shard_decode_it_once(job, decoded, monkeypatch):
    """Who comes second waits, and finds it: a killed Snakemake's job, and the next run's."""
    import parity.decode.__main__ as command

    whole, waited = decoded(job), []
    (file,) = job.store.iterdir()
    kept = file.read_bytes()
    file.unlink()

    @contextmanager
    def lock_shard(shard):
        waited.append(shard)
        shard.write_bytes(kept)  # the other job ends
        yield

    monkeypatch.setattr(command, "lock_shard", lock_shard)
    monkeypatch.setattr(command.loop, "decode", lambda *_: pytest.fail("decoded twice"))
    assert np.array_equal(decoded(job).tokens, whole.tokens)
    assert waited == [file]
