"""Are the continuous models' pictures recognisable? The share whose class the Scenes classifier reads, as a whole, and shape and colour apart.

python benchmarks/class_accuracy.py [--model mar] [--images 120] [--steps 25] [--guidance 3] [--temperature 0.8]

The classifier reads 100% of held-out pictures as drawn, and 96% of them through the autoencoder (its card).
"""

import argparse
import math

import torch

from parity.base.noise import batch_noise
from parity.decode.continuous import run
from parity.decoders.continuous.mar import mar
from parity.metrics.networks import classifier
from parity.models.continuous.load import CLASSES, WEIGHTS, Networks, labels_of
from parity.models.continuous.protocol import Start, draw_order
from parity.training.loop import to_pictures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=["mar", "xar", "harmon", "gmm"], default="mar")
    parser.add_argument("--images", type=int, default=120)
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--guidance", type=float, default=3.0)
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    a = parser.parse_args()
    torch.set_num_threads(a.threads)
    networks, net = Networks(a.model), classifier.load(WEIGHTS / "classifier.safetensors")
    schedule = "constant" if a.model == "harmon" else "linear"
    settings = {
        "steps": a.steps,
        "guidance": a.guidance,
        "guidance_schedule": schedule,
        "temperature": a.temperature,
        "clip": 4.0,
    }
    rows = range(a.images)
    pair, noise = networks.pair(rows, settings, False), batch_noise(a.seed, [str(i) for i in rows])
    order = draw_order(noise, a.images, pair.target.length, pair.target.raster)
    pixels = networks.pictures(run(order, pair.target.dim, mar(pair, Start(order), noise=noise)).tokens)
    with torch.inference_mode():
        found = net(to_pictures(pixels)).argmax(1).tolist()
    wanted = labels_of(rows).tolist()
    for what, part in (
        ("class", lambda k: CLASSES[k]),
        ("colour", lambda k: CLASSES[k].split()[0]),
        ("shape", lambda k: CLASSES[k].split()[1]),
    ):
        share = sum(part(f) == part(w) for f, w in zip(found, wanted, strict=True)) / a.images
        print(f"{what:7s} {100 * share:5.1f}% +- {100 * math.sqrt(share * (1 - share) / a.images):.1f}", flush=True)


if __name__ == "__main__":
    main()
