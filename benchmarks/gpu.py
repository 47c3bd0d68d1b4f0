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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, partial
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from gains import ROTARY, read_expected
from gpu_passes import CAPTIONS, TOKENS, format_runs, format_table, make_random_network, measure_bandwidth, measure_ms
from parity_decoders.captured import REACHES, Captured, run_captured
from parity_decoders.compiling import compile_passes
from parity_decoders.discrete.ar import ar
from parity_decoders.discrete.mtj import mtj
from parity_decoders.discrete.sjd_coupled import sjd_coupled
from parity_decoders.distribution import TokenSampling
from parity_decoders.engine import Sampled
from parity_decoders.families.inputs import read_inputs
from parity_decoders.passes import Passes
from parity_decoders.slots import SlotNetwork
from parity_decoders.steps import Step

from parity.base.command import pin_threads, run_command
from parity.base.machine import describe_hardware
from parity.base.row_noise import batch_noise
from parity.decode import loop
from parity.experiment.options import cap_small, options
from parity.inputs.prompts import encode
from parity.models import fetch
from parity.models.discrete import llama
from parity.models.discrete.llamagen import LlamaGen, LlamaGenConfig, Transformer

Row = dict[str, Any]
FIGURES = Path("docs/figures")
DECODERS: dict[str, Any] = {"ar": ar, "sjd_coupled": sjd_coupled, "mtj": mtj}
LENGTHS = (1, 32, 64)  # tokens of a pass that is timed
PROMPT = 64  # words of a prompt of a language model


@dataclass(frozen=True)
class Size:
    """A network of a published size, and the settings that its images are sampled with."""

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
        if (c := size.llamagen) is not None:
            condition = torch.randn(batch, c.prefix, c.caption_dim, device=self.device, dtype=self.dtype)
            valid = torch.ones(batch, c.prefix, dtype=torch.bool, device=self.device)
            target = LlamaGen(net, condition, valid, True)
        else:
            words = torch.randint(size.codes, (batch, PROMPT), device=self.device)
            inputs = {"words": words, "negative": words, "valid": words.new_ones(words.shape)}
            inputs["negative_valid"] = inputs["valid"]
            codebook = SimpleNamespace(weight=torch.randn(size.codes, 8, device=self.device))
            vq = SimpleNamespace(
                size={"vocab": size.codes, "rows": size.grid, "columns": size.grid, "line": 1, "end": 1}
            )
            vq.quantize = SimpleNamespace(embedding=codebook)
            target = llama.condition({"net": net, "vq": vq}, inputs, True).target
        target.cache.static = True
        return Sampled(target, size.sampling)

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
    inner = model.network
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
        inner.keep(inner.tree(tokens, positions, parents), kept)

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
    if name not in bench.compiled:
        bench.compiled.add(name)
        compile_each(bench, bench.network(name).layers)


def compile_each(bench: Bench, layers: Any) -> None:
    """Compile each layer when it is next called; on a CPU it is traced alone."""
    # a layer's code makes some forty graphs; if layers did not share them, this would bound the time that is lost
    torch._dynamo.config.recompile_limit = 64
    for layer in layers:
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


def compile_pass(bench: Bench, passes: Passes) -> float:
    """Compile a decoder's pass as one graph, as jobs do; on a CPU it is traced alone. Returns the seconds it took."""
    if bench.cpu:
        passes.run = torch.compile(passes.run, fullgraph=True, dynamic=False, backend="eager")
    else:
        passes = compile_passes(passes)
        next(passes)  # it runs as it is
    start = time.monotonic()
    next(passes)
    bench.wait()
    return time.monotonic() - start


def measure_steps(bench: Bench, compiled: str = "") -> Iterator[Row]:
    """Time a whole pass of each decoder as it is and captured, its capture, and passes in their loop with the reads of
    the host; tell whether the steps of both are equal. compiled: "layers", of the networks, or "passes", whole."""

    def start(name: str, method: str) -> tuple[Passes, Row]:
        """Start a decoder, the same each time, and compile its pass."""
        torch.manual_seed(1)
        passes = bench.start(name, method)
        return passes, {"seconds to compile": compile_pass(bench, passes)} if compiled == "passes" else {}

    for name in bench.sizes:
        if compiled == "layers":
            compile_layers(bench, name)
        for method in DECODERS:
            passes, compiling = start(name, method)
            eager = bench.time(passes.run, 10)
            expected = list(islice(start(name, method)[0], 12))  # fewer if the image is done sooner
            passes, _ = start(name, method)
            steps = run_passes(bench, passes)
            found = list(islice(steps, len(expected)))
            equal = len(found) == len(expected) and all(map(is_equal, expected, found))
            bench.wait()
            before = time.monotonic()
            number = sum(1 for _ in zip(range(4 if bench.cpu else 50), steps, strict=False))
            bench.wait()
            looped = 1000 * (time.monotonic() - before)
            row = {"network": name, "method": method, "length": passes.line.model.length, "eager ms": eager}
            row |= compiling
            row |= {} if bench.cpu else time_reaches(bench, passes)
            row |= {"captured, in its loop, ms": looped / number} if number else {}
            yield row | {"steps equal": equal}


def time_reaches(bench: Bench, passes: Passes) -> Row:
    """Time the captured pass by the positions that it attends to, or where it attends to all alone; "captured ms" is
    the mean over an image."""
    row: Row = {}
    model: Any = passes.line.model
    length, before, total = model.length, 0, 0.0
    for reach in (*(n for n in REACHES if n < length), length):
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


def measure_generate(bench: Bench) -> Iterator[Row]:
    """Time `generate` of transformers, by itself and by decoders as they are, captured, and compiled and captured, on a
    random Llama of SmolLM2-1.7B's size: the second call of each, with its captures."""
    from parity_decoders import transformers as decoders
    from transformers import LlamaConfig, LlamaForCausalLM

    layers, dim, heads, vocab = (2, 64, 2, 512) if bench.cpu else (24, 2048, 32, 49152)
    sizes = {"hidden_size": dim, "intermediate_size": 4 * dim, "num_hidden_layers": layers, "vocab_size": vocab}
    config = LlamaConfig(**sizes, num_attention_heads=heads, max_position_embeddings=2048)
    net = make_random_network(lambda: LlamaForCausalLM(config).eval(), bench.device, bench.dtype)
    ids = torch.arange(PROMPT, device=bench.device)[None]
    keywords = {"do_sample": True, "max_new_tokens": 16 if bench.cpu else 256, "eos_token_id": None, "pad_token_id": 0}
    ways: dict[str, dict[str, bool]] = {"as it is": {}}
    if not bench.cpu:
        ways |= {"captured": {"capture": True}, "compiled, captured": {"compile": True, "capture": True}}
    calls: list[tuple[str, str, dict[str, Any]]] = [("generate itself", "as it is", {})]
    if not bench.cpu:  # with this cache transformers compiles and captures the model's forward
        calls.append(("generate itself", "compiled, captured", {"cache_implementation": "static"}))
    for method in DECODERS:
        how = {"custom_generate": getattr(decoders, method), "seed": 1}
        calls += [(method, way, how | flags) for way, flags in ways.items()]
    expected: dict[str, torch.Tensor] = {}  # the tokens of a method as it is
    for method, way, how in calls:
        net.generate(ids, **keywords, **how)
        bench.wait()
        torch.manual_seed(1)
        start = time.monotonic()
        tokens = net.generate(ids, **keywords, **how)
        bench.wait()
        row = {
            "method": method,
            "passes": way,
            "ms a token": 1000 * (time.monotonic() - start) / keywords["max_new_tokens"],
        }
        differ = int((tokens != expected.setdefault(method, tokens)).sum())
        yield row | {"tokens that differ": differ}


def make_glm_image(bench: Bench) -> tuple[Any, torch.Tensor, dict[str, Any]]:
    """Make GLM-Image with random weights, of its published size except the vision tower, which text to image does not
    call; the ids of a prompt; and the keywords of `generate` for an image of 1,024 x 1,024, which runs to its end."""
    from transformers import GlmImageConfig, GlmImageForConditionalGeneration

    text, side = {"rope_parameters": ROTARY}, 32
    if bench.cpu:
        text, side = TINY | {"vocab_size": 17000, "pad_token_id": 0}, 6
        text["rope_parameters"] = ROTARY | {"mrope_section": [2, 3, 3]}
    config = GlmImageConfig(text_config=text, vision_config={"depth": 1})
    build = lambda: GlmImageForConditionalGeneration(config)  # noqa: E731
    torch.manual_seed(0)
    net = make_random_network(build, bench.device, bench.dtype)
    prompt = [*range(PROMPT - 1), config.image_start_token_id]
    ids = torch.tensor([prompt], device=bench.device)
    grids = torch.tensor([[1, side, side], [1, side // 2, side // 2]], device=bench.device)
    keywords = {"attention_mask": torch.ones_like(ids), "image_grid_thw": grids, "do_sample": True}
    keywords |= {"images_per_sample": torch.tensor([2], device=bench.device), "eos_token_id": None}
    return net, ids, keywords | {"max_new_tokens": side**2 + (side // 2) ** 2 + 1}


def measure_glm_image(bench: Bench) -> Iterator[Row]:
    """Time a pass of GLM-Image over windows, as it is and captured, then the same with compiled layers."""
    net, ids, keywords = make_glm_image(bench)
    length = keywords["max_new_tokens"]
    read = read_inputs(net, ids, keywords["attention_mask"].bool(), keywords, length)
    network = SlotNetwork(net, ids, ids >= 0, length, static=True, position_ids=read.position_ids)
    for way in ("", "compiled, "):
        if way:
            compile_each(bench, net.model.language_model.layers)
        for n in (1, 8, 16, 32, 64):
            positions = torch.arange(length // 2, length // 2 + min(n, length // 2), device=bench.device)[None]
            call = partial(network.logits, torch.zeros_like(positions), positions)
            call()  # compiles
            ms = {f"{way or 'eager '}ms".replace(", ms", " ms"): bench.time(call, 5)}
            yield {"tokens": positions.shape[1]} | ms | {f"{way}captured ms": bench.time_captured(call)}


def measure_request(bench: Bench) -> Iterator[Row]:
    """Decode a whole image by GLM-Image inside `generate`, as it is and captured, after a request for few tokens."""
    from parity_decoders import transformers as decoders

    net, ids, keywords = make_glm_image(bench)
    keywords |= {"pad_token_id": 0, "return_dict_in_generate": True}
    expected: dict[str, torch.Tensor] = {}  # the tokens of plain decoding as it is
    for way in ({}, {"capture": True})[: 1 if bench.cpu else 2]:
        for method in DECODERS:
            how = {"custom_generate": getattr(decoders, method), "seed": 1, **way}
            net.generate(ids, **keywords | {"max_new_tokens": 8}, **how)
            bench.wait()
            start = time.monotonic()
            made = net.generate(ids, **keywords, **how)
            bench.wait()
            row = {"method": method, "captured": bool(way), "tokens": made.sequences.shape[1] - ids.shape[1]}
            row |= {"passes": int(made.passes[0]), "seconds": time.monotonic() - start}
            differ = int((made.sequences != expected.setdefault("ar", made.sequences)).sum())
            yield row | {"tokens that differ": differ}


def run_passes(bench: Bench, passes: Passes) -> Iterator[Step]:
    """Yield the steps of a decoder, captured on a GPU."""
    return iter(passes) if bench.cpu else run_captured(passes)


def is_equal(a: Step, b: Step) -> bool:
    """Return whether two steps have the same tokens, of which the same number is final, at the same places."""
    return all(torch.equal(x, y) for x, y in zip(a[:3], b[:3], strict=True))


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
    "compiled": Part(measure_compiled, 60, "A pass whose layers are compiled"),
    "compiled steps": Part(partial(measure_steps, compiled="layers"), 120, "A whole pass whose layers are compiled"),
    "compiled passes": Part(partial(measure_steps, compiled="passes"), 180, "A whole pass compiled as one graph"),
    "jobs": Part(
        measure_jobs,
        40,
        "A job with and without captured passes",
        "Passes are not compiled here, seconds have all that a job does, its captures too, and passes are those that"
        " the random network takes: no figure to compare with the predictions at the top of this page.",
    ),
    "generate": Part(
        measure_generate,
        120,
        "Inside transformers' `generate`",
        "A random network accepts few drafts, so times compare ways of one method, not methods.",
    ),
    "glm-image": Part(measure_glm_image, 120, "A pass of GLM-Image 9B inside transformers, one row"),
    "request": Part(
        measure_request,
        400,
        "A whole image of GLM-Image 9B inside transformers' `generate`",
        "Seconds have captures. A random network accepts few drafts: passes are not those of trained weights.",
    ),
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
    how["date"] = datetime.now(UTC).date().isoformat()
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
    they were counted at, in the tables of the repository, the study of budgets first, so that methods are compared on
    equal prompts; None if they have none."""
    chosen = options("discrete", method, {})
    for name in ("budget", "full"):
        with (FIGURES / f"{name}.csv").open() as lines:
            for row in csv.DictReader(lines):
                if row["kind"] == "discrete" and row["method"] == method and json.loads(row["options"]) == chosen:
                    return float(row["nfe"]) / 256, json.loads((FIGURES / f"{name}.json").read_text())["commit"]
    return None


EXPECTED_OF = {"Lumina-mGPT 7B": "Lumina-mGPT", "LlamaGen-XL": "LlamaGen"}  # networks of the SJD paper
AS_EASY = {"seconds an image": "seconds, if as easy as the embedded model", "times captured plain": "times, if as easy"}


# The paper prints two gains of `sjd`, and so there are two expected ones; the last is the least where the network alone
# is called, over 32 tokens and over one
LEAST, MOST = "times expected, at the paper's least", "times expected, at the paper's most"
LEAST_OVER_ONE = f"{LEAST}, over single tokens"


def predict_seconds(rows: list[Row], compiled: list[Row], networks: Sequence[Row] = ()) -> list[Row]:
    """Predict the seconds of an image from the time of a captured pass and the passes counted on the embedded model,
    and how many times sooner it is done than by captured plain decoding. Each method, plain decoding too, has the
    fastest of its rows. compiled: those of compiled networks or passes; networks: passes of compiled networks alone."""
    alone = {(r["network"], r["tokens"]): r["compiled, captured ms"] for r in networks if r["pass"] == "window"}
    best: dict[tuple[str, str], Row] = {}
    for r in (*rows, *compiled):
        if "captured ms" in r:
            key = r["network"], r["method"]
            best[key] = min(best.get(key, r), r, key=lambda row: row["captured ms"])
    expected, predicted = read_expected(), []
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
        ends = expected.get((EXPECTED_OF.get(network, ""), method))
        if ends and method == "sjd_coupled":  # counted at the width that was timed
            gains = [end / costs["a pass, in plain passes"] for end in ends]
            one, window = (alone.get((network, tokens)) for tokens in (1, 32))
            gains += [ends[0] * one / window] if one and window else []
            costs |= dict(zip((LEAST, MOST, LEAST_OVER_ONE), gains, strict=False))
        predicted.append(named | costs)
    return predicted


def predict_rows(parts: dict[str, Any]) -> list[Row]:
    """Predict the seconds of an image, as `predict_seconds` does, from the parts that were measured."""
    names = ("steps", "compiled steps", "compiled passes", "compiled")
    steps, layers, passes, networks = (parts[name]["rows"] if name in parts else [] for name in names)
    return predict_seconds(steps, [*layers, *passes], networks)


def keep_seconds(rows: list[Row], device: str, file: Path) -> None:
    """Write predicted rows as a table whose `label` is "NETWORK, METHOD", for pages that cite a number of it. device:
    the one that was measured."""
    columns = ("pass ms", "seconds an image", "times captured plain", LEAST, LEAST_OVER_ONE)
    with file.open("w", newline="") as lines:
        table = csv.writer(lines, lineterminator="\n")
        table.writerow(("label", "device", *columns))
        for r in rows:
            values = (f"{r[name]:.6g}" if name in r else "" for name in columns)
            table.writerow((f"{r['network']}, {r['method']}", device, *values))


def keep_images(rows: list[Row], device: str, file: Path) -> None:
    """Write how many times sooner than by plain decoding images of the embedded model were made, both captured, as a
    table whose `label` is the method. device: the one that was measured."""
    seconds = {r["method"]: r["seconds, auto"] for r in rows if r["network"] == "embedded"}
    with file.open("w", newline="") as lines:
        table = csv.writer(lines, lineterminator="\n")
        table.writerow(("label", "device", "seconds", "times captured plain"))
        table.writerows((method, device, f"{s:.6g}", f"{seconds['ar'] / s:.6g}") for method, s in seconds.items())


SHOWN = ("compiled steps", "jobs", "generate", "glm-image", "request")  # parts whose tables stand on the page
CAPTURED = (
    "A pass is captured as a CUDA graph and repeated. It attends to as many positions as are written: 512, 1,024,"
    ' 2,048 or all, a graph each; "captured ms" is the mean over an image. Tokens of 18 decoders were the CPU\'s in'
    " float64 on an H100, and captured ones of `ar`, `sjd_coupled` and `mtj` on an H200 (not kept);"
    " `tests/decode/test_cuda.py` compares those of every decoder."
)
PREDICTED = (
    "Passes were counted on the embedded model, by the study of budgets over 16 prompts, at the same options and"
    " commit {commits}. Published networks will need more: `sjd` takes 2.2 to 2.3 times fewer passes of Lumina-mGPT"
    " (its paper), and 4.5 times fewer of the embedded model (32 tokens a pass). Expected: with the tokens a pass that"
    " we expect of the network in place of the embedded model's ([how, and how wrong it may be](gain.md)). A pass of"
    " `sjd_coupled` has"
    " 32 tokens, one of `mtj` 64. Every row is of an earlier path: nothing since commit a1d7b342 ran on CUDA. Images"
    " of a trained network were made by the embedded model alone, three at once (0.210 s plain, 0.075 s by"
    " `sjd_coupled`, 0.147 s by `mtj`, so 2.8 and 1.4 times as fast; each captured)."
    " Compilation, captures and what the host does between"
    " passes are left out, which flatters fast methods: in a loop of 50, captures included, passes of LlamaGen-3B by"
    " `sjd_coupled` and `mtj` took 17 and 29 % longer, by `ar` 0.3 %. Plain"
    " decoding (`ar`) of Lumina-mGPT reads three tokens a pass, those that the grammar"
    " forces once more; a pass over one would be faster. Therefore the last column compares passes of the compiled"
    " network alone, at all positions and commit efa44cfe: of Lumina-mGPT 8.17 ms over 32 tokens and 5.74 over one."
)


def describe_captured(rows: list[Row]) -> str:
    """Say how long passes take that are captured, and as they are."""
    ends = [f"{min(ms):.3g} to {max(ms):.3g}" for ms in ([r[k] for r in rows] for k in ("captured ms", "eager ms"))]
    return f"A pass of these {len(rows)} takes {ends[0]} ms captured, and {ends[1]} ms if not.\n"


def describe_jobs(rows: list[Row]) -> str:
    """Say by network how much sooner jobs are done with captured passes, and how many tokens differ."""
    parts = []
    for network in dict.fromkeys(r["network"] for r in rows):
        of = [r for r in rows if r["network"] == network]
        sooner = ", ".join(f"`{r['method']}` {r['times sooner']:.3g}" for r in of)
        differing = [f"{r['tokens that differ']} of `{r['method']}`" for r in of if r["tokens that differ"]]
        dtype = ", in float32" * (network == "embedded")
        told = f"{network}{dtype}, {of[0]['images']} image{'s' * (of[0]['images'] > 1)}: {sooner}"
        parts.append(f"{told}; tokens that differ: {', '.join(differing) or 'none'}")
    return "Times sooner with captured passes: " + ". ".join(parts) + ".\n"


IN_WORDS = {"compiled steps": describe_captured, "jobs": describe_jobs}  # parts that the page has in sentences


def leave_out(rows: list[Row], names: set[str]) -> list[Row]:
    """Leave out columns that the page says in words, or that stand in the file alone."""
    return [{name: value for name, value in row.items() if name not in names} for row in rows]


def format_page(results: dict[str, Any] | None, runs: list[dict[str, Any]]) -> str:
    """Format the page: what was captured, then the runs of `gpu_passes.py`."""
    text = "# On a GPU\n\nWritten by `python benchmarks/gpu.py --page docs/results/gpu.md`. "
    text += "Weights are random: the time of a pass depends on shapes alone.\n"
    if results is not None:
        text += f"\n## Captured passes\n\n{CAPTURED}\n"
        parts = results["parts"]
        if predicted := predict_rows(parts):
            title = "Seconds of an image, predicted, against captured plain decoding"
            commits = ", ".join(dict.fromkeys(row["counted at"] for row in predicted))
            hidden = {"counted at", "a pass, in plain passes"}
            hidden |= {"compiled"} if all(row["compiled"] for row in predicted) else set()
            how = PREDICTED.format(commits=commits) + " All layers were compiled." * ("compiled" in hidden)
            shown = [{AS_EASY.get(k, k): v for k, v in row.items()} for row in leave_out(predicted, hidden)]
            text += f"\n### {title}\n\n{how}\n\n{format_table(shown)}"
        text += "\nParts that are not shown here stand in docs/figures/gpu-captured.json.\n"
        for name, part in ((name, part) for name, part in parts.items() if name in SHOWN):
            how = part["how"]
            text += f"\n### {PARTS[name].title}\n\n"
            text += f"{how['device']}, torch {how['versions']['torch']}, {how['dtype']}, "
            text += f"commit {how['commit'][:8]}, {how['date']}.\n"
            text += "" if part["measured"] else "**Not measured**: a CPU ran small networks, to show that it runs.\n"
            text += f"Not all was measured: {part['error']}.\n" if "error" in part else ""
            if any("steps equal" in r for r in part["rows"]):
                unequal = [f"`{r['method']}` of {r['network']}" for r in part["rows"] if r.get("steps equal") is False]
                text += "The first 12 steps were equal to those of passes that are not captured"
                text += f", except of {', '.join(unequal)}" * bool(unequal) + ".\n"
            text += f"{PARTS[name].note}\n" if PARTS[name].note else ""
            if part["rows"]:
                text += IN_WORDS[name](part["rows"]) if name in IN_WORDS else "\n" + format_table(part["rows"])
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
        files = [FIGURES / f"gpu-{name}.json" for name in ("passes", "compiled")]
        a.page.write_text(format_page(captured, [json.loads(file.read_text()) for file in files]))
        if captured is not None:
            device = captured["parts"]["steps"]["how"]["device"]
            keep_seconds(predict_rows(captured["parts"]), device, a.out.with_name("gpu-seconds.csv"))
            if jobs := captured["parts"].get("jobs"):
                keep_images(jobs["rows"], jobs["how"]["device"], a.out.with_name("gpu-images.csv"))
        return
    pin_threads(1)
    measure(Bench(a.cpu), a.parts, a.out, a.seconds, a.commit or read_commit())


if __name__ == "__main__":
    run_command(main)
