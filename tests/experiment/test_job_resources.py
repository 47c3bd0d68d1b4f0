"""What a job asks of a cluster grows with what it holds and does."""

import yaml

from parity.experiment import cells, checks, job_resources
from parity.experiment.schema import ModelSpec
from tests.workflow.conftest import ALL_KINDS, TINY


def test_every_cell_asks_for_memory_and_minutes():
    config = checks.load(yaml.safe_load(ALL_KINDS))
    for cell in cells.cells(config, ["a"] * 4):
        memory = job_resources.memory(config, 4, cell.kind, cell.spec["model"], cell)
        assert job_resources.BASE < memory < 2 * job_resources.BASE
        assert 30 <= job_resources.minutes(config, 4, cell, False) <= job_resources.minutes(config, 4, cell) < 60


def test_large_weights_and_many_pictures_ask_for_more(tmp_path):
    """A file of 10 GB (a hole: no disk)."""
    with (tmp_path / "t.safetensors").open("wb") as file:
        file.truncate(10**10)
    small, config = (checks.load(yaml.safe_load(TINY)) for _ in range(2))
    large = {"source": "files", "files": {"transformer": str(tmp_path / "t.safetensors")}}
    config.models["scenes"] = ModelSpec(family="llamagen").model_copy(update=large)
    [cell, *_] = cells.cells(small, ["a"] * 4)
    loads = [job_resources.memory(config, n, "discrete", "scenes", c) for n, c in ((0, None), (50_000, cell))]
    assert 25_000 < loads[0] < 30_000
    assert loads[1] - loads[0] > 8000
    hours = [job_resources.minutes(config, n, cell) / 60 for n in (5_000, 50_000)]
    assert hours[0] < hours[1]
    assert hours[1] > 10
