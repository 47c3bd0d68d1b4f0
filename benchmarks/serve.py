"""Throughput and memory of `parity serve`, against `parity generate --batch` of the same captions.

    uv run python benchmarks/serve.py [--rounds 3] [--images 64] [--requests 1000] [--keep serve]

A server that gets 64 requests at once by the `openai` client, and this process, which generates 64 images and saves
them, take turns. Images an hour and CPU-seconds an image leave out the loading of networks. Then requests go on, 64 at
a time, until --requests are answered in all; the server's memory (RSS) is read after 100, after half and after all.
"""

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
from common import parse_flags
from docs_figures import keep_benchmark
from openai import AsyncOpenAI

from parity.generate import Generator, load
from parity.generate.folder import save_image

PARITY = [sys.executable, "-c", "from parity.base.console import main; main()"]


def start_server(flags: list[str], log: Path) -> tuple[psutil.Popen, str]:
    """Start a server on a free port; return its process and its address."""
    process = psutil.Popen([*PARITY, "serve", *flags, "--port", "0"], stdout=subprocess.PIPE, stderr=log.open("w"))
    line = process.stdout.readline().decode()
    if not line:
        raise SystemExit(log.read_text())
    return process, line.split(": ", 1)[1].strip()


async def ask(address: str, prompts: list[str], seed: int, at_once: int) -> None:
    """Ask for an image of each prompt, `at_once` of them together, each with a seed of its own."""
    allowed = asyncio.Semaphore(at_once)
    async with AsyncOpenAI(base_url=address, api_key="-", timeout=3600) as client:

        async def ask_one(number: int, prompt: str) -> None:
            async with allowed:
                await client.images.generate(prompt=prompt, extra_body={"seed": seed + number})

        await asyncio.gather(*(ask_one(number, prompt) for number, prompt in enumerate(prompts)))


def serve_round(server: psutil.Popen, address: str, prompts: list[str], seed: int) -> dict[str, Any]:
    """Ask for all images at once; measure their rate, the server's CPU-seconds, and its memory (MiB)."""
    before, start = sum(server.cpu_times()[:2]), time.monotonic()
    asyncio.run(ask(address, prompts, seed, len(prompts)))
    seconds, cpu = time.monotonic() - start, sum(server.cpu_times()[:2]) - before
    return {"name": "serve", "an_hour": 3600 * len(prompts) / seconds, "cpu_seconds": cpu / len(prompts)}


def generate_round(generator: Generator, flags: dict[str, Any], prompts: list[str], seed: int) -> dict[str, Any]:
    """Generate and save an image of each prompt, as `parity generate` does, in this process; measure their rate and
    CPU-seconds."""
    before, start = time.process_time(), time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        for batch in generator.make_batches(prompts, seed=seed, **flags):
            for made in batch:
                save_image(made.image, Path(folder) / f"{made.number}.png", made.facts, made.prompt)
    seconds, cpu = time.monotonic() - start, time.process_time() - before
    return {"name": "generate", "an_hour": 3600 * len(prompts) / seconds, "cpu_seconds": cpu / len(prompts)}


def main() -> None:
    """Run the rounds, then the requests; print the figures, and keep them with --keep."""
    flags = {"images": 64, "rounds": 3, "requests": 1000, "batch": 8, "method": "sjd_coupled", "window": 16}
    a = parse_flags(__doc__, **flags, configfile="config.yaml", keep="")
    os.environ["OMP_NUM_THREADS"] = str(a.threads)
    shared = ["--configfile", a.configfile, "--method", a.method, "--option", f"window={a.window}"]
    captions = Path("prompts/scenes.txt").read_text().splitlines()
    prompts = [captions[i % len(captions)] for i in range(max(a.requests, a.images))]
    generator = load("", a.configfile)
    generation = {"method": a.method, "window": a.window, "batch": a.batch}
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        flags_of_batch = ["--batch", str(a.batch), "--threads", str(a.threads)]
        server, address = start_server([*shared, *flags_of_batch], Path(folder) / "serve.log")
    try:
        asyncio.run(ask(address, prompts[: a.batch], 0, a.batch))  # both are warm before the rounds
        generate_round(generator, generation, prompts[: a.batch], 0)
        asked = a.batch
        for number in range(a.rounds):
            rows.append(serve_round(server, address, prompts[: a.images], 1000 * number))
            print(rows[-1], flush=True)
            rows.append(generate_round(generator, generation, prompts[: a.images], number))
            print(rows[-1], flush=True)
            asked += a.images
        for key in ("an_hour", "cpu_seconds"):
            ratios = [served[key] / made[key] for served, made in zip(rows[::2], rows[1::2], strict=True)]
            print(f"{key}: serve / generate {statistics.median(ratios):.3f} of {ratios}" if ratios else "", flush=True)
        for until in (n for n in (100, a.requests // 2, a.requests) if asked < n <= a.requests):
            asyncio.run(ask(address, prompts[asked:until], 10**6 + asked, a.images))
            asked = until
            rows.append({"name": "memory", "requests": asked, "mib": server.memory_info().rss / 2**20})
            print(rows[-1], flush=True)
    finally:
        server.terminate()
        print(f"exit code {server.wait(600)}")
    if a.keep:
        keep_benchmark(a.keep, rows)


if __name__ == "__main__":
    main()
