"""Devices: a missing one is one line, each job claims another, too little memory halves the batch."""

import pytest
import torch

from parity.base import devices, machine
from parity.base.errors import ParityError


@pytest.mark.parametrize("name", ["cuda", "cuda:7", "tpu"])
def test_a_missing_device_is_one_line(name, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: name != "cuda")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ParityError, match=r"--device.*allowed: cpu"):
        devices.check(name, "float32")
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


def test_a_number_of_devices_is_resolved_where_the_job_runs(monkeypatch, capsys):
    """A plan made on a login node gives a number; the compute node knows whether it has a GPU."""
    monkeypatch.setattr(machine, "gpu", lambda: 0)
    assert [machine.resolve_device(n) for n in ("0", "1", "cpu", "cuda:1")] == ["cpu", "cpu", "cpu", "cuda:1"]
    assert capsys.readouterr().err.count("this machine has none") == 1
    monkeypatch.setattr(machine, "gpu", lambda: 1)
    assert [machine.resolve_device(n) for n in ("0", "1", "4")] == ["cpu", "cuda", "cuda"]


def test_items_that_do_not_fit_run_in_smaller_batches(capsys):
    """The results are those of all items at once; other errors pass, and one item that does not fit is one line."""
    sizes = []

    def double(items):
        sizes.append(len(items))
        if len(items) > 2:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        return items * 2

    items = torch.arange(7)
    assert torch.cat(list(devices.run_in_batches(double, items, 6, "images"))).equal(items * 2)
    assert sizes == [6, 3, 1, 1, 1, 1, 1, 1, 1]
    assert capsys.readouterr().err.count("out of memory: images: ") == 2
    with pytest.raises(ParityError, match="one of the captions does not fit"):
        list(devices.run_in_batches(lambda items: bytearray(2**60), [1, 2], 2, "captions"))
    with pytest.raises(ZeroDivisionError):
        list(devices.run_in_batches(lambda items: 1 / 0, [1], 1, "images"))
