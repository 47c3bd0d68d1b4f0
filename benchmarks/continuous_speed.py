"""How much faster is continuous speculative decoding than the target alone? Ratios of times, their median and range.

    python benchmarks/continuous_speed.py [--model mar] [--batch 1 16] [--rounds 5] [--steps 25] [--keep NAME]

Every round decodes the same images with each method in turn, in a new order, so that the machine's load affects all
alike; on a CPU the times are the CPU-seconds of the process, for the same reason. An experiment's page times the target
alone beside the first batches of each job, once. --keep puts the table in docs/figures, from which
`benchmarks/docs_figures.py` writes it into the docs.
"""

import time
from typing import Any

import numpy as np
from common import make_manifest, make_spec, number_images, parse_flags
from docs_figures import keep_benchmark

from parity.base.row_noise import batch_noise
from parity.decode import loop
from parity.experiment import weights
from parity.report.settings import NAMED


def list_variants(model: str) -> dict[str, str]:
    """List the variants to time, by name; '' is the target alone, with which the others are compared. A causal target
    takes fewer of the released options of `cspd` and no `mar` with several tokens an iteration."""
    causal = weights.read_family(model)["causal"]
    released: dict[str, Any] = NAMED["as released"]
    if model == "gmm":
        released = {}
    elif causal:
        released = {k: v for k, v in released.items() if k not in ("verify", "truncate", "give_up")}
    variants = {"target alone": ""}
    variants |= {f"{n} iterations": f"mar: {{iterations: {n}}}" for n in (() if causal else (32, 16))}
    variants |= {"spec_head": "spec_head", "coupled": "coupled"}
    options = "".join(f", {k}: {str(v).lower()}" for k, v in released.items())
    name = f"cspd{' as released' if released else ''}"
    return variants | {f"{name}, gamma {g}": f"cspd: {{gamma: {g}{options}}}" for g in (4, 8, 16, 32)}


def main() -> None:
    """Time each variant on the same images, print times faster than the target alone, and keep the table with
    --keep."""
    models = ("mar", "xar", "harmon", "gmm")
    a = parse_flags(__doc__, model=models, batch=[1, 16], rounds=5, steps=25, device="cpu", keep="")
    manifest = make_manifest("continuous", a.model)
    rng = np.random.default_rng(0)
    variants = list_variants(a.model)
    settings = {"steps": a.steps, "guidance": 3.0, "temperature": 0.8, "clip": 4.0}
    settings["guidance_schedule"] = "constant" if a.model == "harmon" else "linear"
    specs = {name: make_spec("continuous", variant, 0, sampling=settings) for name, variant in variants.items()}
    loaded = loop.load("continuous", manifest, specs["target alone"], a.device)
    table: list[dict[str, Any]] = []
    for batch in a.batch:
        rows = number_images(batch)
        seconds: dict[str, list[float]] = {name: [] for name in variants}
        for turn in range(a.rounds + 1):  # the first round warms up and is not counted
            for name in rng.permutation(list(variants)):
                noise = batch_noise(turn, rows["ids"].tolist(), a.device)
                start = time.process_time()
                decoding = loop.start_decoding("continuous", loaded, specs[name])(rows, noise)
                wall = loop.import_kind("continuous").record(*decoding).seconds
                cpu = time.process_time() - start
                seconds[name].append(cpu if a.device == "cpu" else wall)
        plain = np.array(seconds["target alone"][1:])
        seconds_an_image = np.median(plain) / batch
        print(
            f"{a.model}, batch {batch}: target alone {seconds_an_image:.2f} s an image, {a.rounds} rounds", flush=True
        )
        for name, times in seconds.items():
            ratio = plain / np.array(times[1:])
            span = f"({ratio.min():.2f} to {ratio.max():.2f})"
            print(f"  {name:28s} {np.median(ratio):5.2f} times faster  {span}", flush=True)
            figures = {"ratio": np.median(ratio), "low": ratio.min(), "high": ratio.max(), "rounds": a.rounds}
            table.append({"name": name, "batch": batch, **figures})
    if a.keep:
        keep_benchmark(a.keep, table)


if __name__ == "__main__":
    main()
