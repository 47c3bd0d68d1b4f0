"""Devices: what is not there is one line; each job has its own; too little memory halves the batch."""

import numpy as np
import pytest
import torch

from parity.base import devices, machine
from parity.base.errors import ParityError
from parity.decode import loop


@pytest.mark.parametrize("given", ["cuda", "cuda:7", "tpu"])
def test_a_device_that_is_not_there_is_one_line(given, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: given != "cuda")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ParityError, match=r"--device.*allowed: cpu") as error:
        devices.check(given, "float32")
    assert "\n" not in str(error.value)
    devices.check("cpu", "float64")


def test_a_dtype_that_a_device_lacks_is_one_line(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: False)
    devices.check("cuda", "float32")
    with pytest.raises(ParityError, match=r"dtype bfloat16: .*allowed there: float32, float64"):
        devices.check("cuda", "bfloat16")


def test_each_job_has_a_device_of_its_own(tmp_path, monkeypatch, capsys):
    """Two devices, three jobs: the third waits until one of the others ends. Another job of a cluster that hides
    others' devices has a device of the same number, and not the same one."""
    held: list = []
    monkeypatch.setattr(devices, "HELD", held)
    assert [devices.claim_device("cuda", 2, tmp_path) for _ in range(2)] == ["cuda:0", "cuda:1"]
    monkeypatch.setattr(devices.time, "sleep", lambda seconds: held.pop().close())
    assert devices.claim_device("cuda", 2, tmp_path) == "cuda:1"
    assert "all 2 devices are held by other jobs; waiting" in capsys.readouterr().err
    monkeypatch.setenv("SLURM_JOB_ID", "18")
    assert devices.claim_device("cuda", 1, tmp_path) == "cuda:0"
    assert not capsys.readouterr().err
    assert devices.claim_device("cpu") == "cpu"
    assert devices.claim_device("cuda:1") == "cuda:1"
    for file in held:
        file.close()


class Leaf:
    """A kind of model of which a batch larger than `fits` is out of memory."""

    fits, seen = 3, []

    def make_starter(self, loaded, spec):
        return lambda rows, noise: (None, noise)

    def record(self, model, noise, steps):
        self.seen.append(len(noise.keys))
        if len(noise.keys) > self.fits:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return noise.uniform("sample", torch.zeros(len(noise.keys), 1, dtype=torch.int64))

    def networks(self, model):
        return []

    def columns(self, rows, model, noise, done):
        return {"tokens": done}


@pytest.fixture
def leaf(monkeypatch):
    """In place of a kind's leaf and decoder."""
    own = Leaf()
    own.seen = []
    monkeypatch.setattr(loop, "import_kind", lambda kind: own)
    monkeypatch.setattr(loop, "start_decoding", lambda kind, loaded, spec: lambda rows, noise: (None, noise, iter(())))
    return own


class Loaded:
    device = "cpu"


SPEC = {"method": "sjd", "options": {}, "seed": 1}
ROWS = {"ids": np.array([str(i) for i in range(17)])}


def test_out_of_memory_halves_the_batch_says_so_and_keeps_the_tokens(leaf, capsys):
    done = loop.decode("discrete", Loaded(), SPEC, ROWS, 12)
    assert leaf.seen == [12, 6, 3, 3, 3, 3, 3, 2]
    assert done.ids.tolist() == ROWS["ids"].tolist()
    said = [line for line in capsys.readouterr().err.splitlines() if "out of memory" in line]
    assert said == [f"out of memory: batch {n} on cpu; {n // 2} from here on, with the same tokens" for n in (12, 6)]
    leaf.fits = 100
    assert np.array_equal(done.tokens, loop.decode("discrete", Loaded(), SPEC, ROWS, 17).tokens)


def test_one_row_that_does_not_fit_is_one_line_and_other_errors_are_themselves(leaf, monkeypatch):
    leaf.fits = 0
    with pytest.raises(ParityError, match="out of memory: batch 1 on cpu: one row does not fit; allowed: a device"):
        loop.decode("discrete", Loaded(), SPEC, ROWS, 2)
    monkeypatch.setattr(leaf, "record", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        loop.decode("discrete", Loaded(), SPEC, ROWS, 2)


def test_a_number_of_devices_is_placed_where_the_job_runs(monkeypatch, capsys):
    """A plan made on a login node says how many; the node says whether it has one."""
    monkeypatch.setattr(machine, "gpu", lambda: 0)
    assert [machine.resolve_device(n) for n in ("0", "1", "cpu", "cuda:1")] == ["cpu", "cpu", "cpu", "cuda:1"]
    assert capsys.readouterr().err.count("this machine has none") == 1
    monkeypatch.setattr(machine, "gpu", lambda: 1)
    assert [machine.resolve_device(n) for n in ("0", "1", "4")] == ["cpu", "cuda", "cuda"]
