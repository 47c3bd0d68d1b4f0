"""What captured decoding costs on the GPU of this machine: parts of about a minute, the most valuable first.

    python benchmarks/gpu.py [--parts limit networks ...] [--out docs/figures/gpu-captured.json] [--seconds 540]
    python benchmarks/gpu.py --cpu                          every part at tiny sizes, to see that it runs
    python benchmarks/gpu.py --page docs/results/gpu.md     the page, from the files of docs/figures; measures nothing

The file is written after each row; a part that fails leaves its error there, and the next one begins. Networks have
published sizes and random weights, for the time of a pass depends on shapes alone. `benchmarks/gpu_passes.py` times the
uncaptured passes of every decoder; the page has its tables, too.
"""

import argparse
import csv
import json
import subprocess
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import version
from itertools import islice, product
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from gpu_passes import CAPTIONS, TOKENS, format_runs, format_table, make_random_network, measure_bandwidth, measure_ms
from parity_decoders.discrete.ar import ar
from parity_decoders.discrete.mtj import mtj
from parity_decoders.discrete.sjd_coupled import sjd_coupled
from parity_decoders.noise import Noise, counted_noise
from parity_decoders.passes import Passes
from parity_decoders.sampling import Sampled, TokenSampling, top_k_filter
from parity_decoders.steps import Step
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from parity.base.command import pin_threads, run_command
from parity.base.machine import describe_hardware
from parity.base.row_noise import batch_noise
from parity.decode import captured, loop
from parity.decode.captured import REACHES, Captured, run_captured
from parity.decode.discrete import record
from parity.experiment.options import cap_small, options
from parity.inputs.prompts import encode
from parity.models import fetch
from parity.models.discrete import llama
from parity.models.discrete.llamagen import LlamaGen, LlamaGenConfig, Transformer

Row = dict[str, Any]
FIGURES = Path("docs/figures")
DECODERS: dict[str, Any] = {"ar": ar, "sjd_coupled": sjd_coupled, "mtj": mtj}
LENGTHS = (1, 32, 64)  # tokens of a pass that is timed
KERNELS: dict[str, Callable[[], Any]] = {  # which kernels torch may choose for attention
    "any": nullcontext,
    "efficient": partial(sdpa_kernel, [SDPBackend.EFFICIENT_ATTENTION]),
    "cudnn": partial(sdpa_kernel, [SDPBackend.CUDNN_ATTENTION]),
    "math": partial(sdpa_kernel, [SDPBackend.MATH]),
}
PROMPT = 64  # words of a prompt of a language model


@dataclass(frozen=True)
class Size:
    """A network of a published size, and the settings that its pictures are sampled with."""

    sampling: TokenSampling
    llamagen: LlamaGenConfig | None = None  # of LlamaGen; else of Chameleon:
    chameleon: Any = None  # fields of transformers' configuration, whose defaults are the 7 billion's
    grid: int = 48  # codes a side
    codes: int = 8192


SIZES = {
    "Lumina-mGPT 7B": Size(TokenSampling(3.0, top_k=2000), chameleon={}),
    "LlamaGen-XL": Size(TokenSampling(7.5, top_k=1000), LlamaGenConfig()),
    "LlamaGen-3B": Size(TokenSampling(7.5, top_k=1000), LlamaGenConfig(dim=3200, layers=24, heads=32, grid=24)),
}
TINY = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
TINY |= {"num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 300}
SMALL_SIZES = {
    "small Chameleon": Size(TokenSampling(3.0, top_k=20), chameleon=TINY, grid=6, codes=250),
    "small LlamaGen": Size(
        TokenSampling(7.5, top_k=20), LlamaGenConfig(256, 64, 2, 2, grid=6, prefix=4, caption_dim=8, multiple_of=16)
    ),
}


class Bench:
    """The device, the networks on it, and how to capture and time calls; on a CPU nothing is captured."""

    def __init__(self, cpu: bool):
        self.cpu = cpu
        self.device = "cpu" if cpu else "cuda"
        self.dtype = torch.float32 if cpu else torch.bfloat16
        self.sizes = SMALL_SIZES if cpu else SIZES
        self.network = cache(self.make_network)
        self.reaches = True  # whether compiled passes are timed for each of REACHES
        self.compiled: set[str] = set()  # networks whose layers are compiled

    def make_network(self, name: str) -> Any:
        """Make the network of a size with random weights; each is made once."""
        size = self.sizes[name]
        torch.manual_seed(0)
        if size.llamagen is not None:
            return make_random_network(lambda: Transformer(size.llamagen), self.device, self.dtype)
        from transformers import ChameleonConfig

        config = ChameleonConfig(**size.chameleon)
        build = lambda: llama.Llama(config, llama.Codes(config.hidden_size, torch.arange(size.codes + 2), size.codes))  # noqa: E731
        return make_random_network(build, self.device, self.dtype)

    @torch.inference_mode()
    def make_model(self, name: str, batch: int = 1) -> Sampled:
        """Make the model of `batch` random prompts of a network, whose shapes are fixed as on a GPU."""
        size, net = self.sizes[name], self.network(name)
        model: Any
        if (c := size.llamagen) is not None:
            condition = torch.randn(batch, c.prefix, c.caption_dim, device=self.device, dtype=self.dtype)
            valid = torch.ones(batch, c.prefix, dtype=torch.bool, device=self.device)
            model = LlamaGen(net, condition, valid, True)
            model.codebook = torch.randn(c.vocab, 8, device=self.device)
        else:
            words = torch.randint(size.codes, (batch, PROMPT), device=self.device)
            inputs = {"words": words, "negative": words, "valid": words.new_ones(words.shape)}
            inputs["negative_valid"] = inputs["valid"]
            codebook = SimpleNamespace(weight=torch.randn(size.codes, 8, device=self.device))
            vq = SimpleNamespace(
                size={"vocab": size.codes, "rows": size.grid, "columns": size.grid, "line": 1, "end": 1}
            )
            vq.quantize = SimpleNamespace(embedding=codebook)
            model = llama.condition({"net": net, "vq": vq}, inputs, True)
        model.static = True
        return Sampled(model, size.sampling)

    def start(self, name: str, method: str) -> Passes:
        """Start a method at its default options on one random prompt; the first pass, which allocates, is made."""
        model = self.make_model(name)
        noise = batch_noise(0, ["0"], self.device)
        noise.array = False
        chosen = options("discrete", method, {})
        chosen = cap_small("discrete", method, chosen) if self.cpu else chosen
        passes: Passes = DECODERS[method](model, torch.zeros_like(noise.keys), noise=noise, **chosen)
        next(passes)
        return passes

    def capture(self, run: Callable[[], Any]) -> Callable[[], Any]:
        """Capture the calls of `run` as a graph, and return a function that makes them again."""
        if self.cpu:
            return run
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                run()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run()
        return graph.replay

    def time(self, run: Callable[[], Any], times: int = 20) -> float:
        """Measure the mean milliseconds of a call."""
        return measure_ms(run, self.device, 1 if self.cpu else times)

    def time_captured(self, run: Callable[[], Any]) -> float:
        """Measure the mean milliseconds of a captured call."""
        return self.time(self.capture(run))

    def wait(self) -> None:
        if not self.cpu:
            torch.cuda.synchronize()


def measure_limit(bench: Bench) -> Iterator[Row]:
    """Time a copy, and the matrix products of a pass alone, captured, by rows of their inputs."""
    yield {"what": "copy", "GB/s read and written": measure_bandwidth(bench.device)}
    for name in bench.sizes:
        net = bench.network(name)
        weights = [p for p in (*net.layers.parameters(), *net.output.parameters()) if p.ndim == 2]
        gb = sum(w.numel() * w.itemsize for w in weights) / 1e9
        for rows in (2, 32, 64, 128):
            inputs = {w.shape[1]: torch.randn(rows, w.shape[1], device=bench.device, dtype=w.dtype) for w in weights}

            def multiply(weights: Any = weights, inputs: Any = inputs) -> None:
                """Multiply each weight with an input of its width."""
                for w in weights:
                    inputs[w.shape[1]] @ w.mT

            yield {"what": f"products, {name}", "rows": rows, "captured ms": bench.time_captured(multiply), "GB": gb}


def list_passes(model: Sampled, device: str) -> Iterator[tuple[str, int, Callable[[], Any]]]:
    """List the passes of a network to time, as (kind, tokens, call): over a window, and of a tree of which four nodes
    are kept."""
    inner: Any = model.model
    L = model.length
    for n in LENGTHS:
        positions = torch.arange(L // 2, L // 2 + min(n, L // 2 - 1), device=device).expand(2, -1)
        tokens = torch.zeros_like(positions)
        yield "window", positions.shape[1], partial(inner.logits, tokens, positions)
    nodes = torch.arange(positions.shape[1], device=device)
    parents = (nodes - 1).expand(2, -1)
    kept = torch.where(nodes < 4, nodes, -1).expand(2, -1)

    def grow() -> None:
        """Evaluate a tree and keep four of its nodes."""
        inner.tree(tokens, positions, parents)
        inner.keep(kept)

    yield "tree and keep", len(nodes), grow


def measure_networks(bench: Bench) -> Iterator[Row]:
    """Time a pass of each network, both rows of guidance, as it is and captured."""
    for name in bench.sizes:
        for kind, n, call in list_passes(bench.make_model(name), bench.device):
            row = {"network": name, "pass": kind, "tokens": n}
            yield row | {"eager ms": bench.time(call, 5), "captured ms": bench.time_captured(call)}


def compile_layers(bench: Bench, name: str) -> None:
    """Compile the layers of a network, unless they are; all share one graph of a shape, for they differ in weights
    alone."""
    # a layer's code makes some forty graphs; if layers did not share them, this would bound the time that is lost
    torch._dynamo.config.recompile_limit = 64
    if name in bench.compiled:
        return
    bench.compiled.add(name)
    for layer in bench.network(name).layers:
        layer.compile(dynamic=False, backend="eager" if bench.cpu else "inductor")


def measure_compiled(bench: Bench) -> Iterator[Row]:
    """Time a pass whose layers are compiled, as it is and captured, and the seconds until its first call returned."""
    for name in bench.sizes:
        compile_layers(bench, name)
        one, middle, _, tree = list_passes(bench.make_model(name), bench.device)
        for kind, n, call in (tree, middle, one):
            start = time.monotonic()
            call()
            bench.wait()
            seconds = time.monotonic() - start
            row = {"network": name, "pass": kind, "tokens": n, "seconds to compile": seconds}
            row |= {"compiled ms": bench.time(call, 5), "compiled, captured ms": bench.time_captured(call)}
            yield row | {"graphs so far": torch._dynamo.utils.counters["stats"]["unique_graphs"]}


def measure_steps(bench: Bench, compiled: bool = False) -> Iterator[Row]:
    """Time a whole pass of each decoder as it is and captured, its capture, and passes in their loop with the reads of
    the host; tell whether the steps of both are equal. compiled: the layers of networks are."""
    for name in bench.sizes:
        if compiled:
            compile_layers(bench, name)
        for method in DECODERS:
            torch.manual_seed(1)
            passes = bench.start(name, method)
            eager = bench.time(passes.run, 10)
            torch.manual_seed(1)
            expected = list(islice(bench.start(name, method), 12))  # fewer if the picture is done sooner
            torch.manual_seed(1)
            passes = bench.start(name, method)
            steps = run_passes(bench, passes)
            found = list(islice(steps, len(expected)))
            equal = len(found) == len(expected) and all(map(is_equal, expected, found))
            bench.wait()
            start = time.monotonic()
            number = sum(1 for _ in zip(range(4 if bench.cpu else 50), steps, strict=False))
            bench.wait()
            looped = 1000 * (time.monotonic() - start)
            row = {"network": name, "method": method, "length": passes.line.model.length, "eager ms": eager}
            row |= {} if bench.cpu else time_reaches(bench, passes, not compiled or bench.reaches)
            row |= {"captured, in its loop, ms": looped / number} if number else {}
            yield row | {"steps equal": equal}


def time_reaches(bench: Bench, passes: Passes, all_reaches: bool) -> Row:
    """Time the captured pass by the positions that it attends to, or where it attends to all alone; "captured ms" is
    the mean over a picture."""
    row: Row = {}
    model: Any = passes.line.model
    length, before, total = model.length, 0, 0.0
    for reach in (*(n for n in REACHES if n < length and all_reaches), length):
        model.attend(reach)
        passes.run()
        bench.wait()
        start = time.monotonic()
        recording = Captured(passes.run)
        bench.wait()
        row["capture, once, ms"] = 1000 * (time.monotonic() - start)
        ms = bench.time(recording.graph.replay)
        total += ms * (reach - before)
        before = reach
        row[f"captured, {'all' if reach == length else reach} positions, ms"] = ms
    return row | {"captured ms": total / length}


def compare_reaches(bench: Bench) -> Iterator[Row]:
    """Count the steps that are equal with and without capture, layers compiled, by dtype, where both attend to all
    positions and where captured passes attend to those that are written. If only the latter differ, and only in coarse
    dtypes, the cause is rounding: other shapes take other kernels."""
    name = list(bench.sizes)[-1]
    for dtype in (torch.bfloat16, torch.float32, torch.float64):
        torch._dynamo.reset()
        other = Bench(bench.cpu)
        other.dtype = dtype
        compile_layers(other, name)
        for method, reaches in product(("mtj", "sjd_coupled"), ((), (16,) if bench.cpu else REACHES)):
            found = []
            for run in (iter, partial(run_passes, bench)):
                torch.manual_seed(1)
                with patch.object(captured, "REACHES", reaches):
                    found.append(list(islice(run(other.start(name, method)), 12)))
            equal = [is_equal(a, b) for a, b in zip(*found, strict=False)]
            row = {"network": name, "method": method, "dtype": str(dtype).removeprefix("torch.")}
            row |= {"captured passes attend to": "positions that are written" if reaches else "all positions"}
            yield row | {"steps": len(equal), "equal before one differs": [*equal, False].index(False)}
        del other


class Job:
    """A random network of a published size, as `loop.decode` takes the networks of a job."""

    def __init__(self, bench: Bench, name: str):
        """Take the network of a size."""
        self.bench, self.name = bench, name
        self.device = torch.device(bench.device)
        self.captured = False
        bench.network(name)

    def model(self, rows: Any, sampling: Any) -> Sampled:
        """Make the model of random prompts, the same ones each time."""
        torch.manual_seed(1)
        return self.bench.make_model(self.name, len(rows["ids"]))


def measure_jobs(bench: Bench) -> Iterator[Row]:
    """Decode jobs with and without captured passes, as `capture: auto` and `off` do: the embedded model, eight images
    at once, and a random network, one image. Seconds have all that a job does, its captures too."""
    import numpy as np

    manifest = fetch.make_manifest("discrete", "scenes", {"family": "llamagen", "grid": 16}, Path("results"))
    texts = CAPTIONS[:8]
    rows = {"ids": np.array(texts), "captions": np.array(texts), **encode(manifest, texts)}
    name = list(bench.sizes)[-1]
    base = {"sampling": TOKENS, "seed": 0, "dtype": "float32"}
    embedded = loop.load("discrete", manifest, base | {"method": "ar"}, bench.device)
    networks = {"embedded": (embedded, rows), name: (Job(bench, name), {k: v[:1] for k, v in rows.items()})}
    for network, (loaded, some) in networks.items():
        for method in reversed(DECODERS):
            chosen = options("discrete", method, {})
            spec = base | {"method": method, "options": cap_small("discrete", method, chosen) if bench.cpu else chosen}
            shards = {}
            for is_on in (True, False, True, False)[2 * bench.cpu :]:  # the first two warm up
                loaded.captured = is_on and not bench.cpu
                shards[is_on] = loop.decode("discrete", loaded, spec, some, len(some["ids"]))
            off, on = (float(shards[is_on].seconds[0]) for is_on in (False, True))
            row = {"network": network, "method": method, "images": len(texts[: len(some["ids"])])}
            row |= {"passes": int(shards[True].passes[0]), "seconds, off": off, "seconds, auto": on}
            differ = int((shards[True].tokens != shards[False].tokens).sum())
            yield row | {"times sooner": off / on, "tokens that differ": differ}


def measure_steps_by_kernel(bench: Bench) -> Iterator[Row]:
    """Time whole passes as `measure_steps`, compiled and attending to all positions, where attention must not take
    cudnn's kernel."""
    torch._dynamo.reset()  # compiled layers keep the kernel that they were compiled with
    bench.reaches = False
    with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]):
        yield from measure_steps(bench, compiled=True)
    torch._dynamo.reset()


def run_passes(bench: Bench, passes: Passes) -> Iterator[Step]:
    """Yield the steps of a decoder, captured on a GPU."""
    return iter(passes) if bench.cpu else run_captured(passes)


def is_equal(a: Step, b: Step) -> bool:
    """Return whether two steps have the same tokens, of which the same number is final, at the same places."""
    return all(torch.equal(x, y) for x, y in zip(a[:3], b[:3], strict=True))


def measure_attention(bench: Bench) -> Iterator[Row]:
    """Time the attention of 32 layers of a pass, captured, by width of a head, slots read, queries and the kernel that
    is chosen, and compare it with the time in which its keys and values are copied. 2,417 slots are not aligned."""
    heads, layers = (2, 2) if bench.cpu else (32, 32)
    gb_s = measure_bandwidth(bench.device)
    for width, slots in ((128, 512), (128, 1024), (128, 2432), (128, 2417), (100, 704), (64, 384), (64, 2432)):
        k = torch.randn(2, slots, heads, width, device=bench.device, dtype=bench.dtype).transpose(1, 2)
        v = torch.randn_like(k)
        for n in (1, 3, 32, 64):
            q = torch.randn(2, heads, n, width, device=bench.device, dtype=bench.dtype)
            mask = torch.zeros(2, 1, n, slots, device=bench.device, dtype=bench.dtype)

            def attend(q: Tensor = q, k: Tensor = k, v: Tensor = v, mask: Tensor = mask) -> None:
                """Attend once in each layer."""
                for _ in range(layers):
                    F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

            row: Row = {"width": width, "slots": slots, "queries": n}
            for kernel, choice in KERNELS.items():
                with choice():
                    try:
                        row[f"{kernel}, ms"] = bench.time_captured(attend)
                    except RuntimeError:  # it refuses these shapes
                        row[f"{kernel}, ms"] = None
                        bench.wait()
            yield row | {"ms at the bandwidth of a copy": layers * 2 * k.numel() * k.itemsize / gb_s / 1e6}


def measure_sampling(bench: Bench) -> Iterator[Row]:
    """Time what leads from logits to tokens (guidance, top-k, softmax, noise, race) by vocabulary and slots: eager,
    captured, and compiled and captured."""
    sizes = ((8194, 1), (8194, 64), (16384, 32), (16384, 64), (65536, 64), (8194, 512))
    for v, n in ((256, 4),) if bench.cpu else sizes:
        logits = torch.randn(2, n, v, device=bench.device, dtype=bench.dtype)
        keys = torch.zeros(1, dtype=torch.int64, device=bench.device)
        index = torch.arange(n, device=bench.device)[None]
        top_k = min(1000, v // 2)

        def draw(logits: Tensor, keys: Tensor, index: Tensor, v: int = v, top_k: int = top_k) -> Tensor:
            """Draw a token for each slot."""
            conditional, unconditional = logits.chunk(2)
            p = top_k_filter(torch.lerp(unconditional, conditional, 3.0).float(), top_k).softmax(-1)
            noise = Noise(keys, torch.float32)
            noise.array = False
            return (p / noise.exponential("sample", index, v)).argmax(-1)

        inputs = (logits, keys, index)
        row = {"vocabulary": v, "slots": n, "eager ms": bench.time(partial(draw, *inputs), 5)}
        row |= {"captured ms": bench.time_captured(partial(draw, *inputs))}
        row |= {"captured, top-k alone, ms": bench.time_captured(partial(logits[:1].float().topk, top_k))}
        fast = torch.compile(draw, dynamic=False, backend="eager" if bench.cpu else "inductor")
        start = time.monotonic()
        tokens = fast(*inputs)
        bench.wait()
        row |= {"seconds to compile": time.monotonic() - start}
        row |= {"compiled, captured ms": bench.time_captured(partial(fast, *inputs))}
        yield row | {"tokens that differ": int((tokens != draw(*inputs)).sum())}


def compare_tokens(bench: Bench) -> Iterator[Row]:
    """Decode captions in float64 on the embedded model, on the CPU as always and captured on the GPU, in batches and
    with rows that join; count what differs."""
    import numpy as np

    grid = 8 if bench.cpu else 16
    manifest = fetch.make_manifest("discrete", "scenes", {"family": "llamagen", "grid": grid}, Path("results"))
    rows = {"ids": np.array(CAPTIONS), "captions": np.array(CAPTIONS), **encode(manifest, CAPTIONS)}
    for method in DECODERS:
        chosen = options("discrete", method, {})
        chosen = cap_small("discrete", method, chosen) if bench.cpu else chosen
        spec = {"method": method, "options": chosen, "sampling": TOKENS, "seed": 0, "dtype": "float64"}
        expected = decode(manifest, spec, rows, "cpu", len(CAPTIONS), iter)
        for at_once in (len(CAPTIONS), 2) if method != "ar" else (len(CAPTIONS),):
            bench.wait()
            start = time.monotonic()
            found = decode(manifest, spec, rows, bench.device, at_once, partial(run_passes, bench))
            row = {"method": method, "rows at once": at_once, "passes": found.passes}
            row |= {f"{name} that differ": count_unequal(found, expected, name) for name in ("tokens", "step", "nodes")}
            yield row | {"seconds with loading": time.monotonic() - start}


def decode(manifest: Any, spec: Any, rows: Any, device: str, at_once: int, run: Callable[[Any], Any]) -> Any:
    """Decode rows on a device, `at_once` of them at a time, whose steps `run` makes of the decoder's."""
    loaded = loop.load("discrete", manifest, spec, device)
    noise = batch_noise(0, CAPTIONS[:at_once], device, torch.float64)
    model, start, steps = loop.start_decoding("discrete", loaded, spec)(rows, noise)
    return record(model, start, run(steps))


def compare_noise(bench: Bench) -> Iterator[Row]:
    """Draw the numbers of a real vocabulary on the CPU and on the GPU, and compare them."""
    index = torch.arange(16)[None]
    for dtype in (torch.float32, torch.float64):
        cpu, gpu = (counted_noise(3, range(2), dtype, device) for device in ("cpu", bench.device))
        for kind in ("exponential", "normal"):
            a, b = (
                getattr(noise, kind)("sample", index.to(noise.keys.device), 65_536).cpu().double()
                for noise in (cpu, gpu)
            )
            row = {"numbers": kind, "dtype": str(dtype).removeprefix("torch."), "drawn": a.numel()}
            apart = (a - b).abs() / a.abs() / torch.finfo(dtype).eps
            yield row | {"that differ": int((a != b).sum()), "most, in eps of the number": apart.max().item()}


def count_unequal(a: Any, b: Any, name: str) -> int:
    """Count the places in which two decoded batches differ in a column."""
    return int((getattr(a, name).cpu() != getattr(b, name).cpu()).sum())


def list_kernels(bench: Bench) -> Iterator[Row]:
    """List the kernels of one captured pass of each decoder on the first network that take longest."""
    if bench.cpu:
        return
    name = next(iter(bench.sizes))
    for method in DECODERS:
        recording = Captured(bench.start(name, method).run)
        recording.graph.replay()
        bench.wait()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            recording.graph.replay()
            bench.wait()
        kernels = [e for e in profile.key_averages() if e.device_time_total]
        total = sum(e.device_time_total for e in kernels) / 1000
        yield {"method": method, "kernel": "all", "number": sum(e.count for e in kernels), "ms": total}
        for e in sorted(kernels, key=lambda e: -e.device_time_total)[:12]:
            yield {"method": method, "kernel": e.key[:70], "number": e.count, "ms": e.device_time_total / 1000}


@dataclass(frozen=True)
class Part:
    """A part of the run: a function that yields its rows, the seconds that it may take, its title on the page, and
    what a reader of its table must know."""

    measure: Callable[[Bench], Iterator[Row]]
    seconds: float
    title: str
    note: str = ""


PARTS = {
    "limit": Part(measure_limit, 30, "The limit: a copy, and the matrix products of a pass alone"),
    "networks": Part(measure_networks, 40, "A pass of a network, both guidance rows"),
    "steps": Part(measure_steps, 60, "A whole pass of a decoder, batch 1, default options"),
    "tokens": Part(compare_tokens, 60, "Captured tokens against the CPU's, float64, embedded model"),
    "noise": Part(compare_noise, 10, "Random numbers against the CPU's"),
    "attention": Part(measure_attention, 40, "Attention of 32 layers of 32 heads, by kernel"),
    "sampling": Part(measure_sampling, 60, "From logits to tokens"),
    "compiled": Part(measure_compiled, 60, "A pass whose layers are compiled"),
    "compiled steps": Part(partial(measure_steps, compiled=True), 120, "A whole pass whose layers are compiled"),
    "compiled steps, no cudnn": Part(measure_steps_by_kernel, 80, "The same without cudnn's kernel of attention"),
    "jobs": Part(
        measure_jobs,
        40,
        "A job with and without captured passes",
        "Passes are not compiled here, seconds have all that a job does, its captures too, and passes are those that"
        " the random network takes: no figure to compare with the predictions at the top of this page.",
    ),
    "reaches": Part(compare_reaches, 40, "Captured steps against uncaptured ones, by dtype and positions attended to"),
    "kernels": Part(list_kernels, 20, "Kernels of a captured pass"),
}


def measure(bench: Bench, names: list[str], file: Path, seconds: float, commit: str) -> None:
    """Measure parts in turn while there is time, and write the file after each row. Parts of earlier runs that it holds
    stay there."""
    started = time.monotonic()
    results = json.loads(file.read_text()) if file.is_file() else {"parts": {}}
    versions = {package: version(package) for package in ("torch", "transformers", "numpy")}
    name = torch.cuda.get_device_name() if not bench.cpu else "CPU"
    how = {"device": name, "machine": describe_hardware("" if bench.cpu else name), "versions": versions}
    how |= {"dtype": str(bench.dtype).removeprefix("torch."), "commit": commit}
    for name in names:
        part: Row = {"how": how, "measured": not bench.cpu, "rows": []}
        results["parts"][name] = part
        begun = time.monotonic()
        if begun - started + PARTS[name].seconds > seconds:
            part["error"] = "left out: no time was left"
        else:
            try:
                with torch.inference_mode():
                    for row in PARTS[name].measure(bench):
                        part["rows"].append(row)
                        print(f"{time.monotonic() - started:5.0f} s {name}: {json.dumps(row)}", flush=True)
                        file.write_text(json.dumps(results, indent=1))
                        if time.monotonic() - begun > PARTS[name].seconds:
                            part["error"] = "stopped: it took longer than its time"
                            break
            except Exception as error:
                part["error"] = f"{type(error).__name__}: {str(error)[:300]}"
                part["trace"] = traceback.format_exc()[-3000:]
                print(part["trace"], flush=True)
        part["seconds"] = time.monotonic() - begun
        file.write_text(json.dumps(results, indent=1))
        if not bench.cpu:
            torch.cuda.empty_cache()
    print(f"{file}: {', '.join(names)}, {time.monotonic() - started:.0f} s")


def count_passes(method: str) -> tuple[float, str] | None:
    """Look up the passes a token that a method takes at its default options on the embedded model, and the commit that
    they were counted at, in the tables of the repository; None if they have none."""
    chosen = options("discrete", method, {})
    for name in ("full", "budget"):
        with (FIGURES / f"{name}.csv").open() as lines:
            for row in csv.DictReader(lines):
                if row["kind"] == "discrete" and row["method"] == method and json.loads(row["options"]) == chosen:
                    return float(row["nfe"]) / 256, json.loads((FIGURES / f"{name}.json").read_text())["commit"]
    return None


def predict_seconds(rows: list[Row], compiled: list[Row], networks: list[Row]) -> list[Row]:
    """Predict the seconds of an image from the time of a captured pass and the passes counted on the embedded model,
    and how many times sooner it is done than by captured plain decoding, and than by the network alone over one token
    at a time. compiled: rows of compiled networks, which replace those of the same network and method; networks: rows
    of compiled networks alone."""
    best = {(r["network"], r["method"]): r for r in (*rows, *compiled) if "captured ms" in r}
    alone = {r["network"]: r["compiled, captured ms"] for r in networks if r["tokens"] == 1 and r["pass"] == "window"}
    predicted = []
    for (network, method), row in best.items():
        if (counted := count_passes(method)) is None or (plain := best.get((network, "ar"))) is None:
            continue
        share, commit = counted
        size = SIZES.get(network)
        drawn = size.grid**2 if size and size.llamagen is None else row["length"]  # a grammar's tokens take no pass
        seconds, plainly = (r["captured ms"] / 1000 * s * drawn for r, s in ((row, share), (plain, 1.0)))
        named = {
            "network": network,
            "method": method,
            "compiled": row in compiled,
            "passes a token": share,
            "counted at": commit,
        }
        costs = {"pass ms": row["captured ms"], "a pass, in plain passes": row["captured ms"] / plain["captured ms"]}
        costs |= {"seconds an image": seconds, "times captured plain": plainly / seconds}
        if network in alone and method != "ar":
            costs |= {"times the network over one token": alone[network] / 1000 * drawn / seconds}
        predicted.append(named | costs)
    return predicted


def predict_rows(parts: dict[str, Any]) -> list[Row]:
    """Predict the seconds of an image, as `predict_seconds` does, from the parts that were measured."""
    names = ("steps", "compiled steps", "compiled")
    return predict_seconds(*(parts[name]["rows"] if name in parts else [] for name in names))


def keep_seconds(rows: list[Row], device: str, file: Path) -> None:
    """Write predicted rows as a table whose `label` is "NETWORK, METHOD", for pages that cite a number of it. device:
    the one that was measured."""
    columns = ("pass ms", "seconds an image", "times captured plain", "times the network over one token")
    with file.open("w", newline="") as lines:
        table = csv.writer(lines, lineterminator="\n")
        table.writerow(("label", "device", *columns))
        for r in rows:
            values = (f"{r[name]:.6g}" if name in r else "" for name in columns)
            table.writerow((f"{r['network']}, {r['method']}", device, *values))


def format_page(results: dict[str, Any] | None, runs: list[dict[str, Any]]) -> str:
    """Format the page: what was captured, then the runs of `gpu_passes.py`."""
    text = "# On a GPU\n\nWritten by `python benchmarks/gpu.py --page docs/results/gpu.md`. "
    text += "Weights are random: the time of a pass depends on shapes alone.\n"
    if results is not None:
        text += "\n## Captured passes\n\nA pass is captured as a CUDA graph and repeated. "
        text += "It attends to as many positions as are written: 512, 1,024, 2,048 or all, a graph each. "
        text += 'Of a decoder\'s pass, "captured ms" is the mean over a picture. "In its loop" is the mean of at most '
        text += "50 passes of a decode with the host's reads and, wherever more positions are attended to, a pass "
        text += (
            'as it is, its compilation and a capture: not the rate of a picture. "Steps equal" compares the first 12 '
        )
        text += "steps with those of passes that are not captured.\n"
        parts = results["parts"]
        if predicted := predict_rows(parts):
            text += "\n### Seconds of an image, predicted, against captured plain decoding\n\n"
            text += (
                "Passes were counted on the embedded model, at the same options and the commit named; where commits "
            )
            text += "differ, the embedded models do. Compilation, captures and what the host does between passes are "
            text += "left out. Plain decoding (`ar`) of Lumina-mGPT reads three "
            text += "tokens a pass, since it reads those that the grammar forces once more; a pass over one would be "
            text += "faster. So the last column compares with the compiled network alone over one token, without any "
            text += "work beside it; it attended to all positions, and to fewer it takes less.\n\n"
            text += format_table(predicted)
        for name, part in parts.items():
            how = part["how"]
            text += f"\n### {PARTS[name].title}\n\n"
            of_dtype = f", {how['dtype']}" if name not in ("tokens", "noise", "reaches") else ""
            text += f"{how['device']}, torch {how['versions']['torch']}{of_dtype}, commit {how['commit'][:8]}.\n"
            text += "" if part["measured"] else "**Not measured**: a CPU ran small networks, to show that it runs.\n"
            text += f"Not all was measured: {part['error']}.\n" if "error" in part else ""
            if unequal := [f"`{r['method']}` of {r['network']}" for r in part["rows"] if r.get("steps equal") is False]:
                text += (
                    f"Captured steps of {', '.join(unequal)} were not equal: in bfloat16 that differs from commit to"
                )
                text += " commit. See the steps by dtype.\n"
            text += f"{PARTS[name].note}\n" if PARTS[name].note else ""
            text += "\n" + format_table(part["rows"]) if part["rows"] else ""
    return text + format_runs(runs)


def read_commit() -> str:
    """Read the commit of this folder; "" where there is no repository."""
    found = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    return found.stdout.strip()


def main() -> None:
    """Measure the parts that were asked for, or write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--seconds", type=float, default=540.0, help="no part begins that would end later than this")
    parser.add_argument("--out", type=Path, default=FIGURES / "gpu-captured.json")
    parser.add_argument("--commit", default="", help="the commit that is measured, where the folder does not tell")
    parser.add_argument("--cpu", action="store_true", help="every part at tiny sizes on a CPU")
    parser.add_argument("--page", type=Path, help="write this page from the files of docs/figures, and measure nothing")
    a = parser.parse_args()
    if a.page:
        captured = json.loads(a.out.read_text()) if a.out.is_file() else None
        files = [FIGURES / f"gpu-{name}.json" for name in ("tokens", "passes", "compiled")]
        a.page.write_text(format_page(captured, [json.loads(file.read_text()) for file in files]))
        if captured is not None:
            device = captured["parts"]["steps"]["how"]["device"]
            keep_seconds(predict_rows(captured["parts"]), device, a.out.with_name("gpu-seconds.csv"))
        return
    pin_threads(1)
    measure(Bench(a.cpu), a.parts, a.out, a.seconds, a.commit or read_commit())


if __name__ == "__main__":
    run_command(main)
