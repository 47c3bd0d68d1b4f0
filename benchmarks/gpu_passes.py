"""What uncaptured passes of every decoder cost on the GPU of this machine: one command of at most 9 minutes.

    python benchmarks/gpu_passes.py [--device cuda] [--seconds 540] [--out gpu.json]
    python benchmarks/gpu_passes.py --parts others compiled    some parts alone

In turn, as long as the seconds last: the copy bandwidth, then the parts. `others`: networks of other kinds; `passes`: a
forward of random networks of published sizes over batch x window x context, and every decoder on them for some passes;
`compiled`: the same compiled. Each part is written as it ends. On a CPU the same runs small networks.
`benchmarks/gpu.py` makes the page of the results.

The networks have the sizes of the released code's constructors and random weights, for the time of a pass depends on
shapes alone. Emu3 is left out: its attention has fewer keys than queries, which `models.discrete.llamagen` lacks.
"""

import argparse
import json
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from parity_decoders.compiling import CompiledPass
from parity_decoders.distribution import TokenSampling
from parity_decoders.engine import Sampled
from parity_decoders.steps import Step
from torch import Tensor, nn

from parity.base.command import add_arguments, pin_threads, provenance, run_command
from parity.base.devices import check, is_out_of_memory
from parity.base.row_noise import batch_noise
from parity.decode.output_buffer import now
from parity.experiment.options import cap_small, methods, needs, options
from parity.models.continuous import harmon, mar, xar
from parity.models.continuous.diffusion import HeadSampling
from parity.models.discrete.llamagen import LlamaGenConfig, Transformer, embed_conditions, make_canvas, make_speculator
from parity.models.discrete.prompts import condition_networks

MAR_H: dict[str, Any] = {"width": 1280, "encoder": 20, "decoder": 20, "heads": 16, "head_width": 1536, "head_depth": 12}
QWEN: dict[str, Any] = {"hidden": 1536, "intermediate": 8960, "layers": 28, "attention_heads": 12, "vocab": 151936}
# Each network's name and sizes: LlamaGenConfig, a continuous family's Config, XLNet's dict as transformers saves it.
DISCRETE = {
    "Lumina-mGPT 7B at 768": LlamaGenConfig(65536, 4096, 32, 32, grid=48, prefix=52, caption_dim=4096),
    "Anole 7B at 512": LlamaGenConfig(65536, 4096, 32, 32, grid=32, prefix=52, caption_dim=4096),
    "LlamaGen-3B": LlamaGenConfig(dim=3200, layers=24, heads=32, grid=24),
    "LlamaGen-XL": LlamaGenConfig(),
}
CONTINUOUS: dict[str, Any] = {
    "MAR-B": mar.MARConfig(),
    "MAR-L": mar.MARConfig(width=1024, encoder=16, decoder=16, heads=16, head_width=1280, head_depth=8),
    "MAR-H": mar.MARConfig(**MAR_H),
    "xAR-H": xar.XARConfig(width=1280, encoder=20, decoder=20, heads=16),
    "Harmon-1.5B": harmon.HarmonConfig(**MAR_H, **QWEN),
}
TEXT = {"XLNet-base": {"d_model": 768, "n_layer": 12, "n_head": 12, "d_inner": 3072, "vocab_size": 32000}}
# These networks and methods are timed compiled, too, as many as there is time for.
COMPILED_NETWORKS = ("LlamaGen-XL", "Lumina-mGPT 7B at 768")
COMPILED_METHODS = ("ar", "mtj", "sjd_coupled", "sjd")
PARTS = ("others", "passes", "compiled")  # what a run measures, in this order
# A CPU runs these small networks in place of the large ones, only to show that the command works.
SMALL_DISCRETE = {"small": LlamaGenConfig(256, 64, 2, 2, grid=4, prefix=4, caption_dim=8, multiple_of=16)}
SMALL_CONTINUOUS = {
    "small MAR": mar.MARConfig(10, 4, 4, 64, 2, 2, 4, 4, 64, 2),
    "small xAR": xar.XARConfig(10, 4, 2, 4, 64, 2, 2, 4),
}
SMALL_TEXT = {"small XLNet": {"d_model": 64, "n_layer": 2, "n_head": 2, "d_inner": 128, "vocab_size": 256}}


def make_random_network(build: Any, device: str, dtype: torch.dtype) -> Any:
    """Build a network with normal random weights of deviation .02. Buffers keep their values, floats as float32."""
    with torch.device(device):
        default = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            net = build()
        finally:
            torch.set_default_dtype(default)
    net.to(device)  # transformers makes some tensors of XLNet on the CPU whatever the default
    for p in net.parameters():
        nn.init.normal_(p, std=0.02)
    for buffer in net.buffers():
        if buffer.is_floating_point():
            buffer.data = buffer.data.float()
    return net.eval()


@dataclass
class Networks:
    """A random transformer of a size with its speculators, and models of its batches to decode."""

    config: LlamaGenConfig
    device: str
    dtype: torch.dtype
    fast: bool = False

    def __post_init__(self) -> None:
        """Make the random networks and codebook, and the function that runs a pass, compiled if `fast`."""
        self.net = make_random_network(lambda: Transformer(self.config), self.device, self.dtype)
        self.drafter = make_random_network(lambda: make_speculator("drafter", self.config), self.device, self.dtype)
        self.heads = make_random_network(lambda: make_speculator("heads", self.config), self.device, self.dtype)
        self.codes = torch.randn(self.config.vocab, 8, device=self.device)
        self.run = CompiledPass(self.net.forward, torch.device(self.device).type) if self.fast else None

    @torch.inference_mode()
    def model(self, batch: int, speculator: str = "") -> Sampled:
        """Make the model of `batch` random prompts with guidance. `speculator` is "drafter", "draft", "heads" or "" for
        none; the draft model is the network itself, so a pass of it costs the same."""
        c = self.config
        condition = torch.randn(batch, c.prefix, c.caption_dim, device=self.device, dtype=self.dtype)
        valid = torch.ones(batch, c.prefix, dtype=torch.bool, device=self.device)

        of_speculator = {"drafter": self.drafter, "heads": self.heads, "draft": self.net}
        nets = {"net": self.net, **{name: net for name, net in of_speculator.items() if name == speculator}}
        canvas = make_canvas(self.net, (self.codes, self.codes))
        embed = partial(embed_conditions, condition=condition, valid=valid, guided=True)
        target, speculators = condition_networks(nets, embed, canvas, self.run)
        return Sampled(target, TokenSampling(guidance=3.0, top_k=min(1000, c.vocab)), speculators)

    def count_bytes(self, batch: int, context: int) -> int:
        """Count the bytes a pass reads: weights once, keys and values of `context` slots in both rows of a prompt."""
        weights = sum(p.numel() for p in (*self.net.layers.parameters(), *self.net.output.parameters()))
        return (weights + 2 * batch * context * 2 * self.config.dim * self.config.layers) * self.dtype.itemsize


def make_random_continuous(config: Any, device: str, dtype: torch.dtype, batch: int, steps: int) -> Any:
    """Make a random MAR, xAR or Harmon with guidance, by the class of `config`; its head walks `steps` steps."""
    family: Any = next(f for f in (mar, xar, harmon) if isinstance(config, f.Config))
    net = make_random_network(lambda: family.Network(config), device, dtype)
    prompts = torch.zeros(batch, dtype=torch.int64, device=device)
    labels: Tensor = prompts[:, None].expand(-1, 8) if family is harmon else prompts
    return family.Model(net, labels, HeadSampling(steps, guidance=3.0))


Row = dict[str, Any]
TOKENS = {"guidance": 1.8, "temperature": 1.0, "top_k": 0, "top_p": 1.0}
CAPTIONS = ["a small red circle", "two large squares", "a green star above a blue ring"]


def measure_ms(run: Callable[[], Any], device: str, times: int = 10) -> float:
    """Measure the mean milliseconds of a call of `run`, over `times` calls after two to warm up; on CUDA by events."""
    for _ in range(2):
        run()
    if not device.startswith("cuda"):
        start = time.perf_counter()
        for _ in range(times):
            run()
        return 1000 * (time.perf_counter() - start) / times
    first, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    for _ in range(times):
        run()
    end.record()
    torch.cuda.synchronize()
    return first.elapsed_time(end) / times


def measure_bandwidth(device: str) -> float:
    """Measure how many GB a second a copy on the device reads and writes together."""
    n = 1 << (30 if device.startswith("cuda") else 24)
    source = torch.zeros(n, dtype=torch.uint8, device=device)
    copy = torch.empty_like(source)
    return 2 * n / measure_ms(lambda: copy.copy_(source), device) / 1e6


def time_forwards(name: str, nets: Networks, gb_s: float, has_time: Callable[[], bool]) -> Iterator[Row]:
    """Yield the ms of a pass by batch, window and context, and its share of bandwidth `gb_s`, while there is time."""
    L = nets.config.grid**2
    cuda = nets.device.startswith("cuda")
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    batches = (1, 8) if cuda else (1, 2)
    for batch in batches[:1] if nets.fast else batches:  # one batch only if compiled: each shape takes half a minute
        model = nets.model(batch)
        for window in (1, 16, 64) if cuda else (1, 4):
            for context in (L // 2, L - 1 - window):
                if not has_time():
                    return
                positions = torch.arange(context, context + window, device=nets.device).expand(batch, -1)
                tokens = torch.zeros_like(positions)
                ask = partial(model.network.logits, tokens.repeat(2, 1), positions.repeat(2, 1))
                ms = measure_ms(ask, nets.device)
                n_bytes = nets.count_bytes(batch, nets.config.prefix + L)  # a static cache is read whole
                row = {"network": name, "compiled": nets.fast, "batch": batch, "window": window, "context": context}
                yield row | {
                    "kept": 2 * nets.config.layers * nets.config.dim,  # numbers that a slot of the cache holds
                    "ms": ms,
                    "GB": n_bytes / 1e9,
                    "share of bandwidth": n_bytes / 1e6 / ms / gb_s,
                    "peak GB": read_peak_memory(cuda),
                }


def read_peak_memory(cuda: bool) -> float:
    """Read the most GB that were allocated on the GPU; 0 on a CPU."""
    return torch.cuda.max_memory_allocated() / 1e9 if cuda else 0.0


def time_passes(steps: Iterator[Step], device: str, count: int) -> tuple[float, float]:
    """Time `count` passes of a decoder after its first two: ms a pass, and the host's waits for CUDA in each."""
    for _ in range(2):
        next(steps)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if device.startswith("cuda"):
            torch.cuda.set_sync_debug_mode("warn")
        start = now(torch.device(device))
        passes = 0
        for passes, _ in zip(range(1, count + 1), steps, strict=False):  # noqa: B007
            pass
        if device.startswith("cuda"):
            torch.cuda.set_sync_debug_mode("default")
        seconds = now(torch.device(device)) - start
    waits = sum("synchroniz" in str(w.message) for w in caught)
    return 1000 * seconds / max(passes, 1), waits / max(passes, 1)


def time_decoders(name: str, nets: Networks, has_time: Callable[[], bool]) -> Iterator[Row]:
    """Yield the ms of a pass of each decoder on one random image, and the host's waits in it, while there is time."""
    from importlib import import_module

    for method in COMPILED_METHODS if nets.fast else methods("discrete"):
        if not has_time():
            return
        decoder = getattr(import_module(f"parity_decoders.discrete.{method}"), method)
        chosen = options("discrete", method, {})
        if not nets.device.startswith("cuda"):
            chosen = cap_small("discrete", method, chosen)
        model = nets.model(1, needs("discrete", method))
        noise = batch_noise(0, ["0"], nets.device)
        steps = decoder(model, torch.zeros_like(noise.keys), noise=noise, **chosen)
        ms, waits = time_passes(steps, nets.device, 20 if nets.device.startswith("cuda") else 2)
        yield {"network": name, "compiled": nets.fast, "method": method, "ms a pass": ms, "host reads a pass": waits}


def time_other_kinds(cuda: bool, device: str, has_time: Callable[[], bool]) -> Iterator[Row]:
    """Yield the ms of a pass of network and head of continuous models, while there is time, and of XLNet's pass."""
    from parity_decoders.protocols.continuous import make_path_noise

    from parity.models.anysubset.xlnet import CachedXLNet, build

    dtype = torch.float32
    noise = batch_noise(0, ["0"], device)
    for name, config in (CONTINUOUS if cuda else SMALL_CONTINUOUS).items():
        if not has_time():
            return
        model = make_random_continuous(config, device, dtype, 1, 100 if cuda else 3)
        order = torch.arange(model.length, device=device)[None]
        tokens = torch.zeros(1, model.length, model.dim, device=device, dtype=dtype)
        rank = torch.full((1, 1), model.length // 2, device=device)
        with torch.inference_mode():
            condition = model.conditions(tokens, order, rank, rank)
            path = make_path_noise(noise, "sample", rank, model.steps, model.dim)
            network = measure_ms(partial(model.conditions, tokens, order, rank, rank), device)
            head = measure_ms(partial(model.distribution, condition, path), device, 3)
        yield {"network": name, "ms network": network, "ms head": head}
    for name, sizes in (TEXT if cuda else SMALL_TEXT).items():
        net = make_random_network(lambda sizes=sizes: build(sizes), device, dtype)
        model = CachedXLNet(dict(net.state_dict()), sizes, 0)
        N = 512 if cuda else 16
        order = torch.arange(N, device=device)[None]
        rank = torch.full((1, 1), N - 1, device=device)
        prompt_length = torch.ones(1, dtype=torch.int64, device=device)
        ask = partial(model.probs, torch.ones_like(order), order, prompt_length, rank, rank)
        yield {"network": name, "ms network": measure_ms(ask, device)}


# The seconds that an image takes according to papers, and on which device.
PAPERS = """Seconds an image of the paper of SJD, plain and by SJD, on an A100 and an RTX 4090: Lumina-mGPT 768 87.23
and 42.73, 100.69 and 47.52; Anole 512, by SJD with a spatial prior, 48.96 and 26.18, 48.24 and 25.12.
"""


def format_table(rows: list[dict[str, Any]]) -> str:
    """Format rows as a Markdown table with the keys of all."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    lines = [names, ["---"] * len(names), *([format_value(row.get(name, "")) for name in names] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def format_value(value: Any) -> str:
    """Write a cell: "not known" for None, floats with three digits."""
    if value is None:
        return "not known"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def format_runs(runs: list[dict[str, Any]]) -> str:
    """Format the results of runs as sections of the page docs/results/gpu.md, which says first if no GPU was
    measured."""
    head = "\n## Passes that are not captured\n\nBy `python benchmarks/gpu_passes.py`"
    head += " on 2026-11-25 and 2026-11-26, at commits before a6f45a82.\n\n"
    if not any(run["measured"] for run in runs):
        head += (
            "**Not measured**: there was no GPU. The command ran its small networks and options on a CPU, to show"
            " that it runs; the figures say nothing about any GPU.\n\n"
        )
    head += (
        "The host's launches take most of their time, so they differ more by chance than by tokens: all are in"
        "\ndocs/figures/gpu-passes.json and gpu-compiled.json.\n"
    )
    parts = [f"\n{format_run(run)}" for run in runs if run["others"] or not run["measured"]]
    return head + "".join(parts) + f"\n## What papers print\n\n{PAPERS}"


def format_run(run: dict[str, Any]) -> str:
    """Format the conditions of a run and a section for each part that has results."""
    conditions = run["how"]
    versions = conditions["versions"]
    text = f"{conditions['device_name']}, torch {versions['torch']}, {conditions['dtype'].removeprefix('torch.')}"
    text += ".\n"
    if run["left out"]:
        text += f"Left out: {'; '.join(run['left out'])}.\n"
    if not run["measured"]:
        return text
    return f"{text}\n### Continuous models and text, batch 1\n\n{format_table(run['others'])}"


@contextmanager
def leave_out_what_does_not_fit(name: str, left_out: list[str]) -> Iterator[None]:
    """As a context manager, add a network's name to `left_out` if memory runs out inside; raise other errors."""
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        left_out.append(f"{name}: memory is too little")
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def main() -> None:
    """Measure as long as --seconds last, writing --out after each part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=540.0, help="no part begins later than this")
    parser.add_argument("--parts", nargs="+", default=PARTS, choices=PARTS)
    add_arguments(parser, "device", "threads", "out?")
    parser.set_defaults(device="cuda" if torch.cuda.is_available() else "cpu", out=Path("gpu.json"))
    a = parser.parse_args()
    pin_threads(a.threads)
    cuda = a.device.startswith("cuda")
    start = time.monotonic()
    check(a.device, "bfloat16" if cuda else "float32")
    dtype = torch.bfloat16 if cuda else torch.float32

    def has_time() -> bool:
        """Return whether 90 % of --seconds have not passed yet."""
        return time.monotonic() - start < 0.9 * a.seconds

    results: dict[str, Any] = {"how": provenance(a.device, str(dtype), a.threads), "measured": cuda, "left out": []}
    results |= {"forwards": [], "decoders": [], "others": []}
    results["bandwidth GB/s"] = measure_bandwidth(a.device)

    def save() -> None:
        """Write all results so far to --out, in case the run is stopped."""
        a.out.write_text(json.dumps(results, indent=1))

    def time_networks(networks: dict[str, LlamaGenConfig], fast: bool) -> None:
        """Time forwards and decoders on networks, compiled if `fast`, and write each as it ends."""
        for name, config in networks.items():
            with leave_out_what_does_not_fit(name, results["left out"]):
                nets = Networks(config, a.device, dtype, fast)
                results["forwards"] += time_forwards(name, nets, results["bandwidth GB/s"], has_time)
                results["decoders"] += time_decoders(name, nets, has_time)
            save()

    if "others" in a.parts:
        results["others"] += time_other_kinds(cuda, a.device, has_time)
        save()
    if "passes" in a.parts:
        time_networks(DISCRETE if cuda else SMALL_DISCRETE, False)
    if "compiled" in a.parts and cuda:
        time_networks({name: DISCRETE[name] for name in COMPILED_NETWORKS}, True)
    if not has_time():
        results["left out"].append(f"what would have begun after {0.9 * a.seconds:.0f} seconds")
    save()
    counts = f"{len(results['forwards'])} forwards, {len(results['decoders'])} decoders"
    print(f"{a.out}: {counts}, {time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    run_command(main)
