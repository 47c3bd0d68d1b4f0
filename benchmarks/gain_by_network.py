"""What does the gain go with? Passes of lossless decoders on networks from easy to hard, beside two measures.

    python benchmarks/gain_by_network.py [--images 16] [--keep gain-by-network]

Networks are the embedded LlamaGen at several temperatures and guidance scales, and with disturbed weights, which make
its distributions depend on more of the tokens before. For each, images are decoded plainly and by every method.

    times        tokens over passes, the mean of the images; plain decoding has 1
    moved        how far a token's distribution moves, in TV, when the tokens of its window before it are drawn again:
                 the mean over the W - 1 later positions of windows at 0, W, 2 W, ... of plain decoding's images
    entropy      of a token's distribution given plain decoding's tokens, mean in nats

A draft of speculative Jacobi decoding was drawn given other tokens than those that became final, so `moved` is the
probability that it is rejected, if all tokens of its window before it changed.
"""

from typing import Any

import torch
from common import encode_captions, make_sampling, make_spec, parse_flags
from docs_figures import keep_benchmark
from torch import Tensor

from parity.base.row_noise import batch_noise
from parity.decode import discrete, loop
from parity.metrics.likelihood import teacher_forced_logits

WINDOW = 32
VARIANTS = [
    "sjd: {window: 32, init: sample_above}",
    "sjd_coupled: {window: 32}",
    "sjd_pac: {window: 22, init: sample_above, warm: true}",
    "mtj: {window: 16, branches: 16}",
]
GUIDANCE = 1.8  # of config.yaml
# Temperature, guidance scale, and by how much of their deviation the weights are disturbed
SETTINGS = [
    (0.7, GUIDANCE, 0.0),
    (1.0, GUIDANCE, 0.0),
    (1.5, GUIDANCE, 0.0),
    (2.0, GUIDANCE, 0.0),
    (1.0, 1.0, 0.0),
    (1.0, 4.0, 0.0),
    (1.0, GUIDANCE, 0.1),
    (1.0, GUIDANCE, 0.2),
    (1.0, GUIDANCE, 0.24),
    (1.0, GUIDANCE, 0.27),
    (1.0, GUIDANCE, 0.3),
    (1.0, GUIDANCE, 0.33),
    (1.0, GUIDANCE, 0.36),
    (1.0, GUIDANCE, 0.4),
    (1.0, GUIDANCE, 0.5),
]


def disturb(net: torch.nn.Module, scale: float) -> None:
    """Add normal noise to each weight, `scale` times the deviation of its tensor."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for weight in net.parameters():
            noise = torch.randn(weight.shape, generator=generator)
            weight += scale * weight.std(correction=0) * noise


@torch.inference_mode()
def measure_shift(begin: Any, rows: loop.Rows, noise: Any, tokens: Tensor) -> tuple[float, float]:
    """Measure `moved` and `entropy` at tokens [B, L] of plain decoding."""

    def compute_probs(read: Tensor) -> Tensor:
        model, _ = begin(rows, noise)
        return teacher_forced_logits(model, read).double().softmax(-1)

    p = compute_probs(tokens)
    drawn = torch.multinomial(p.flatten(0, 1), 1, generator=torch.Generator().manual_seed(3)).view_as(tokens)
    position = torch.arange(tokens.shape[1])
    moved = []
    for first in range(0, tokens.shape[1], WINDOW):
        later = (position > first) & (position < first + WINDOW)
        q = compute_probs(torch.where(position < first, tokens, drawn))
        moved.append((p - q).abs().sum(-1)[:, later].mean().item() / 2)
    return sum(moved) / len(moved), torch.distributions.Categorical(probs=p).entropy().mean().item()


def main() -> None:
    """Print and keep a row for each network and method."""
    a = parse_flags(__doc__, VARIANTS, images=16, keep="")
    manifest, rows = encode_captions(a.images)
    kept = []
    for temperature, guidance, scale in SETTINGS:
        own = {"temperature": 1.0, "guidance": GUIDANCE, "weights disturbed by": 0.0}
        changes = dict(zip(own, (temperature, guidance, scale), strict=True))
        network = ", ".join(f"{name} {value:g}" for name, value in changes.items() if value != own[name]) or "as it is"
        setting = {"sampling": {**make_sampling(guidance), "temperature": temperature}}
        spec = make_spec("discrete", "", 0, **setting)
        loaded: Any = loop.load("discrete", manifest, spec)
        disturb(loaded.nets["net"], scale)
        noise = batch_noise(0, rows["ids"].tolist())
        plain = torch.tensor(loop.decode("discrete", loaded, spec, rows, a.images).tokens.astype("int64"))
        moved, entropy = measure_shift(discrete.make_starter(loaded, spec), rows, noise, plain)
        for variant in a.variants:
            spec = make_spec("discrete", variant, 0, **setting)
            passes = loop.decode("discrete", loaded, spec, rows, a.images).nfe
            times = float((plain.shape[1] / passes).mean())
            row = {"label": f"{network}, {spec['method']}", "network": network, "method": spec["method"]}
            row |= {"times": times, "moved": moved, "entropy": entropy, "images": a.images}
            kept.append(row)
            print(f"{row['label']}: {times:.2f} times, moved {moved:.3f}, entropy {entropy:.2f}", flush=True)
    if a.keep:
        keep_benchmark(a.keep, kept)


if __name__ == "__main__":
    main()
