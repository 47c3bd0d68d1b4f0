"""How much faster is continuous speculative decoding? Ratios of seconds against the target alone, in one alternating run: medians and ranges.

python benchmarks/continuous_speed.py [--model mar] [--batch 1 16] [--rounds 5] [--steps 25]

Every round decodes the same images with each method in turn, in a new order, so that a machine's mood touches all alike. An experiment's page
has seconds too, but of jobs that ran at other times.
"""

import argparse

import numpy as np
import torch

from parity.base.noise import batch_noise
from parity.decode.continuous import run
from parity.decoders.continuous.cspd import cspd
from parity.decoders.continuous.mar import mar
from parity.models.continuous.load import Networks
from parity.models.continuous.protocol import Start, draw_order
from parity.report.continuous import RELEASED

CAUSAL = ("xar", "gmm")  # their released options, and methods, are fewer: a causal target cannot judge blindly


def methods(model: str) -> dict[str, tuple]:
    """Name to decoder and options; the first is what the others are divided by."""
    own = {k: v for k, v in RELEASED.items() if not (model in CAUSAL and k in ("verify", "truncate", "give_up"))}
    own = own if model != "gmm" else {}
    found: dict[str, tuple] = {"target alone": (mar, {})}
    if model not in CAUSAL:
        found |= {f"{n} iterations": (mar, {"iterations": n}) for n in (32, 16)}
    return found | {
        f"cspd{' as released' if own else ''}, gamma {g}": (cspd, {"gamma": g, **own}) for g in (4, 8, 16, 32)
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=["mar", "xar", "harmon", "gmm"], default="mar")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    a = parser.parse_args()
    torch.set_num_threads(a.threads)
    networks, rng, tried = Networks(a.model, a.device), np.random.default_rng(0), methods(a.model)
    settings = {"steps": a.steps, "guidance": 3.0, "temperature": 0.8, "clip": 4.0}
    settings["guidance_schedule"] = "constant" if a.model == "harmon" else "linear"
    for batch in a.batch:
        rows, seconds = range(batch), {name: [] for name in tried}
        for turn in range(a.rounds + 1):  # the first warms up
            for name in rng.permutation(list(tried)):
                method, options = tried[name]
                pair, noise = (
                    networks.pair(rows, settings, method is cspd),
                    batch_noise(turn, [str(i) for i in rows], a.device),
                )
                order = draw_order(noise, batch, pair.target.length, pair.target.raster)
                seconds[name].append(
                    run(order, pair.target.dim, method(pair, Start(order), noise=noise, **options)).seconds
                )
        base = np.array(seconds["target alone"][1:])
        print(
            f"{a.model}, batch {batch}: target alone {np.median(base) / batch:.2f} s an image, {a.rounds} rounds",
            flush=True,
        )
        for name, spent in seconds.items():
            ratio = base / np.array(spent[1:])
            print(
                f"  {name:28s} {np.median(ratio):5.2f} times faster  ({ratio.min():.2f} to {ratio.max():.2f})",
                flush=True,
            )


if __name__ == "__main__":
    main()
