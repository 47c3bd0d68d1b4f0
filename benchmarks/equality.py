"""What the equality layers cost: the exact layer at a million sequences, and a Frechet distance of 5,000 x 2,048 features.

python benchmarks/equality.py [--threads 1]
"""

import argparse
import statistics
import time

import numpy as np
import torch

from parity.decoders.discrete.ar import ar
from parity.decoders.discrete.eagle import eagle
from parity.decoders.discrete.gsd import gsd
from parity.decoders.discrete.jacobi import jacobi
from parity.decoders.discrete.lantern import lantern
from parity.decoders.discrete.lantern_pp import lantern_pp
from parity.decoders.discrete.mtj import mtj
from parity.decoders.discrete.sjd import sjd
from parity.decoders.discrete.sjd_coupled import sjd_coupled
from parity.decoders.discrete.sjd_pac import sjd_pac
from parity.decoders.discrete.spec import spec
from parity.equality import exact
from parity.metrics import fid

DECODERS = [(ar, {}), (jacobi, {"window": 3}), (jacobi, {"window": 3, "coupling": "shared"})]
DECODERS += [
    (sjd, {"window": 3, "init": i}) for i in ("random", "repeat_left", "repeat_above", "sample_left", "sample_above")
]
DECODERS += [
    (sjd_coupled, {"window": 3, "coupling": c, "warm": w}) for c in ("gumbel", "maximal") for w in (False, True)
]
DECODERS += [(sjd_pac, {"window": 4, "init": i, "warm": w}) for i, w in (("random", False), ("sample_above", True))]
DECODERS += [
    (spec, {"gamma": 2}),
    (eagle, {"total": 6, "depth": 2, "top_k": 2}),
    (eagle, {"total": 6, "depth": 2, "top_k": 2, "rank": "race"}),
    (lantern, {"total": 6, "depth": 2, "top_k": 2, "delta": 0.0}),
    (lantern_pp, {"breadth": 3, "depth": 2, "relax": 0.0}),
    (mtj, {"window": 3}),
    (gsd, {"window": 3, "group": 1}),
    (gsd, {"window": 3, "group": 2, "resample": "group"}),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", default="", help="one decoder")
    a = parser.parse_args()
    torch.set_num_threads(1)
    target = next(t for t in exact.targets() if t.name == "random-0 3x5")
    print(
        "exact layer, one (3, 5) model, n = 1,000,000: seconds, sequences per second, bound on total variation, smallest p"
    )
    for decoder, options in [d for d in DECODERS if a.only in ("", d[0].__name__)]:
        begin = time.perf_counter()
        rows = exact.exact(decoder, options, n=1_000_000, models=[target], threads=a.threads)
        seconds = time.perf_counter() - begin
        bound = next(r["effect"] for r in rows if r["test"] == "TV certificate")
        p = min(r["p_value"] for r in rows if r["decides"] and r["p_value"] is not None)
        print(
            f"{decoder.__name__:11s} {options!s:50s} {seconds:5.1f} s {1e6 / seconds:9,.0f}/s  TV <= {bound:.5f}  p >= {p:.3f}",
            flush=True,
        )

    rng = np.random.default_rng(0)
    real, made = (rng.standard_normal((5000, 2048)) * (1 + np.arange(2048)) ** -0.5 for _ in range(2))
    half = fid.reference_half(real)
    seconds = []
    for _ in range(3):
        begin = time.perf_counter()
        fid.frechet(made, half)
        seconds.append(time.perf_counter() - begin)
    print(f"Frechet distance, 5,000 x 2,048 features, reference half cached: {statistics.median(seconds):.2f} s")


if __name__ == "__main__":
    main()
