"""How much faster is continuous speculative decoding than the target alone? Ratios of times, their median and range.

    python benchmarks/continuous_speed.py [--model mar] [--batch 1 16] [--rounds 5] [--steps 25] [--keep NAME]

Every round decodes the same images with each method in turn, in a new order, so that a machine's mood touches all
alike; on a CPU the times are the process's own CPU-seconds, for the same reason. An experiment's page times the target
alone beside the first batches of each job, once. --keep puts the table in docs/figures, from which
`benchmarks/docs_figures.py` writes it into the docs.
"""

import time
from typing import Any

import numpy as np
from common import asked, cell, embedded, numbered
from docs_figures import keep_benchmark

from parity.base.row_noise import batch_noise
from parity.decode import loop
from parity.experiment import weights
from parity.report.settings import NAMED


def methods(model: str) -> dict[str, str]:
    """Name to variant; the first is what the others are divided by. A causal target cannot judge a draft blindly: its
    released options are fewer, and it draws one token at a time."""
    causal = weights.read_family(model)["causal"]
    own: dict[str, Any] = NAMED["as released"]
    if causal:
        own = {k: v for k, v in own.items() if k not in ("verify", "truncate", "give_up")} if model != "gmm" else {}
    few = () if causal else (32, 16)
    exact = {"spec_head": "spec_head", "coupled": "coupled"}
    found = {"target alone": ""} | {f"{n} iterations": f"mar: {{iterations: {n}}}" for n in few} | exact
    released = "".join(f", {k}: {str(v).lower()}" for k, v in own.items())
    name = f"cspd{' as released' if own else ''}"
    return found | {f"{name}, gamma {g}": f"cspd: {{gamma: {g}{released}}}" for g in (4, 8, 16, 32)}


def main() -> None:
    a = asked(__doc__, model=("mar", "xar", "harmon", "gmm"), batch=[1, 16], rounds=5, steps=25, device="cpu", keep="")
    manifest, rng, tried = embedded("continuous", a.model), np.random.default_rng(0), methods(a.model)
    settings = {"steps": a.steps, "guidance": 3.0, "temperature": 0.8, "clip": 4.0}
    settings["guidance_schedule"] = "constant" if a.model == "harmon" else "linear"
    specs = {name: cell("continuous", variant, 0, sampling=settings) for name, variant in tried.items()}
    loaded = loop.load("continuous", manifest, specs["target alone"], a.device)
    table: list[dict[str, Any]] = []
    for batch in a.batch:
        rows, seconds = numbered(batch), {name: [] for name in tried}
        for turn in range(a.rounds + 1):  # the first warms up
            for name in rng.permutation(list(tried)):
                noise = batch_noise(turn, rows["ids"].tolist(), a.device)
                begin = time.process_time()
                run = loop.start_decoding("continuous", loaded, specs[name])(rows, noise)
                wall = loop.import_kind("continuous").record(*run).seconds
                own = time.process_time() - begin
                seconds[name].append(own if a.device == "cpu" else wall)
        base = np.array(seconds["target alone"][1:])
        alone = f"target alone {np.median(base) / batch:.2f} s an image"
        print(f"{a.model}, batch {batch}: {alone}, {a.rounds} rounds", flush=True)
        for name, spent in seconds.items():
            ratio = base / np.array(spent[1:])
            span = f"({ratio.min():.2f} to {ratio.max():.2f})"
            print(f"  {name:28s} {np.median(ratio):5.2f} times faster  {span}", flush=True)
            figures = {"ratio": np.median(ratio), "low": ratio.min(), "high": ratio.max(), "rounds": a.rounds}
            table.append({"name": name, "batch": batch, **figures})
    if a.keep:
        keep_benchmark(a.keep, table)


if __name__ == "__main__":
    main()
