"""What the equality layers cost: the exact layer at a million sequences, a Frechet distance of 5,000 x 2,048 features.

python benchmarks/equality.py [--n 1000000] [--only mtj] [--threads 1]
"""

import importlib
import statistics
import time

import numpy as np
import torch
from common import make_spec, parse_flags

from parity.equality import exact
from parity.equality.targets.discrete import targets
from parity.metrics import fid

VARIANTS = ["ar", "jacobi: {window: 3}", "jacobi: {window: 3, coupling: shared}"]
INITS = ("random", "repeat_left", "repeat_above", "sample_left", "sample_above")
VARIANTS += [f"sjd: {{window: 3, init: {init}}}" for init in INITS]
VARIANTS += [
    f"sjd_coupled: {{window: 3, coupling: {coupling}, warm: {warm}}}"
    for coupling in ("gumbel", "maximal")
    for warm in ("false", "true")
]
VARIANTS += [
    "sjd_pac: {window: 4, init: random, warm: false}",
    "sjd_pac: {window: 4, init: sample_above, warm: true}",
    "spec: {gamma: 2}",
    "eagle: {total: 6, depth: 2, top_k: 2}",
    "eagle: {total: 6, depth: 2, top_k: 2, rank: race}",
    "lantern: {total: 6, depth: 2, top_k: 2, delta: 0.0}",
    "lantern_pp: {breadth: 3, depth: 2, relax: 0.0}",
    "mtj: {window: 3}",
    "gsd: {window: 3, group: 1}",
    "gsd: {window: 3, group: 2, resample: group}",
]


def time_distance(images: int, dims: int) -> float:
    """Time a Frechet distance of random features, its reference computed before: the median of three, in seconds."""
    rng = np.random.default_rng(0)
    seconds = []
    real, generated = (rng.standard_normal((images, dims)) * (1 + np.arange(dims)) ** -0.5 for _ in range(2))
    half = fid.reference_half(real)
    for _ in range(3):
        start = time.perf_counter()
        fid.frechet(generated, half)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def main() -> None:
    """Time the exact layer for each variant, or only for the method --only, and a Frechet distance."""
    a = parse_flags(__doc__, only="", n=1_000_000, images=5000, dims=2048)
    torch.set_num_threads(1)  # the exact layer runs --threads threads of its own
    target = next(t for t in targets() if t.name == "random-0 3x5")
    print(f"exact layer, one (3, 5) model, n = {a.n:,}: seconds, sequences per second, bound on TV, smallest p")
    for variant in VARIANTS:
        spec = make_spec("discrete", variant, 0)
        if a.only not in ("", spec["method"]):
            continue
        decoder = getattr(importlib.import_module(f"parity_decoders.discrete.{spec['method']}"), spec["method"])
        start = time.perf_counter()
        rows = exact.exact(decoder, [target], spec["options"], n=a.n, threads=a.threads)
        seconds = time.perf_counter() - start
        bound = next(r["effect"] for r in rows if r["test"] == "TV certificate")
        p = min(r["p_value"] for r in rows if r["decides"] and r["p_value"] is not None)
        cost = f"{seconds:5.1f} s {a.n / seconds:9,.0f}/s"
        print(f"{variant:60s} {cost}  TV <= {bound:.5f}  p >= {p:.3f}", flush=True)
    distance_seconds = time_distance(a.images, a.dims)
    print(f"Frechet distance, {a.images:,} x {a.dims:,} features, reference half cached: {distance_seconds:.2f} s")


if __name__ == "__main__":
    main()
