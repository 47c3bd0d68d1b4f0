"""Depth, work and seconds of the exact decoders of diffusion heads: the table of docs/explanation/heads.md.

    python benchmarks/exact_heads.py [--model mar] [--steps 25] [--images 2] [--rounds 1] [--dtype float64] [--only X]

Every image is decoded alone. depth: calls of network and head that an image waits for; error: the largest difference
from what plain decoding draws under the noise that the decoder says its image stands for; ratio: plain decoding's
seconds over the method's, in one run, medians over images and rounds.
"""

from collections import defaultdict
from typing import Any

import numpy as np
import torch
from common import asked, cell, embedded, numbered
from parity_decoders.protocols.continuous import Start
from torch import Tensor

from parity.base.row_noise import batch_noise
from parity.decode import loop
from parity.decode.continuous import Clocked

RELEASED = (
    "verify: blind, sigma: inverted, inner_temperature: 42.0, resample: untempered, truncate: false, give_up: zero"
)
VARIANTS = [
    "", "spec_head: {ahead: 4}", "spec_head: {ahead: 8}", "spec_head: {ahead: 16}", "spec_head: {ahead: 32}",
    "spec_head: {ahead: 8, draft: frozen}", "coupled", "coupled: {window: 4}", "coupled: {reads: drafts, sweeps: 4}",
    "coupled: {reads: drafts, sweeps: 4, window: 64}", "coupled: {theta: 0.1}", "coupled: {theta: 1.0}",
    "coupled: {sweeps: 1}", "coupled: {law: path}",
    "cspd: {gamma: 8, " + RELEASED + "}",
]  # fmt: skip


@torch.inference_mode()
def plain_under(model: Any, start: Start, noise: Tensor) -> Tensor:
    """What plain decoding draws, by place [1, L, D], of noise [1, L, T + 1, D]."""
    grid, tokens = torch.zeros_like(noise[:, :, 0]), []
    for place in range(noise.shape[1]):
        at = torch.full((1, 1), place, device=noise.device)

        def path(i: int, place: int = place) -> Tensor:
            return noise[:, place, i]

        tokens.append(model.law(model.conditions(grid, start.order, at, at), path).sample(path))
        grid[:, start.order[0, place]] = tokens[-1]
    return torch.stack(tokens, 1)


def run(loaded: Any, spec: dict[str, Any], image: int, seed: int, dtype: torch.dtype) -> dict[str, float]:
    """What decoding one image cost, and the error of its noise where the decoder says it."""
    rows = {name: values[image : image + 1] for name, values in numbered(image + 1).items()}
    pair, start, steps = loop.start_decoding("continuous", loaded, spec)(
        rows, batch_noise(seed, [str(image)], dtype=dtype)
    )
    said: list[tuple[Tensor, Tensor]] = []

    def heard() -> Any:
        for step in steps:
            if step.noise is not None and (k := int(step.kept[0])):
                said.append((step.tokens[0, :k], step.noise[0, :k]))
            yield step

    done = loop.import_kind("continuous").record(pair, start, heard())
    target: Clocked = pair.target
    cost = {"depth": float(sum(m.depth[0] for m in pair if m is not None)), "seconds": done.seconds}
    cost |= {"rows": target.counts["head_rows"], "evaluations": target.counts["conditions"]}
    if said:
        tokens, noise = (torch.cat(v)[None] for v in zip(*said, strict=True))
        cost["error"] = float((plain_under(target.model, start, noise) - tokens).abs().max())
    return cost


def main() -> None:
    flags = {"steps": 25, "images": 2, "rounds": 1, "dtype": ("float64", "float32"), "only": ""}
    a = asked(__doc__, model=("mar", "xar", "harmon"), **flags)
    manifest, rng, dtype = embedded("continuous", a.model), np.random.default_rng(0), getattr(torch, a.dtype)
    settings = {"steps": a.steps, "guidance": 3.0, "temperature": 0.8, "clip": 4.0}
    settings["guidance_schedule"] = "constant" if a.model == "harmon" else "linear"
    tried = [v for v in VARIANTS if not v or (a.only in v and (a.model != "xar" or "blind" not in v))]
    specs = {v: cell("continuous", v, 0, sampling=settings, dtype=a.dtype) for v in tried}
    loaded, costs = loop.load("continuous", manifest, specs[""], "cpu"), defaultdict(list)
    for turn in range(a.rounds):
        for image in range(a.images):
            for variant in rng.permutation(tried):
                costs[variant].append(run(loaded, specs[variant], image, turn, dtype))
                print(".", end="", flush=True)
    print(f"\n{a.model}, T = {a.steps}, {a.dtype}, {a.images} images alone, {a.rounds} rounds")
    base = costs[""]
    for variant in tried:
        mean = {name: np.mean([c[name] for c in costs[variant]]) for name in ("depth", "rows", "evaluations")}
        fewer = np.mean([c["depth"] for c in base]) / mean["depth"]
        ratio = np.median([b["seconds"] / c["seconds"] for b, c in zip(base, costs[variant], strict=True)])
        error = max((c["error"] for c in costs[variant] if "error" in c), default=float("nan"))
        line = " | ".join(f"{v:,.0f}" for v in mean.values())
        name = variant.replace(RELEASED, "as released") or "plain"
        print(f"| {name} | {a.steps} | {line} | {fewer:.1f} | {ratio:.2f} | {error:.0e} |")


if __name__ == "__main__":
    main()
