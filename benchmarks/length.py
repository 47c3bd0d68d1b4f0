"""Real length: what lossless decoders of images do over as many positions as published models have.

    python benchmarks/length.py networks --keep length-networks   tokens against plain decoding's, on random networks
    python benchmarks/length.py laws --keep length-laws           the long layer, on models of known distribution
    python benchmarks/length.py growth --keep length-growth       what grows with the length, and how fast

`networks` decodes with tiny networks in the published layouts, of random weights and images of the published sizes.
Methods that share plain decoding's noise must return its tokens: in float64 all, in float32 up to a tie, where two
tokens win a draw by less than rounding. Of the others it says that they end, obey the grammar, and in how many passes.
The draft model is the target with disturbed weights, so that drafts are accepted and rejected; heads and drafter are
random, so that most of theirs are rejected.
"""

import argparse
import copy
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import yaml
from docs_figures import keep_benchmark
from parity_decoders.distribution import TokenSampling
from parity_decoders.engine import Sampled
from parity_decoders.noise import counted_noise
from torch import Tensor

from parity.base.errors import ParityError
from parity.decode.discrete import Decoded, record
from parity.equality.exact import exact
from parity.equality.targets import discrete as targets
from parity.experiment.options import claim, is_coupled, measure_reach, needs, options
from parity.metrics.likelihood import teacher_forced_logits
from parity.models import fetch
from parity.models.discrete import llama, llamagen
from parity.models.discrete.load import Loaded, load, load_encoder
from parity.report.verdicts import find_shift
from parity.stand_ins import make_entry
from parity.stand_ins.discrete import sharpen

VARIANTS = [  # every lossless form of every method, at the options of workflow/experiments/full.yaml
    "ar: {}",
    "jacobi: {window: 32}",
    "jacobi: {window: 32, coupling: shared}",
    "sjd: {window: 32, init: sample_above}",
    "sjd_pp: {window: 32, init: sample_above, store: drawn}",
    "sjd_sv: {window: 32, init: sample_above, verify: block}",
    "sjd_vp: {window: 16, init: sample_above}",
    "sjd_coupled: {window: 32}",
    "sjd_coupled: {window: 32, coupling: maximal}",
    "sjd_pac: {window: 22, init: sample_above, warm: true}",
    "mtj: {window: 16, branches: 16}",
    "mtj_draft: {window: 16, branches: 16, rounds: 1}",
    "mtj_heads: {window: 16, branches: 16}",
    "spec: {gamma: 2}",
    "eagle: {total: 31, depth: 4, top_k: 6}",
    "pjd: {window: 24, ahead: 4, init: sample_above, commit: raster}",
]
# By layout: the stand-in and its arguments, the size of the image, and what has such images
LAYOUTS: dict[str, tuple[str, dict[str, int], dict[str, int], str]] = {
    "janus": ("janus", {"side": 24}, {"rows": 24, "columns": 24}, "Janus-Pro, 384 pixels"),
    "llamagen": ("llamagen", {"side": 32}, {}, "LlamaGen, 512 pixels"),
    "lumina": ("chameleon", {"side": 48}, {"rows": 48, "columns": 48, "line": 1}, "Lumina-mGPT, 768 pixels"),
    "emu3": ("emu3", {}, {"rows": 64, "columns": 64}, "Emu3, 512 pixels"),
}
LENGTHS = (576, 1024, 2353, 4096)
ROWS = 2  # images; --rows
DTYPES = ["float64", "float32"]  # --dtypes
CAPTIONS = ["a red ball", "two cats on a mat, one of them asleep"]
SAMPLING = TokenSampling(guidance=2.0, temperature=0.5, top_k=4)
DISTURBED = 0.05  # a draft model's weights differ from the target's by so much of their deviation
TIE = 1e-5  # two tokens whose weights in a draw differ by less, relatively, are a tie in float32
SEED = 5


def parse_variant(text: str) -> tuple[str, dict[str, Any]]:
    """Parse a method with options; return its name and all its options. Raises ParityError unless it is lossless."""
    ((method, chosen),) = yaml.safe_load(text).items()
    chosen = options("discrete", method, chosen)
    if claim("discrete", method, chosen) != "lossless":
        raise ParityError(f"{text}: claims to be lossy; allowed: lossless methods")
    return method, chosen


def import_decoder(method: str) -> Any:
    """Import the function of a method."""
    return getattr(__import__(f"parity_decoders.discrete.{method}", fromlist=[method]), method)


class Network:
    """A random network in a published layout, with every speculator, for the CAPTIONS."""

    def __init__(self, layout: str, folder: Path):
        """Write the network's files to `folder`, as their authors do, and load them from there."""
        stand_in, sizes, image, _ = LAYOUTS[layout]
        entry: dict[str, Any] = {"family": stand_in, "source": "files", **make_entry(stand_in, folder, **sizes)}
        entry["network"] = {**entry.get("network", {}), **image}
        self.manifest = fetch.make_manifest("discrete", layout, entry, folder / "read")
        self.inputs = load_encoder(self.manifest)(CAPTIONS[:ROWS])

    def load(self, dtype: torch.dtype) -> None:
        """Load target and speculators in a dtype."""
        loaded: Loaded = load(self.manifest, dtype=dtype)
        net: Any = loaded.nets["net"]
        make = llamagen.make_speculator if self.manifest["family"] == "llamagen" else llama.make_speculator
        speculators: dict[str, Any] = {"draft": disturb(net), "heads": make("heads", net.config)}
        speculators["drafter"] = make("drafter", net.config)
        for name, seed in (("heads", 3), ("drafter", 4)):
            speculators[name] = sharpen(speculators[name].to(dtype), seed)
        self.loaded, self.speculators = loaded, speculators

    def make_model(self, needs: str) -> Sampled:
        """Make the model of all captions, which has read them, with the speculator `needs` ("": none)."""
        family: Any = self.loaded.family
        nets = self.loaded.nets | {name: net for name, net in self.speculators.items() if name == needs}
        target, speculators = family.condition(nets, self.inputs, SAMPLING.guidance != 1)
        return Sampled(target, SAMPLING, speculators)


def disturb(net: Any) -> Any:
    """Copy a network and disturb its weights."""
    copied = copy.deepcopy(net)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for weight in copied.parameters():
            noise = torch.randn(weight.shape, generator=generator, dtype=torch.float32).to(weight.dtype)
            weight += DISTURBED * weight.std(correction=0) * noise
    return copied


def count_bytes(model: Any) -> int:
    """Count the bytes of keys, values and features that a model and its speculators hold."""
    total = 0
    for network in (model.network, *(model.speculators or {}).values()):
        layers = network.cache.layers if hasattr(network, "cache") else []
        stored = [x for layer in layers for x in (layer.keys, layer.values)]
        stored += [network.features] if hasattr(network, "features") else []
        total += sum(x.untyped_storage().nbytes() for x in stored)
    return total


def decode(network: Network, method: str, chosen: dict[str, Any], dtype: torch.dtype) -> tuple[Decoded, float, int]:
    """Decode all captions by a method; return what was decoded, CPU-seconds, and bytes of the caches afterwards."""
    probs = network.make_model(needs("discrete", method))
    start = torch.zeros(ROWS, dtype=torch.int64)
    noise = counted_noise(SEED, range(ROWS), dtype)
    began = time.process_time()
    decoded = record(probs, start, import_decoder(method)(probs, start, noise=noise, **chosen))
    return decoded, time.process_time() - began, count_bytes(probs)


def measure_gap(network: Network, tokens: Tensor, row: int, position: int, dtype: torch.dtype) -> float:
    """Measure by how much, relatively, the winner of plain decoding's draw at a row's position leads the second, given
    tokens [B, L] before it."""
    probs = network.make_model("")
    feed = torch.cat([torch.zeros(ROWS, 1, dtype=torch.int64), tokens[:, :position]], 1)
    places = torch.arange(-1, position).expand(ROWS, -1)
    p = probs.logits(feed, places)[row, -1].softmax(-1)
    e = counted_noise(SEED, range(ROWS), dtype).exponential("sample", torch.full((ROWS, 1), position), probs.vocab)
    first, second = (p / e[row, 0]).topk(2).values.tolist()
    return (first - second) / first


def compare(network: Network, tokens: Tensor, plain: Tensor, dtype: torch.dtype) -> dict[str, Any]:
    """Compare tokens with plain decoding's, both [B, L]: how many rows differ, and of these the largest gap at the
    first token that differs. Raises ParityError for a difference in float64, or one that is no tie."""
    gaps = []
    for row in (tokens != plain).any(1).nonzero()[:, 0].tolist():
        position = int((tokens[row] != plain[row]).nonzero()[0, 0])
        gap = measure_gap(network, plain, row, position, dtype)
        print(f"  row {row}, position {position}: the draw's first two differ by {gap:.1e}", flush=True)
        if dtype == torch.float64 or gap > TIE:
            raise ParityError(f"row {row}, position {position}: another token, and no tie ({gap:.1e})")
        gaps.append(gap)
    return {"differ": len(gaps), "gap": max(gaps) if gaps else None}


def measure_networks(only: list[str]) -> Iterator[dict[str, Any]]:
    """Decode with each layout by each variant in float32, and by those that must return plain decoding's tokens in
    float64 too; yield a row each."""
    for layout in only or LAYOUTS:
        with tempfile.TemporaryDirectory() as folder:
            network = Network(layout, Path(folder))
            for name in DTYPES:
                dtype = getattr(torch, name)
                network.load(dtype)
                plain = None
                for text in VARIANTS:
                    method, chosen = parse_variant(text)
                    coupled = is_coupled("discrete", method, chosen)
                    if dtype == torch.float64 and plain is not None and not coupled:
                        continue
                    decoded, seconds, held = decode(network, method, chosen, dtype)
                    plain = decoded.tokens if plain is None else plain
                    result: dict[str, Any] = {"layout": layout, "model": LAYOUTS[layout][3]}
                    result |= {"positions": decoded.tokens.shape[1], "dtype": name}
                    result |= {"variant": text, "coupled": coupled, "rows": ROWS}
                    result |= compare(network, decoded.tokens, plain, dtype) if coupled else {}
                    result |= {"passes": float(decoded.nfe.double().mean()), "batch_passes": decoded.passes}
                    result |= {"cpu_seconds": seconds, "cache": held}
                    yield result


def measure_probs(only: list[str]) -> Iterator[dict[str, Any]]:
    """Test each variant by the long layer at each of LENGTHS, on a chain of order two and on the counter, in which
    nothing is ever forgotten; yield a row each."""
    for length in map(int, only) if only else LENGTHS:
        for text in VARIANTS:
            method, chosen = parse_variant(text)
            reach = measure_reach("discrete", method, chosen) | {"positions": length // 2}
            models = [
                t
                for t in targets.long_targets(reach, 65_536, longest=length)
                if t.name.startswith(("order", "counter"))
            ]
            began = time.process_time()
            rows = exact(
                import_decoder(method), models, chosen, family="all", layer="long", method=method, n=65_536, draws=0
            )
            seconds = time.process_time() - began
            first = [r for r in rows if r["repeat"] == 0]
            smallest = min(r["p_holm"] for r in first if r["p_holm"] is not None)
            label = f"{method}{' maximal' * (chosen.get('coupling') == 'maximal')}, {length}"
            yield {
                "label": label, "positions": length, "variant": text,
                "models": " and ".join(dict.fromkeys(r["model"] for r in rows)),
                "sequences": models[0].n, "tests": sum(r["p_value"] is not None for r in first),
                "p": smallest, "shift": find_shift(first), "rejected": any(r["repeat"] == 1 for r in rows),
                "cpu_seconds": seconds,
            }  # fmt: skip


def print_and_keep(rows: Iterator[dict[str, Any]], name: str) -> None:
    """Print rows as they are measured, and keep them in docs/figures if `name` is not ""."""
    kept = []
    try:
        for row in rows:
            print({k: round(v, 6) if isinstance(v, float) else v for k, v in row.items()}, flush=True)
            kept.append(row)
    finally:  # also what was measured before an interruption
        if name and kept:
            keep_benchmark(name, kept)


def measure_growth(only: list[str]) -> Iterator[dict[str, Any]]:
    """Measure what the distributions of an image and the tests of a long model take at three lengths, each in a process
    of its own: CPU-seconds, and MiB beyond those of the libraries; yield a row each."""
    for length in map(int, only) if only else (256, 1024, 4096):
        for name in MEASURED:
            command = [sys.executable, __file__, "one", "--only", name, str(length)]
            printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            label = f"{name}, {length}"
            yield {"label": label, "part": name, "positions": length, **json.loads(printed.splitlines()[-1])}


def make_probs(length: int) -> Callable[[], object]:
    """Make what computes the distributions of two images of this many positions by a tiny network, with guidance."""
    LAYOUTS["square"] = ("llamagen", {"side": round(length**0.5)}, {}, "")
    with tempfile.TemporaryDirectory() as folder:
        network = Network("square", Path(folder))
        network.load(torch.float32)
    probs = network.make_model("")
    return lambda: teacher_forced_logits(probs, torch.zeros(ROWS, length, dtype=torch.int64))


def make_tests(length: int) -> Callable[[], object]:
    """Make what tests the tokens of a hundred rows of a long model of this many positions."""
    models = targets.long_targets({"positions": 32, "lag": 0, "steps": 0}, 65_536, longest=length)
    far = next(t for t in models if t.name.startswith("far"))
    drawn = far.draw(import_decoder("ar"), 0, 0, {})
    return lambda: far.make_rows(drawn, "long", 0, 0)


MEASURED = {"laws": make_probs, "tests": make_tests}


def measure_one(only: list[str]) -> Iterator[dict[str, Any]]:
    """Measure one part at one length in this process, after everything is loaded."""
    name, length = only
    run = MEASURED[name](int(length))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.process_time()
    run()
    seconds = time.process_time() - began
    mib = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    print("\n" + json.dumps({"cpu_seconds": seconds, "mib": mib}))
    yield from ()


PARTS: dict[str, Callable[[list[str]], Iterator[dict[str, Any]]]] = {
    "networks": measure_networks,
    "laws": measure_probs,
    "growth": measure_growth,
    "one": measure_one,
}


def main() -> None:
    """Run a part of the study; print its rows, and keep them if --keep names them."""
    global ROWS
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--only", nargs="+", default=[], help="layouts, or lengths")
    parser.add_argument("--methods", nargs="+", default=[], help="of networks and distributions; all, if not given")
    parser.add_argument("--rows", type=int, default=ROWS, choices=(1, 2), help="images of networks")
    parser.add_argument("--dtypes", nargs="+", default=DTYPES, choices=DTYPES, help="of networks")
    parser.add_argument("--keep", default="", help="name of the table in docs/figures")
    a = parser.parse_args()
    torch.set_num_threads(1)
    ROWS, DTYPES[:] = a.rows, list(a.dtypes)
    VARIANTS[:] = [text for text in VARIANTS if not a.methods or text.partition(":")[0] in a.methods]
    print_and_keep(PARTS[a.part](a.only), a.keep)


if __name__ == "__main__":
    main()
