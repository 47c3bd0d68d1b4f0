"""`parity serve`, asked by OpenAI's own client: the images of `parity generate`, whoever else asks."""

import asyncio
import base64
import io
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from functools import cache

import numpy as np
import pytest
import torch
import yaml

import parity
from parity.base.errors import ParityError
from parity.generate.folder import save_image
from parity.serve import __main__ as command
from tests.workflow.conftest import ROOT

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")
openai = pytest.importorskip("openai")

from parity.serve.worker import Batch, Closed, Full, Row, Worker  # noqa: E402

CAPTIONS = ["a large red circle on a blue background", "a small green square on a yellow background"]
METHOD, OPTIONS = "sjd_coupled", {"window": 8}
PARITY = [sys.executable, "-c", "from parity.base.console import main; main()"]


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """An experiment on the embedded model of 8x8 tokens."""
    file = tmp_path_factory.mktemp("serve") / "scenes8.yaml"
    image = {"prompts": {"file": str(ROOT / "prompts/scenes.txt"), "limit": 2}, "methods": {"ar": [{}]}}
    file.write_text(yaml.safe_dump({"models": {"scenes": {"family": "llamagen", "grid": 8}}, "image": image}))
    return file


@pytest.fixture(scope="module")
def model(file):
    return parity.load(configfile=file)


@pytest.fixture(scope="module")
def make(model):
    """A function that generates the images of a caption and a seed, as `parity generate` does, each once."""

    @cache
    def generate(prompt, seed, n=1):
        made = [one for batch in model.make_batches([prompt], METHOD, seed, n=n, **OPTIONS) for one in batch]
        return sorted(made, key=lambda one: one.number)

    return generate


class Served:
    """A server process."""

    def __init__(self, file):
        command = [*PARITY, "serve", "--configfile", file, "--method", METHOD, "--option", "window=8", "--port", "0"]
        self.process = subprocess.Popen(
            [*map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
        )
        line = self.process.stdout.readline()
        assert line.startswith("scenes by sjd_coupled: http"), self.process.communicate()
        self.address = line.split(": ", 1)[1].strip()

    def client(self, **settings):
        return openai.AsyncOpenAI(base_url=self.address, api_key="-", max_retries=0, **settings)

    def measure(self):
        with urllib.request.urlopen(self.address.replace("/v1", "/metrics")) as answer:
            lines = answer.read().decode().splitlines()
        return {line.split()[0].removeprefix("parity_"): float(line.split()[1]) for line in lines if line[0] != "#"}

    def wait_for(self, is_met):
        for _ in range(600):
            if is_met(metrics := self.measure()):
                return metrics
            time.sleep(0.02)
        raise AssertionError(metrics)


@pytest.fixture(scope="module")
def servers():
    """The servers that were started; the last one runs, unless a test has ended it."""
    started = []
    yield started
    for served in started:
        served.process.kill()
        served.process.wait()


@pytest.fixture
def server(servers, file):
    if not servers or servers[-1].process.poll() is not None:
        servers.append(Served(file))
    return servers[-1]


def read_pixels(text):
    """Read the pixels of a PNG in base 64."""
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(base64.b64decode(text))))


def test_requests_at_once_have_the_images_of_generate(server, make, tmp_path):
    """Must fail: the image of another seed."""
    asked = [(CAPTIONS[i % 2], i % 16) for i in range(64)]
    before = server.measure()

    async def ask():
        async with server.client() as client:
            answers = (client.images.generate(prompt=p, extra_body={"seed": seed}) for p, seed in asked)
            return await asyncio.gather(*answers)

    answers = asyncio.run(ask())
    served = [read_pixels(answer.data[0].b64_json) for answer in answers]
    made = [make(prompt, seed)[0] for prompt, seed in asked]
    assert [np.array_equal(x, np.asarray(y.image)) for x, y in zip(served, made, strict=True)] == [True] * 64
    assert not any(np.array_equal(x, np.asarray(y.image)) for x, y in zip(served[2:], made, strict=False))
    save_image(made[3].image, tmp_path / "3.png", {**made[3].facts, "passes": made[3].passes}, made[3].prompt)
    assert base64.b64decode(answers[3].data[0].b64_json) == (tmp_path / "3.png").read_bytes()
    after = server.measure()
    done = {name: after[f"{name}_total"] - before[f"{name}_total"] for name in ("images", "tokens", "passes")}
    assert (done["images"], done["tokens"]) == (64, 64 * 64)
    assert done["passes"] < sum(one.passes for one in made) / 4  # they were decoded together
    assert 1 < after["tokens_per_pass"] < 64
    assert (after["queue_length"], after["running_rows"]) == (0, 0)


def test_several_images_of_a_request_and_a_stream_of_partial_ones(server, make):
    async def ask():
        async with server.client() as client:
            several = await client.images.generate(prompt=CAPTIONS[0], n=3, extra_body={"seed": 5})
            events = await client.images.generate(
                prompt=CAPTIONS[0], stream=True, partial_images=2, extra_body={"seed": 0}
            )
            return several, [event async for event in events], (await client.models.list()).data

    several, events, models = asyncio.run(ask())
    for one, expected in zip(several.data, make(CAPTIONS[0], 5, 3), strict=True):
        assert np.array_equal(read_pixels(one.b64_json), np.asarray(expected.image))
    kinds = ["image_generation.partial_image"] * 2 + ["image_generation.completed"]
    assert [event.type for event in events] == kinds
    assert [event.partial_image_index for event in events[:2]] == [0, 1]
    whole = read_pixels(events[2].b64_json)
    assert np.array_equal(whole, np.asarray(make(CAPTIONS[0], 0)[0].image))
    grey = [(read_pixels(event.b64_json) == 128).all(2).mean() for event in events]
    assert 0.9 > grey[0] > grey[1] > grey[2]
    assert [one.id for one in models] == ["scenes"]


def test_the_lines_of_the_page_run(server, make):
    """Their images are `generate`'s, where no kernel rounds a row otherwise in a batch of another size."""
    page = (ROOT / "docs/howto/serve.md").read_text(encoding="utf-8")
    (lines,) = re.findall(r"^```py\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    names = {}
    exec(compile(lines.replace("http://127.0.0.1:8000/v1", server.address), "serve.md", "exec"), names)
    pixels = [read_pixels(base64.b64encode(image)) for image in names["images"]]
    made = make(CAPTIONS[0], 7, 2)
    equal = [np.array_equal(x, np.asarray(y.image)) for x, y in zip(pixels, made, strict=True)]
    assert len(equal) == 2
    if torch.backends.cpu.get_cpu_capability() == "AVX2":
        assert all(equal)


@pytest.mark.parametrize(
    ("asked", "field", "allowed"),
    [
        ({"prompt": "a red cat"}, "prompt", "unknown word 'cat'; allowed: a, of, on"),
        ({"prompt": "red " * 30}, "prompt", "allowed: at most 24"),
        ({"prompt": " "}, "prompt", "allowed: one or more words"),
        ({}, "prompt", "required"),
        ({"prompt": "red", "n": 11}, "n", "n = 11: allowed: less than or equal to 10"),
        ({"prompt": "red", "size": "1024x1024"}, "size", "size = '1024x1024': allowed: 32x32, auto"),
        ({"prompt": "red", "model": "other"}, "model", "model = 'other': allowed: scenes"),
        ({"prompt": "red", "response_format": "url"}, "response_format", "allowed: 'b64_json'"),
        ({"prompt": "red", "quality": "hd"}, "quality", "allowed: 'auto'"),
        ({"prompt": "red", "seed": -1}, "seed", "seed = -1: allowed: greater than or equal to 0"),
        ({"prompt": "red", "seeds": 1}, "seeds", "unknown; allowed: prompt, model, n, "),
        ({"prompt": "red", "partial_images": 1}, "partial_images", "allowed: 0 without stream"),
        ({"prompt": "red", "stream": True, "n": 2}, "n", "allowed: 1 with stream"),
    ],
)
def test_a_bad_request_names_the_field(server, asked, field, allowed):
    client = openai.OpenAI(base_url=server.address, api_key="-", max_retries=0)
    with pytest.raises(openai.BadRequestError) as refused:
        client.post("/images/generations", cast_to=object, body=asked)
    assert refused.value.param == field
    assert allowed in refused.value.message
    assert server.measure()["failures_total"] == 0


def test_a_client_that_leaves_frees_its_places(server, make):
    """Those that it had, and those that it waited for."""
    before = server.measure()["images_total"]

    async def ask():
        async with server.client() as client:
            leaving = [
                asyncio.create_task(client.images.generate(prompt=CAPTIONS[0], n=10, extra_body={"seed": 90 + i}))
                for i in range(6)
            ]
            await asyncio.to_thread(server.wait_for, lambda m: m["running_rows"] == 8 and m["queue_length"] >= 40)
            for task in leaving:
                task.cancel()
            await asyncio.gather(*leaving, return_exceptions=True)
            return await client.images.generate(prompt=CAPTIONS[0], extra_body={"seed": 6})

    answer = asyncio.run(ask())
    assert np.array_equal(read_pixels(answer.data[0].b64_json), np.asarray(make(CAPTIONS[0], 6)[0].image))
    metrics = server.wait_for(lambda m: m["running_rows"] == m["queue_length"] == 0)
    assert metrics["images_total"] - before < 40


def test_a_signal_lets_what_runs_and_waits_end(server, make):
    async def ask():
        async with server.client() as client:
            tasks = [
                asyncio.create_task(client.images.generate(prompt=CAPTIONS[0], extra_body={"seed": 2 * i}))
                for i in range(12)
            ]
            await asyncio.to_thread(server.wait_for, lambda m: m["running_rows"] and m["queue_length"])
            server.process.send_signal(signal.SIGTERM)
            while True:
                try:
                    urllib.request.urlopen(server.address.replace("/v1", "/health"))
                except urllib.error.HTTPError as error:
                    health = error.code
                    break
            with pytest.raises(openai.InternalServerError, match="stopping") as refused:
                await client.images.generate(prompt=CAPTIONS[0])
            return await asyncio.gather(*tasks), (health, refused.value.status_code)

    answers, statuses = asyncio.run(ask())
    assert statuses == (503, 503)
    for i, answer in enumerate(answers):
        assert np.array_equal(read_pixels(answer.data[0].b64_json), np.asarray(make(CAPTIONS[0], 2 * i)[0].image))
    assert server.process.wait(60) == 0


# --- the worker, in this process


def make_worker(model, batch=3, most_waiting=100, method=METHOD, **options):
    """Make a worker of a method, whose rows go into a list."""
    method, chosen = model.choose_method(method, options)
    return Worker(model, method, chosen, batch, most_waiting)


def run_rows(worker, seeds):
    """Run rows of the first caption to their end; return their events by seed."""
    events = []
    worker.add([Row(CAPTIONS[0], seed, 0, events.append) for seed in seeds])
    worker.close()
    worker.run()
    assert (worker.running, len(worker.waiting)) == ([], 0)
    return {event.row.seed: event for event in events}


def assert_made(events, make, seeds):
    """Assert that events have the images and passes of `parity generate`."""
    assert [*sorted(events)] == [*seeds]
    for seed in seeds:
        (expected,) = make(CAPTIONS[0], seed)
        assert np.array_equal(np.asarray(events[seed].image), np.asarray(expected.image)), seed
        assert events[seed].passes == expected.passes


def test_places_of_a_gpu_stay_and_are_taken_later(model, make, monkeypatch):
    """Where places are not left out, a batch begins with free ones, and rows that come later take them."""
    begin = Batch.__init__
    sizes = []

    def stay(self, worker, rows, size, stays):
        sizes.append(len(rows))
        begin(self, worker, rows, worker.batch, True)

    monkeypatch.setattr(Batch, "__init__", stay)
    worker = make_worker(model, **OPTIONS)
    events = []
    write = Batch.write

    def write_and_ask(self, model, step):
        write(self, model, step)
        if worker.counts.passes == 4:
            worker.add([Row(CAPTIONS[0], seed, 0, events.append) for seed in (2, 4, 6)])
            worker.close()

    monkeypatch.setattr(Batch, "write", write_and_ask)
    worker.add([Row(CAPTIONS[0], 0, 0, events.append)])
    worker.run()
    assert_made({event.row.seed: event for event in events}, make, [0, 2, 4, 6])
    assert sizes == [1]


def test_a_method_that_refills_no_places_forms_batches(model, make):
    """Its images are those of a decoder that is coupled to it."""
    worker = make_worker(model, batch=2, method="ar")
    events = run_rows(worker, [0, 2, 4])
    assert worker.counts.passes == 2 * 64
    for seed, event in events.items():
        assert np.array_equal(np.asarray(event.image), np.asarray(make(CAPTIONS[0], seed)[0].image))
        assert event.passes == 64


def test_too_little_memory_halves_the_batch_and_loses_no_row(model, make, monkeypatch, capsys):
    worker = make_worker(model, batch=4, **OPTIONS)
    write = Batch.write

    def write_few(self, model, step):
        if len(self.rows) > 2 and worker.counts.passes > 3:
            raise torch.OutOfMemoryError("CUDA out of memory")
        write(self, model, step)

    monkeypatch.setattr(Batch, "write", write_few)
    assert_made(run_rows(worker, [0, 2, 4, 6, 8]), make, [0, 2, 4, 6, 8])
    assert "out of memory: batch 4; 2 from here on" in capsys.readouterr().err
    assert worker.batch == 2


def test_an_error_is_told_to_the_rows_that_ran_and_others_go_on(model, make, monkeypatch):
    worker = make_worker(model, batch=2, **OPTIONS)
    write = Batch.write

    def write_some(self, model, step):
        write(self, model, step)
        if worker.counts.passes == 2:
            raise ValueError("no such kernel")

    monkeypatch.setattr(Batch, "write", write_some)
    events = run_rows(worker, [0, 2, 4, 6])
    assert [seed for seed, event in events.items() if event.problem == "ValueError: no such kernel"] == [0, 2]
    assert_made({seed: event for seed, event in events.items() if not event.problem}, make, [4, 6])


def test_no_more_wait_than_may(model):
    worker = make_worker(model, most_waiting=2)
    rows = [Row(CAPTIONS[0], 0, number, print) for number in range(3)]
    worker.add(rows[:2])
    with pytest.raises(Full):
        worker.add(rows[2:])
    worker.drop(rows[:1])
    worker.add(rows[2:])
    assert [*worker.waiting] == rows[1:]
    worker.close()
    with pytest.raises(Closed):
        worker.add(rows[:1])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--model", "xlnet"], "--model xlnet: writes texts; allowed: a model of image tokens"),
        (["--model", "mar"], "--model mar: draws vectors; allowed: a model of image tokens"),
        (["--port", "70000"], "--port 70000: allowed: 0 to 65535"),
        (["--max-waiting", "0"], "--max-waiting 0: allowed: 1 or more"),
        (["--method", "gone"], "method 'gone': unknown method; allowed: ar, "),
    ],
)
def test_what_cannot_be_served_is_one_line(monkeypatch, run_main, flags, message):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(parity.generate.Generator, "load_networks", lambda *_: pytest.fail("a network was loaded"))
    with pytest.raises(ParityError, match=message):
        run_main(command.main, *flags)


def test_a_port_that_is_taken_is_one_line(monkeypatch, run_main):
    monkeypatch.chdir(ROOT)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ParityError, match=f"--port {taken.getsockname()[1]}: .*in use; allowed: "):
            run_main(command.main, "--port", taken.getsockname()[1])
