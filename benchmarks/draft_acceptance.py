"""How near must a draft be for `cspd` to accept it? The table of docs/explanation/continuous.md.

    python benchmarks/draft_acceptance.py [--images 16]

Drafts are the embedded draft model, and the target itself without a block, with fewer steps or bits, or unaware of the
last tokens. Each draft is drawn once at each place that `cspd` drafts of plain decoding's images, given all tokens
before it. Columns: share of the target's weights; squared distance to the target's draw from the same noise; then
median log ratio, mean acceptance and acceptance in each sixth of the order, by the two paths that end in one token
(eq. 9), and the same by the draft's own path (eq. 2), which needs as many steps in both models.
"""

import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from common import make_manifest, parse_flags
from parity_decoders.continuous.mar import mar
from parity_decoders.noise import counted_noise
from parity_decoders.protocols.continuous import Pair, Start, draw_order, make_path_noise
from torch import Tensor

from parity.decode.continuous import record
from parity.models.continuous.diffusion import HeadSampling, Steps, compute_single_path_log_ratio, walk
from parity.models.continuous.load import load
from parity.models.continuous.mar import MAR, MARNet

FIRST = 4  # the first place that `cspd` drafts by default: the target alone draws the 5% of 64 before it
SAMPLING = HeadSampling(steps=25, guidance=3.0, temperature=0.8, clip=4.0)


def drop_last_block(net: MARNet, section: str) -> MARNet:
    """Copy a network without the last block of a section, "encoder", "decoder" or "head"."""
    net = copy.deepcopy(net)
    del (net.diffloss.net.res_blocks if section == "head" else getattr(net, f"{section}_blocks"))[-1]
    return net


def round_weights(net: MARNet, bits: int) -> MARNet:
    """Copy a network with its matrices rounded to this many bits, scaled row by row, as quantised weights are
    stored."""
    net = copy.deepcopy(net)
    for p in (p for p in net.parameters() if p.ndim == 2):
        scale = p.data.abs().amax(1, keepdim=True) / (2 ** (bits - 1) - 1)
        p.data = (p.data / scale).round() * scale
    return net


def count_parameters(net: MARNet) -> int:
    return sum(p.numel() for p in net.parameters())


def make_drafts(target: MAR, draft: MARNet, tokens: Tensor, order: Tensor) -> Iterator[tuple[str, float, Steps]]:
    """Yield each draft's name, its share of the target's weights, and the conditions of its head at all ranks from
    FIRST on. `tokens` are the images of plain decoding, and `order` is the order in which they were drawn."""
    ranks = torch.arange(FIRST, target.length).expand(len(tokens), -1)
    nets = {"draft model": draft}
    for section in ("encoder", "decoder", "head"):
        nets[f"target less a block of its {section}"] = drop_last_block(target.net, section)
    nets |= {f"target in {bits} bits": round_weights(target.net, bits) for bits in (8, 12)}
    for name, net in nets.items():
        share = count_parameters(net) / count_parameters(target.net)
        yield name, share, replace(target, net=net).conditions(tokens, order, ranks, ranks)
    for k in (1, 2, 3):
        yield f"target, unaware of the last {k}", 1.0, target.conditions(tokens, order, ranks, ranks - k)
    for steps in (24, 13):
        shortened = replace(target, sampling=replace(SAMPLING, steps=steps))
        yield f"target in {steps} steps", 1.0, shortened.conditions(tokens, order, ranks, ranks)


def describe_acceptance(log_ratio: Tensor) -> str:
    """Write the median log ratio [images, places] and mean acceptance min(1, ratio), of all places and each sixth."""
    accepted = log_ratio.clamp(max=0).exp()
    sixths = " ".join(f"{sixth.mean():.3f}" for sixth in accepted.chunk(6, 1))
    return f"{log_ratio.median():,.1f} | {accepted.mean():.3f} | {sixths}"


@torch.inference_mode()
def main() -> None:
    """Decode images plainly, draw every draft once at each place, and print a table row for each kind of draft."""
    a = parse_flags(__doc__, images=16)
    loaded: Any = load(make_manifest("continuous", "mar"), needs="draft")
    target: Any = loaded.model("target", range(a.images), vars(SAMPLING))
    noise, draw_noise = (counted_noise(seed, range(a.images), torch.float32) for seed in (0, 7))
    start = Start(draw_order(noise, a.images, target.length, False))
    tokens = record(Pair(target), start, mar(Pair(target), start, noise=noise)).tokens
    ranks = torch.arange(FIRST, target.length).expand(a.images, -1)
    path = make_path_noise(draw_noise, "sample", ranks, target.steps, target.dim)
    p = target.conditions(tokens, start.order, ranks, ranks)
    target_walk = walk(p, path)
    print(f"deviation of the last step: {target_walk.std.median():.4f}")
    for name, share, q in make_drafts(target, loaded.network("draft"), tokens, start.order):

        def nearest_noise(i: int, steps: int = q.steps) -> Tensor:
            """Return the target's noise at its step that is nearest to step i of a walk of `steps` steps."""
            return path(round(i * target.steps / steps) if i > 1 else i)

        draft_walk = walk(q, nearest_noise)
        x = draft_walk.propose(nearest_noise)
        distance = ((x - target_walk.propose(path)) ** 2).sum(-1).mean()
        ratios = [target_walk.log_density(x) - draft_walk.log_density(x)]
        if q.steps == target.steps:
            ratios[0] += draft_walk.log_sigma - target_walk.log_sigma
            ratios.append(compute_single_path_log_ratio(p, q, path))
        columns = " | ".join(describe_acceptance(ratio.view(a.images, -1)) for ratio in ratios)
        print(f"| {name} | {share:.2f} | {distance:.4f} | {columns} |", flush=True)


if __name__ == "__main__":
    main()
