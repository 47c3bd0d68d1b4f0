"""What decoding costs on the GPU of this machine: one command of at most 9 minutes, no download.

    python benchmarks/gpu.py [--device cuda] [--seconds 540] [--out gpu.json] [--page docs/results/gpu.md]

In turn, as long as the seconds last: the copy bandwidth; tokens of every discrete decoder against the CPU's, in float64
on the embedded model; what `parity tune` measures there; a forward of random networks of published sizes over batch x
window x context; every decoder on them for some passes. On a CPU the same runs small networks, and the page says that
nothing was measured.

The networks have the sizes of the released code's constructors and random weights, for the time of a pass depends on
shapes alone. Left out: Emu3, whose attention has fewer keys than queries, which `models.discrete.llamagen` has not.
"""

import argparse
import json
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from parity_decoders.sampling import Sampled, TokenSampling
from parity_decoders.steps import Step
from torch import Tensor, nn

from parity.base.command import add_arguments, pin_threads, provenance, run_command
from parity.base.devices import check, is_out_of_memory
from parity.base.row_noise import batch_noise
from parity.decode import loop
from parity.decode.discrete import record
from parity.decode.output_buffer import now
from parity.experiment import checks, tuned
from parity.experiment.options import cap_small, declaration, methods, needs, options
from parity.models import fetch
from parity.models.compiling import compile_pass
from parity.models.continuous import harmon, mar, xar
from parity.models.continuous.diffusion import HeadSampling
from parity.models.discrete.cached import EagleDrafter, logits_pass
from parity.models.discrete.llamagen import FeatureDrafter, LlamaGen, LlamaGenConfig, Transformer
from parity.tune.__main__ import tables
from parity.tune.bench import Prompted

MAR_H: dict[str, Any] = {"width": 1280, "encoder": 20, "decoder": 20, "heads": 16, "head_width": 1536, "head_depth": 12}
QWEN: dict[str, Any] = {"hidden": 1536, "intermediate": 8960, "layers": 28, "attention_heads": 12, "vocab": 151936}
# name to sizes: LlamaGenConfig, a continuous family's Config, XLNet's as transformers saves them
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
# what a CPU runs, so that the command is tested
SMALL_DISCRETE = {"small": LlamaGenConfig(256, 64, 2, 2, grid=4, prefix=4, caption_dim=8, multiple_of=16)}
SMALL_CONTINUOUS = {
    "small MAR": mar.MARConfig(10, 4, 4, 64, 2, 2, 4, 4, 64, 2),
    "small xAR": xar.XARConfig(10, 4, 2, 4, 64, 2, 2, 4),
}
SMALL_TEXT = {"small XLNet": {"d_model": 64, "n_layer": 2, "n_head": 2, "d_inner": 128, "vocab_size": 256}}


def random_network(build: Any, device: str, dtype: torch.dtype) -> Any:
    """A network in its place and dtype, its weights random; buffers are those it computes."""
    with torch.device(device):
        before = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            net = build()
        finally:
            torch.set_default_dtype(before)
    for p in net.parameters():
        nn.init.normal_(p, std=0.02)
    for buffer in net.buffers():
        if buffer.is_floating_point():
            buffer.data = buffer.data.float()
    return net.eval()


@dataclass
class Networks:
    """A random transformer of a size with its drafter and draft model, and batches of it to decode."""

    config: LlamaGenConfig
    device: str
    dtype: torch.dtype
    fast: bool = False

    def __post_init__(self) -> None:
        self.net = random_network(lambda: Transformer(self.config), self.device, self.dtype)
        self.drafter = random_network(lambda: FeatureDrafter(self.config), self.device, self.dtype)
        self.codes = torch.randn(self.config.vocab, 8, device=self.device)
        self.run = compile_pass(logits_pass, torch.device(self.device).type) if self.fast else logits_pass

    @torch.inference_mode()
    def model(self, batch: int, needs: str = "") -> Sampled:
        """Of `batch` prompts, guided; the draft model is the network itself, whose drafts cost what its passes do."""
        c = self.config
        condition = torch.randn(batch, c.prefix, c.caption_dim, device=self.device, dtype=self.dtype)
        valid = torch.ones(batch, c.prefix, dtype=torch.bool, device=self.device)
        model = LlamaGen(self.net, condition, valid, True, run=self.run)
        model.codebook = model.raw_codebook = self.codes
        if needs == "drafter":
            model.drafter = EagleDrafter(self.drafter, model)
        if needs == "draft":
            model.draft = LlamaGen(self.net, condition, valid, True, returns=True, run=self.run)
        return Sampled(model, TokenSampling(guidance=3.0, top_k=min(1000, c.vocab)))

    def bytes(self, batch: int, context: int) -> int:
        """Read in a pass: the weights once, keys and values of both guidance rows of every prompt."""
        weights = sum(p.numel() for p in (*self.net.layers.parameters(), *self.net.output.parameters()))
        return (weights + 2 * batch * context * 2 * self.config.dim * self.config.layers) * self.dtype.itemsize


def random_continuous(config: Any, device: str, dtype: torch.dtype, batch: int, steps: int) -> Any:
    """A random MAR, xAR or Harmon of a size as a model of `batch` images, guided."""
    family: Any = next(f for f in (mar, xar, harmon) if isinstance(config, f.Config))
    net = random_network(lambda: family.Network(config), device, dtype)
    prompts = torch.zeros(batch, dtype=torch.int64, device=device)
    labels: Tensor = prompts[:, None].expand(-1, 8) if family is harmon else prompts
    return family.Model(net, labels, HeadSampling(steps, guidance=3.0))


Row = dict[str, Any]
TOKENS = {"guidance": 1.8, "temperature": 1.0, "top_k": 0, "top_p": 1.0}
CAPTIONS = ["a small red circle", "two large squares", "a green star above a blue ring"]


def milliseconds(run: Callable[[], Any], device: str, times: int = 10) -> float:
    """Of one `run`, the mean of some behind two that warm up; on CUDA by its events."""
    for _ in range(2):
        run()
    if not device.startswith("cuda"):
        begin = time.perf_counter()
        for _ in range(times):
            run()
        return 1000 * (time.perf_counter() - begin) / times
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    for _ in range(times):
        run()
    last.record()
    torch.cuda.synchronize()
    return first.elapsed_time(last) / times


def bandwidth(device: str) -> float:
    """GB/s read and written by a copy."""
    n = 1 << (30 if device.startswith("cuda") else 24)
    a = torch.zeros(n, dtype=torch.uint8, device=device)
    b = torch.empty_like(a)
    return 2 * n / milliseconds(lambda: b.copy_(a), device) / 1e6


def same_tokens(device: str) -> list[Row]:
    """Of every discrete decoder: passes over the embedded model in float64, and how many tokens are not the CPU's. The
    last caption takes the place of one that is done, where the method refills. On a CPU there is nothing to compare:
    two captions, small options, once."""
    import numpy as np

    from parity.inputs.prompts import encode

    cpu, texts = device == "cpu", CAPTIONS[: 2 if device == "cpu" else 3]
    model = {"family": "llamagen", "grid": 8 if cpu else 16}
    manifest = fetch.make_manifest("discrete", "scenes", model, Path("results"))
    rows = {"ids": np.array(texts), "captions": np.array(texts), **encode(manifest, texts)}
    found = []
    for method in methods("discrete"):
        if needs("discrete", method) not in manifest["files"] and needs("discrete", method):
            continue  # the small grid has no companion
        given = options("discrete", method, {})
        given = cap_small("discrete", method, given) if cpu else given
        spec = {"method": method, "options": given, "sampling": TOKENS, "seed": 0}
        spec["dtype"] = "float64"
        runs = []
        for where in ["cpu"] if cpu else ["cpu", device]:
            at_once = len(texts) - (where == device and declaration("discrete", method).REFILLS)
            noise = batch_noise(0, texts[:at_once], where, torch.float64)
            loaded = loop.load("discrete", manifest, spec, where)
            runs.append(record(*loop.start_decoding("discrete", loaded, spec)(rows, noise)))
        other: Any = "not compared" if cpu else int((runs[0].tokens != runs[1].tokens.cpu()).sum())
        passes = int(runs[-1].nfe.max())
        share = passes / runs[-1].tokens.shape[1]
        found.append({"method": method, "passes": passes, "passes a token": share, "tokens that differ": other})
    return found


def fastest(cuda: bool) -> list[Row]:
    """What `parity tune` measures of the embedded model, at batches 1 and 32; on a CPU of the smaller one at 1."""
    raw = {"models": {"scenes": {"family": "llamagen", "grid": 16 if cuda else 8}}, "image": {"methods": {"ar": [{}]}}}
    config = checks.load({**raw, "compile": "auto" if cuda else "off"})
    (case,) = tuned.list_cases(config, "discrete")
    cases = [case._replace(batch=batch) for batch in ((1, 32) if cuda else (1,))]
    manifest = fetch.make_manifest("discrete", "scenes", raw["models"]["scenes"], Path("results"))
    until = time.time() + (90 if cuda else 1)
    return [
        {"batch": one.batch, **{name: "" if value is None else value for name, value in row.items()}}
        for one, _, rows in tables(Prompted(case, manifest, config), cases, until)
        for row in rows
    ]


def forwards(name: str, nets: Networks, gb_s: float, left: Callable[[], bool]) -> Iterator[Row]:
    """ms of a pass over batch x window x context, and its share of the measured bandwidth."""
    L, cuda = nets.config.grid**2, nets.device.startswith("cuda")
    for batch in (1, 8) if cuda else (1, 2):
        model = nets.model(batch)
        for window in (1, 16, 64) if cuda else (1, 4):
            for context in (L // 2, L - 1 - window):
                if not left():
                    return
                at = torch.arange(context, context + window, device=nets.device).expand(batch, -1)
                tokens = torch.zeros_like(at)
                ms = milliseconds(partial(model.model.logits, tokens.repeat(2, 1), at.repeat(2, 1)), nets.device)
                size = nets.bytes(batch, nets.config.prefix + L)  # the cache's length is what a static shape reads
                row = {"network": name, "compiled": nets.fast, "batch": batch, "window": window, "context": context}
                yield row | {
                    "kept": 2
                    * nets.config.layers
                    * nets.config.dim,  # numbers of the cache a place: which network it is
                    "ms": ms,
                    "GB": size / 1e9,
                    "share of bandwidth": size / 1e6 / ms / gb_s,
                    "peak GB": peak(cuda),
                }


def peak(cuda: bool) -> float:
    return torch.cuda.max_memory_allocated() / 1e9 if cuda else 0.0


def some_passes(steps: Iterator[Step], device: str, count: int) -> tuple[float, float]:
    """ms a pass of a decoder behind its first two, and how often the host waited for the device in each."""
    for _ in range(2):
        next(steps)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        if device.startswith("cuda"):
            torch.cuda.set_sync_debug_mode("warn")
        begin, made = now(torch.device(device)), 0
        for made, _ in zip(range(1, count + 1), steps, strict=False):  # noqa: B007
            pass
        if device.startswith("cuda"):
            torch.cuda.set_sync_debug_mode("default")
        spent = now(torch.device(device)) - begin
    waits = sum("synchroniz" in str(w.message) for w in said)
    return 1000 * spent / max(made, 1), waits / max(made, 1)


def decoders(name: str, nets: Networks, passes: dict[str, float], left: Callable[[], bool]) -> Iterator[Row]:
    """ms a pass and reads of the host of every decoder, and what an image would take at the embedded model's passes a
    token."""
    from importlib import import_module

    for method in methods("discrete"):
        if not left():
            return
        decode, given = import_module(f"parity_decoders.discrete.{method}"), options("discrete", method, {})
        if not nets.device.startswith("cuda"):
            given = cap_small("discrete", method, given)
        model, noise = nets.model(1, needs("discrete", method)), batch_noise(0, ["0"], nets.device)
        steps = getattr(decode, method)(model, torch.zeros_like(noise.keys), noise=noise, **given)
        ms, waits = some_passes(steps, nets.device, 20 if nets.device.startswith("cuda") else 2)
        row = {"network": name, "compiled": nets.fast, "method": method, "ms a pass": ms, "host reads a pass": waits}
        seconds = ms / 1000 * passes[method] * model.length if method in passes else None
        yield row | {"seconds an image, predicted": seconds}


def others(cuda: bool, device: str, dtype: torch.dtype, left: Callable[[], bool]) -> Iterator[Row]:
    """ms of a pass of network and head of continuous models, and of a pass of XLNet."""
    from parity_decoders.protocols.continuous import make_path_noise

    from parity.models.anysubset.xlnet import CachedXLNet, build

    noise = batch_noise(0, ["0"], device)
    for name, config in (CONTINUOUS if cuda else SMALL_CONTINUOUS).items():
        if not left():
            return
        model = random_continuous(config, device, dtype, 1, 100 if cuda else 3)
        order = torch.arange(model.length, device=device)[None]
        tokens = torch.zeros(1, model.length, model.dim, device=device, dtype=dtype)
        at = torch.full((1, 1), model.length // 2, device=device)
        with torch.inference_mode():
            condition = model.conditions(tokens, order, at, at)
            path = make_path_noise(noise, "sample", at, model.steps, model.dim)
            network = milliseconds(partial(model.conditions, tokens, order, at, at), device)
            head = milliseconds(partial(model.law, condition, path), device, 3)
        row = {"network": name, "ms network": network, "ms head": head}
        yield row | {"seconds an image, predicted": (network + head) * model.length / 1000}
    for name, given in (TEXT if cuda else SMALL_TEXT).items():
        net = random_network(lambda given=given: build(given), device, dtype)
        model, N = CachedXLNet(dict(net.state_dict()), given, 0), 512 if cuda else 16
        order, last = torch.arange(N, device=device)[None], torch.full((1, 1), N - 1, device=device)
        line, begin = torch.ones_like(order), torch.ones(1, dtype=torch.int64, device=device)
        ask = partial(model.laws, line, order, begin, last, last)
        yield {"network": name, "ms network": milliseconds(ask, device)}


# seconds an image that papers print, and on what (the seeds' tables)
PAPERS = """| paper | seconds an image |
|---|---|
| SJD, Lumina-mGPT 768, A100: plain / SJD | 87.23 / 42.73 |
| SJD, Lumina-mGPT 768, RTX 4090: plain / SJD | 100.69 / 47.52 |
| SJD, Anole 512, A100: plain / SJD with a spatial prior | 48.96 / 26.18 |
| SJD, Anole 512, RTX 4090: plain / SJD with a spatial prior | 48.24 / 25.12 |
"""


def table(rows: list[dict[str, Any]]) -> str:
    """A table of rows that have the same keys."""
    if not rows:
        return "none\n"
    names = list(rows[0])
    lines = [names, ["---"] * len(names), *([shown(row.get(name, "")) for name in names] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def shown(value: Any) -> str:
    if value is None:
        return "not known"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def page(found: dict[str, Any]) -> str:
    """Markdown of what the command wrote."""
    how, measured = found["how"], found["measured"]
    head = "# On a GPU\n\nWritten by `python benchmarks/gpu.py --page docs/results/gpu.md`, "
    head += "on a machine with a GPU in at most 9 minutes.\n\n"
    if not measured:
        head += (
            "**Not measured**: no GPU was at hand. The command ran its small networks and options on a CPU, to show"
            " that it runs; there is nothing to compare tokens with, and the figures say nothing about any GPU.\n\n"
        )
    head += f"{how['device_name']}, torch {how['versions']['torch']}, {how['dtype']};"
    head += f" a copy reads and writes {found['bandwidth GB/s']:.0f} GB/s.\n"
    head += "No network of the sizes of Emu3 (fewer keys than queries) and xAR-H (its depth is not printed) is here.\n"
    if found["left out"]:
        head += f"Left out: {'; '.join(found['left out'])}.\n"
    parts = {
        "Tokens against the CPU's, float64, embedded model 8x8": table(found["tokens"]),
        "The fastest lossless method, `parity tune`": table(found["tuned"]) if measured else "not measured\n",
        "A forward, both guidance rows": table(found["forwards"]) if measured else "not measured\n",
        "Every decoder, batch 1": table(found["decoders"]) if measured else "not measured\n",
        "Continuous models and text, batch 1": table(found["others"]) if measured else "not measured\n",
        "What papers print": PAPERS,
    }
    return head + "".join(f"\n## {title}\n\n{body}" for title, body in parts.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=540.0, help="no part begins later than this")
    add_arguments(parser, "device", "threads", "out?", "page?")
    parser.set_defaults(device="cuda" if torch.cuda.is_available() else "cpu", out=Path("gpu.json"))
    a = parser.parse_args()
    pin_threads(a.threads)
    cuda, begin = a.device.startswith("cuda"), time.monotonic()
    check(a.device, "bfloat16" if cuda else "float32")
    dtype = torch.bfloat16 if cuda else torch.float32

    def left() -> bool:
        return time.monotonic() - begin < 0.9 * a.seconds

    found: dict[str, Any] = {"how": provenance(a.device, str(dtype), a.threads), "measured": cuda, "left out": []}
    found["bandwidth GB/s"] = bandwidth(a.device)
    found["tokens"] = same_tokens(a.device)
    found |= {"tuned": fastest(cuda), "forwards": [], "decoders": [], "others": []}
    passes = {row["method"]: row["passes a token"] for row in found["tokens"]}
    for name, config in (DISCRETE if cuda else SMALL_DISCRETE).items():
        for fast in (True, False) if cuda else (False,):
            try:
                nets = Networks(config, a.device, dtype, fast)
                found["forwards"] += forwards(name, nets, found["bandwidth GB/s"], left)
                found["decoders"] += decoders(name, nets, passes, left)
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                found["left out"].append(f"{name}: memory is too little")
    found["others"] += others(cuda, a.device, dtype, left)
    if not left():
        found["left out"].append(f"what would have begun behind {0.9 * a.seconds:.0f} seconds")
    a.out.write_text(json.dumps(found, indent=1))
    if a.page:
        a.page.write_text(page(found))
    many = f"{len(found['forwards'])} forwards, {len(found['decoders'])} decoders"
    print(f"{a.out}: {many}, {time.monotonic() - begin:.0f} s")


if __name__ == "__main__":
    run_command(main)
