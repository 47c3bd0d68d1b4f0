"""Devices: a missing one is one line, each job claims another, too little memory halves the batch."""

import numpy as np
import pytest
import torch

from parity.base import devices, machine
from parity.base.errors import ParityError
from parity.decode import loop


@pytest.mark.parametrize("name", ["cuda", "cuda:7", "tpu"])
def test_a_missing_device_is_one_line(name, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: name != "cuda")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ParityError, match=r"--device.*allowed: cpu") as error:
        devices.check(name, "float32")
    assert "\n" not in str(error.value)
    devices.check("cpu", "float64")


def test_a_dtype_the_device_lacks_is_one_line(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: False)
    devices.check("cuda", "float32")
    with pytest.raises(ParityError, match=r"dtype bfloat16: .*allowed there: float32, float64"):
        devices.check("cuda", "bfloat16")


def test_each_job_claims_another_device(tmp_path, monkeypatch, capsys):
    """The third job waits until another ends; a cluster's job that hides other devices may claim the same number."""
    locks: dict = {}
    monkeypatch.setattr(devices, "HELD", locks)
    assert [devices.claim_device("cuda", 2, tmp_path) for _ in range(2)] == ["cuda:0", "cuda:1"]
    monkeypatch.setattr(devices.time, "sleep", lambda seconds: locks.popitem()[1].close())
    assert devices.claim_device("cuda", 2, tmp_path) == "cuda:1"
    assert "all 2 devices are held by other jobs; waiting" in capsys.readouterr().err
    monkeypatch.setenv("SLURM_JOB_ID", "18")
    assert devices.claim_device("cuda", 1, tmp_path) == "cuda:0"
    assert not capsys.readouterr().err
    assert devices.claim_device("cpu") == "cpu"
    assert devices.claim_device("cuda:1") == "cuda:1"
    for file in locks.values():
        file.close()


def test_a_process_keeps_the_device_that_it_has(tmp_path, monkeypatch):
    monkeypatch.setattr(devices, "HELD", {})
    monkeypatch.setattr(devices, "check", lambda device, dtype: None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(devices.tempfile, "gettempdir", lambda: str(tmp_path))
    assert [devices.take_device("cuda") for _ in range(2)] == ["cuda:0", "cuda:0"]
    for lock in devices.HELD.values():
        lock.close()


class KindModule:
    """A kind's module whose batches larger than `fits` are out of memory."""

    fits = 3

    def __init__(self):
        self.batches = []

    def make_starter(self, loaded, spec):
        """Return a function that starts nothing and passes the noise on."""
        return lambda rows, noise: (None, noise)

    def record(self, model, noise, steps):
        """Note the batch's size; raise OutOfMemoryError if it exceeds `fits`, else return a number for each row."""
        self.batches.append(len(noise.keys))
        if len(noise.keys) > self.fits:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return noise.uniform("sample", torch.zeros(len(noise.keys), 1, dtype=torch.int64))

    def time_networks(self, model, clock):
        return model

    def columns(self, rows, model, noise, decoded):
        return {"tokens": decoded}


@pytest.fixture
def kind_module(monkeypatch):
    """Install a KindModule in place of the module and the decoder of any kind, and return it."""
    module = KindModule()
    monkeypatch.setattr(loop, "import_kind", lambda kind: module)
    monkeypatch.setattr(loop, "start_decoding", lambda *job: lambda rows, noise: (None, noise, iter(())))
    return module


class Loaded:
    device = "cpu"


SPEC = {"method": "sjd", "options": {}, "seed": 1}
ROWS = {"ids": np.array([str(i) for i in range(17)])}


def test_out_of_memory_halves_the_batch_with_the_same_tokens(kind_module, capsys):
    shard = loop.decode("discrete", Loaded(), SPEC, ROWS, 12)
    assert kind_module.batches == [12, 6, 3, 3, 3, 3, 3, 2]
    assert shard.ids.tolist() == ROWS["ids"].tolist()
    lines = [line for line in capsys.readouterr().err.splitlines() if "out of memory" in line]
    assert lines == [f"out of memory: batch {n} on cpu; {n // 2} from here on, with the same tokens" for n in (12, 6)]
    kind_module.fits = 100
    assert np.array_equal(shard.tokens, loop.decode("discrete", Loaded(), SPEC, ROWS, 17).tokens)


def test_a_row_that_does_not_fit_is_one_line(kind_module):
    kind_module.fits = 0
    with pytest.raises(ParityError, match="out of memory: batch 1 on cpu: one row does not fit; allowed: a device"):
        loop.decode("discrete", Loaded(), SPEC, ROWS, 2)


def test_an_error_other_than_memory_is_raised_as_it_is(kind_module, monkeypatch):
    monkeypatch.setattr(kind_module, "record", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        loop.decode("discrete", Loaded(), SPEC, ROWS, 2)


def test_a_number_of_devices_is_resolved_where_the_job_runs(monkeypatch, capsys):
    """A plan made on a login node gives a number; the compute node knows whether it has a GPU."""
    monkeypatch.setattr(machine, "gpu", lambda: 0)
    assert [machine.resolve_device(n) for n in ("0", "1", "cpu", "cuda:1")] == ["cpu", "cpu", "cpu", "cuda:1"]
    assert capsys.readouterr().err.count("this machine has none") == 1
    monkeypatch.setattr(machine, "gpu", lambda: 1)
    assert [machine.resolve_device(n) for n in ("0", "1", "4")] == ["cpu", "cuda", "cuda"]


def test_items_that_do_not_fit_run_in_smaller_batches(capsys):
    """The results are those of all items at once; other errors pass."""
    sizes = []

    def double(items):
        """Return twice each item; three are too many."""
        sizes.append(len(items))
        if len(items) > 2:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        return items * 2

    items = torch.arange(7)
    assert torch.cat(list(devices.run_in_batches(double, items, 6, "pictures"))).equal(items * 2)
    assert sizes == [6, 3, 1, 1, 1, 1, 1, 1, 1]
    assert capsys.readouterr().err.count("out of memory: pictures: ") == 2


def test_one_item_that_does_not_fit_is_one_line():
    def fail(items):
        raise MemoryError

    with pytest.raises(ParityError, match="one of the captions does not fit"):
        list(devices.run_in_batches(fail, [1, 2], 2, "captions"))


def test_an_error_that_is_not_of_memory_passes():
    with pytest.raises(ZeroDivisionError):
        list(devices.run_in_batches(lambda items: 1 / 0, [1], 1, "pictures"))
