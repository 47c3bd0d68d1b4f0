"""Devices: what is not there is one line; each job has its own; too little memory halves the batch."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from parity.base import devices, machine
from parity.base.errors import ParityError
from parity.decode import loop
from parity.models.compiling import compiled

HOLDS = """
import sys, time
from pathlib import Path
from parity.base.devices import own
print(own("cuda", 2, Path(sys.argv[1]), 0.05), flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("given", ["cuda", "cuda:7", "tpu", "cuda:x"])
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


def test_each_job_has_a_device_of_its_own(tmp_path):
    """Two devices, three jobs: the third waits until one of the others ends, by whatever end."""
    start = [sys.executable, "-c", HOLDS, str(tmp_path)]
    jobs = [subprocess.Popen(start, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    try:
        assert sorted(job.stdout.readline().strip() for job in jobs) == ["cuda:0", "cuda:1"]
        third = subprocess.Popen(
            start, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        jobs.append(third)
        assert "all 2 devices are held by other jobs; waiting" in third.stderr.readline()
        jobs[0].kill()
        assert third.stdout.readline().strip() in ("cuda:0", "cuda:1")
    finally:
        for job in jobs:
            job.kill()
            job.wait()
    assert devices.own("cpu") == "cpu" and devices.own("cuda:1") == "cuda:1"


class Leaf:
    """A kind of model of which a batch larger than `fits` is out of memory."""

    fits, seen = 3, []

    def opened(self, loaded, spec):
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
    monkeypatch.setattr(loop, "leaf", lambda kind: own)
    monkeypatch.setattr(loop, "start_decoding", lambda kind, loaded, spec: lambda rows, noise: (None, noise, iter(())))
    return own


class Loaded:
    device = "cpu"


SPEC = {"method": "m", "options": {}, "seed": 1}
ROWS = {"ids": np.array([str(i) for i in range(17)])}


def test_out_of_memory_halves_the_batch_says_so_and_keeps_the_tokens(leaf, capsys):
    done = loop.decode("discrete", Loaded(), SPEC, ROWS, 12)
    assert leaf.seen == [12, 6, 3, 3, 3, 3, 3, 2] and done.ids.tolist() == ROWS["ids"].tolist()
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


def test_what_cannot_be_compiled_runs_as_it_is_and_says_so_once(capsys):
    def looked_at(x):
        return x * 2 if float(x.sum()) > 0 else x  # a graph cannot ask

    run = compiled(looked_at, "cpu")
    assert [run(torch.ones(2)).tolist() for _ in range(3)] == [[2.0, 2.0]] * 3
    said = capsys.readouterr().err.splitlines()
    assert sum("compile: looked_at" in line and "it runs as it is" in line for line in said) == 1


def test_a_number_of_devices_is_placed_where_the_job_runs(monkeypatch, capsys):
    """A plan made on a login node says how many; the node says whether it has one."""
    monkeypatch.setattr(machine, "gpu", lambda: 0)
    assert [machine.placed(n) for n in ("0", "1", "cpu", "cuda:1")] == ["cpu", "cpu", "cpu", "cuda:1"]
    assert capsys.readouterr().err.count("this machine has none") == 1
    monkeypatch.setattr(machine, "gpu", lambda: 1)
    assert [machine.placed(n) for n in ("0", "1", "4")] == ["cpu", "cuda", "cuda"]


def test_devices_of_two_jobs_of_a_cluster_are_numbered_alike_and_are_not_one(tmp_path, monkeypatch):
    """A cluster that hides others' devices names each job's "0"; jobs within one have the one device after another."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    held = []
    try:
        for job in ("17", "18"):
            monkeypatch.setenv("SLURM_JOB_ID", job)
            held += [subprocess.Popen(
                [sys.executable, "-c", HOLDS.replace('"cuda", 2', '"cuda", 1'), str(tmp_path)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )]  # fmt: skip
            assert held[-1].stdout.readline().strip() == "cuda:0"
        held += [subprocess.Popen(held[-1].args, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True)]
        assert "all 1 devices are held" in held[-1].stderr.readline()
    finally:
        for process in held:
            process.kill()
            process.wait()
