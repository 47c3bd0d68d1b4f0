"""What a job asks of a cluster grows with what it holds and does, and with each attempt."""

import yaml

from parity.experiment import cells, checks, job_resources
from parity.experiment.prompt_files import read_prompts
from parity.experiment.schema import ModelSpec
from tests.workflow.conftest import EVERY, TINY


def config(text, **image):
    raw = yaml.safe_load(text)
    raw["image"] |= image
    return checks.load(raw)


def test_every_cell_asks_for_memory_and_minutes():
    given = config(EVERY)
    prompts = read_prompts(given.image.prompts)
    for cell in cells.cells(given, prompts):
        one, two = (job_resources.memory(given, cell.kind, cell.spec["model"], 0, attempt) for attempt in (1, 2))
        assert job_resources.BASE < one < 2 * job_resources.BASE and abs(two - 2 * one) <= 1
        assert 30 <= job_resources.minutes(given, len(prompts), cell) < 60


def test_large_weights_and_many_pictures_ask_for_more(tmp_path):
    """A file of 10 GB (a hole: no disk) and 5,000 pictures of 24x24 tokens."""
    with (tmp_path / "t.safetensors").open("wb") as file:
        file.truncate(10**10)
    given = config(TINY)
    large = ModelSpec(family="llamagen").model_copy(
        update={"source": "files", "files": {"transformer": str(tmp_path / "t.safetensors")}}
    )
    given.models["scenes"] = large
    assert 25_000 < job_resources.memory(given, "discrete", "scenes") < 30_000
    assert (
        job_resources.memory(given, "discrete", "scenes", 5000 * 576)
        - job_resources.memory(given, "discrete", "scenes")
        > 8000
    )
    cell = next(iter(cells.cells(config(TINY), ["a"] * 4)))
    hours = [job_resources.minutes(given, n, cell) / 60 for n in (5_000, 50_000)]
    assert hours[0] < hours[1] and hours[1] > 10
