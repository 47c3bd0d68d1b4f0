"""Depth, work and seconds of the exact decoders of diffusion heads: the table of docs/explanation/heads.md.

    python benchmarks/exact_heads.py [--model mar] [--steps 25] [--images 2] [--rounds 1] [--dtype float64] [--only X]

Every image is decoded alone. depth: calls of network and head that an image waits for; error: the largest difference
from plain decoding under the noise that the decoder reports for its image; ratio: plain decoding's seconds over the
method's, in one run, medians over images and rounds.
"""

from collections import defaultdict
from typing import Any

import numpy as np
import torch
from common import make_manifest, make_spec, number_images, parse_flags
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
    "coupled: {sweeps: 1}", "coupled: {goal: path}",
    "cspd: {gamma: 8, " + RELEASED + "}",
]  # fmt: skip


@torch.inference_mode()
def decode_plainly(model: Any, start: Start, noise: Tensor) -> Tensor:
    """Decode an image token by token under noise [1, L, T + 1, D], by rank and step; return [1, L, D] by rank."""
    grid, tokens = torch.zeros_like(noise[:, :, 0]), []
    for rank in range(noise.shape[1]):
        ranks = torch.full((1, 1), rank, device=noise.device)

        def step_noise(i: int, rank: int = rank) -> Tensor:
            """Return the noise [1, D] of step i at a rank."""
            return noise[:, rank, i]

        tokens.append(
            model.distribution(model.conditions(grid, start.order, ranks, ranks), step_noise).sample(step_noise)
        )
        grid[:, start.order[0, rank]] = tokens[-1]
    return torch.stack(tokens, 1)


def measure_image(loaded: Any, spec: dict[str, Any], image: int, seed: int, dtype: torch.dtype) -> dict[str, float]:
    """Decode one image alone and measure depth, seconds, head rows and evaluations of the network; and `error`, the
    largest difference from plain decoding under the noise that the decoder names for its image, if it does."""
    rows = {name: values[image : image + 1] for name, values in number_images(image + 1).items()}
    noise = batch_noise(seed, [str(image)], dtype=dtype)
    pair, start, steps = loop.start_decoding("continuous", loaded, spec)(rows, noise)
    finals: list[tuple[Tensor, Tensor]] = []

    def record_noise() -> Any:
        """Yield the steps, and append the final vectors of each and their noise to `finals`."""
        for step in steps:
            if step.noise is not None and (k := int(step.kept[0])):
                finals.append((step.tokens[0, :k], step.noise[0, :k]))
            yield step

    result = loop.import_kind("continuous").record(pair, start, record_noise())
    target: Clocked = pair.target
    cost = {"depth": float(sum(m.depth[0] for m in pair if m is not None)), "seconds": result.seconds}
    cost |= {"rows": target.counts["head_rows"], "evaluations": target.counts["conditions"]}
    if finals:
        tokens, own_noise = (torch.cat(v)[None] for v in zip(*finals, strict=True))
        cost["error"] = float((decode_plainly(target.model, start, own_noise) - tokens).abs().max())
    return cost


def main() -> None:
    """Decode each image by every variant in a random order, and print a table row with the costs of each."""
    flags = {"steps": 25, "images": 2, "rounds": 1, "dtype": ("float64", "float32"), "only": ""}
    a = parse_flags(__doc__, model=("mar", "xar", "harmon"), **flags)
    manifest = make_manifest("continuous", a.model)
    rng = np.random.default_rng(0)
    dtype = getattr(torch, a.dtype)
    settings = {"steps": a.steps, "guidance": 3.0, "temperature": 0.8, "clip": 4.0}
    settings["guidance_schedule"] = "constant" if a.model == "harmon" else "linear"
    variants = [v for v in VARIANTS if not v or (a.only in v and (a.model != "xar" or "blind" not in v))]
    specs = {v: make_spec("continuous", v, 0, sampling=settings, dtype=a.dtype) for v in variants}
    loaded = loop.load("continuous", manifest, specs[""], "cpu")
    costs = defaultdict(list)
    for seed in range(a.rounds):
        for image in range(a.images):
            for variant in rng.permutation(variants):
                costs[variant].append(measure_image(loaded, specs[variant], image, seed, dtype))
                print(".", end="", flush=True)
    print(f"\n{a.model}, T = {a.steps}, {a.dtype}, {a.images} images alone, {a.rounds} rounds")
    plain = costs[""]
    for variant in variants:
        mean = {name: np.mean([c[name] for c in costs[variant]]) for name in ("depth", "rows", "evaluations")}
        fewer = np.mean([c["depth"] for c in plain]) / mean["depth"]
        ratio = np.median([b["seconds"] / c["seconds"] for b, c in zip(plain, costs[variant], strict=True)])
        error = max((c["error"] for c in costs[variant] if "error" in c), default=float("nan"))
        line = " | ".join(f"{v:,.0f}" for v in mean.values())
        name = variant.replace(RELEASED, "as released") or "plain"
        print(f"| {name} | {a.steps} | {line} | {fewer:.1f} | {ratio:.2f} | {error:.0e} |")


if __name__ == "__main__":
    main()
