"""How near must a draft be for `cspd` to accept it? The table of docs/explanation/continuous.md.

    python benchmarks/draft_acceptance.py [--images 16]

Drafts are the embedded draft model, and the target itself with something left out: blocks, steps, bits, or the last
known tokens. At every place that `cspd` drafts of plain decoding's images, all tokens before it given, each draft is
drawn once. Columns: share of the target's weights; squared distance to the target's draw from the same noise; then
median log ratio, mean acceptance and acceptance in each sixth of the order, by the two paths that end in one token
(eq. 9), and the same by the draft's own path (eq. 2), which needs as many steps in both models.
"""

import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from common import asked, embedded
from parity_decoders.continuous.mar import mar
from parity_decoders.noise import counted_noise
from parity_decoders.protocols.continuous import Pair, Start, draw_order, make_path_noise
from torch import Tensor

from parity.decode.continuous import record
from parity.models.continuous.diffusion import HeadSampling, Steps, compute_single_path_log_ratio, walk
from parity.models.continuous.load import load
from parity.models.continuous.mar import MAR, MARNet

FIRST = 4  # place that `cspd` drafts by default: the target alone draws 5% of 64
SAMPLING = HeadSampling(steps=25, guidance=3.0, temperature=0.8, clip=4.0)


def without(net: MARNet, part: str) -> MARNet:
    """A copy without the last block of the encoder, the decoder or the head."""
    net = copy.deepcopy(net)
    del (net.diffloss.net.res_blocks if part == "head" else getattr(net, f"{part}_blocks"))[-1]
    return net


def rounded(net: MARNet, bits: int) -> MARNet:
    """A copy whose matrices are rounded row by row to so many bits, as weights are stored in few bits."""
    net = copy.deepcopy(net)
    for p in (p for p in net.parameters() if p.ndim == 2):
        scale = p.data.abs().amax(1, keepdim=True) / (2 ** (bits - 1) - 1)
        p.data = (p.data / scale).round() * scale
    return net


def size(net: MARNet) -> int:
    return sum(p.numel() for p in net.parameters())


def drafts(target: MAR, draft: MARNet, tokens: Tensor, order: Tensor) -> Iterator[tuple[str, float, Steps]]:
    """Name, share of weights and conditions at the places [n, m] of each draft."""
    places = torch.arange(FIRST, target.length).expand(len(tokens), -1)
    nets = {"draft model": draft}
    nets |= {f"target less a block of its {part}": without(target.net, part) for part in ("encoder", "decoder", "head")}
    nets |= {f"target in {bits} bits": rounded(target.net, bits) for bits in (8, 12)}
    for name, net in nets.items():
        yield name, size(net) / size(target.net), replace(target, net=net).conditions(tokens, order, places, places)
    for k in (1, 2, 3):
        yield f"target, unaware of the last {k}", 1.0, target.conditions(tokens, order, places, places - k)
    for steps in (24, 13):
        few = replace(target, sampling=replace(SAMPLING, steps=steps))
        yield f"target in {steps} steps", 1.0, few.conditions(tokens, order, places, places)


def describe(log_ratio: Tensor) -> str:
    """Median, and acceptance over all places and in each sixth of the order; log_ratio [images, places]."""
    accepted = log_ratio.clamp(max=0).exp()
    parts = " ".join(f"{part.mean():.3f}" for part in accepted.chunk(6, 1))
    return f"{log_ratio.median():,.1f} | {accepted.mean():.3f} | {parts}"


@torch.inference_mode()
def main() -> None:
    a = asked(__doc__, images=16)
    loaded: Any = load(embedded("continuous", "mar"), needs="draft")
    target: Any = loaded.model("target", range(a.images), vars(SAMPLING))
    noise, fresh = (counted_noise(seed, range(a.images), torch.float32) for seed in (0, 7))
    start = Start(draw_order(noise, a.images, target.length, False))
    tokens = record(Pair(target), start, mar(Pair(target), start, noise=noise)).tokens
    places = torch.arange(FIRST, target.length).expand(a.images, -1)
    path = make_path_noise(fresh, "sample", places, target.steps, target.dim)
    p = target.conditions(tokens, start.order, places, places)
    own = walk(p, path)
    print(f"deviation of the last step: {own.std.median():.4f}")
    for name, share, q in drafts(target, loaded.network("draft"), tokens, start.order):

        def nearest(i: int, steps: int = q.steps) -> Tensor:
            return path(round(i * target.steps / steps) if i > 1 else i)  # the noise of the target's nearest step

        drawn = walk(q, nearest)
        x = drawn.propose(nearest)
        far = ((x - own.propose(path)) ** 2).sum(-1).mean()
        ratios = [own.log_density(x) - drawn.log_density(x)]
        if q.steps == target.steps:
            ratios = [ratios[0] + drawn.log_sigma - own.log_sigma, compute_single_path_log_ratio(p, q, path)]
        columns = " | ".join(describe(ratio.view(a.images, -1)) for ratio in ratios)
        print(f"| {name} | {share:.2f} | {far:.4f} | {columns} |", flush=True)


if __name__ == "__main__":
    main()
