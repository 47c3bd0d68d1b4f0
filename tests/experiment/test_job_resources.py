"""What a job asks of a cluster grows with what it holds and does."""

import yaml

from parity.experiment import cells, checks, job_resources
from parity.experiment.job_resources import Job
from tests.workflow.conftest import ALL_KINDS, TINY


def test_every_job_asks_for_memory_and_minutes():
    config = checks.load(yaml.safe_load(ALL_KINDS))
    jobs = job_resources.list_jobs(config, cells.cells(config, []))
    assert {job.kind for job in jobs} == {"discrete", "continuous", "anysubset", ""}
    for job in jobs:
        assert 700 < job_resources.memory(config, job) < 2100
        assert 30 <= job_resources.minutes(config, job) < 90
        assert job_resources.disk(config, job) >= 0


def make_job(rule: str, **image) -> tuple:
    """Make the configuration of TINY with other keys in its image section, and a job of its last cell."""
    raw = yaml.safe_load(TINY)
    config = checks.load({**raw, "image": raw["image"] | image})
    cell = cells.cells(config, [])[-1]
    return config, Job(rule, cell.kind, cell.spec["model"], cell)


def estimate(rule: str, **image) -> int:
    return job_resources.memory(*make_job(rule, **image))


def test_memory_grows_with_batch_guidance_dtype_and_window():
    prompts = {"limit": 64}
    plain = estimate("decode", batch=32, prompts=prompts)
    assert estimate("decode", batch=64, prompts=prompts) > plain
    assert estimate("decode", batch=32, prompts=prompts, sampling={"guidance": 1.0}) < plain
    assert estimate("decode", batch=32, prompts=prompts, dtype="float64") > plain
    wide = estimate("decode", batch=32, prompts=prompts, methods={"ar": [{}], "sjd": [{"window": 64}]})
    assert wide > estimate("decode", batch=32, prompts=prompts, methods={"ar": [{}], "sjd": [{"window": 8}]})


def test_a_batch_has_no_more_rows_than_a_job():
    assert estimate("decode", batch=4096, prompts={"limit": 4}) == estimate("decode", batch=4, prompts={"limit": 4})


def test_a_large_batch_takes_longer_than_a_small_job():
    config, job = make_job("decode", prompts={"limit": 5000})
    small_config, small = make_job("decode", prompts={"limit": 4})
    assert job_resources.minutes(config, job) > job_resources.minutes(small_config, small)
    assert job_resources.minutes(config, job, gpu=True) < job_resources.minutes(config, job)
