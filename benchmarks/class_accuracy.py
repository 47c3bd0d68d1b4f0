"""Are the continuous models' pictures recognisable? The share whose class, colour or shape the Scenes classifier reads.

    python benchmarks/class_accuracy.py [--model mar] [--images 120] [--steps 25] [--guidance 3] [--temperature 0.8]

The classifier reads 100% of held-out pictures as drawn, and 96% of them through the autoencoder (its card).
"""

import math
from pathlib import Path

from common import asked, cell, embedded, numbered

from parity.decode import loop
from parity.embedded.classes import CLASSES
from parity.metrics.networks import classifier

PARTS = {
    "class": lambda k: CLASSES[k],
    "colour": lambda k: CLASSES[k].split()[0],
    "shape": lambda k: CLASSES[k].split()[1],
}


def main() -> None:
    models = ("mar", "xar", "harmon", "gmm")
    a = asked(__doc__, model=models, images=120, steps=25, guidance=3.0, temperature=0.8, seed=0)
    manifest = embedded("continuous", a.model)
    settings = {"steps": a.steps, "guidance": a.guidance, "temperature": a.temperature, "clip": 4.0}
    settings["guidance_schedule"] = "constant" if a.model == "harmon" else "linear"
    spec = cell("continuous", "", a.seed, sampling=settings)
    loaded, net = loop.load("continuous", manifest, spec), classifier.load(Path(manifest["files"]["classifier"]))
    tokens = loop.decode("continuous", loaded, spec, numbered(a.images), a.images).tokens
    read = net.read(loaded.pictures(tokens))["logits"].argmax(1).tolist()
    wanted = loaded.labels(range(a.images)).tolist()
    for what, part in PARTS.items():
        share = sum(part(r) == part(w) for r, w in zip(read, wanted, strict=True)) / a.images
        print(f"{what:7s} {100 * share:5.1f}% +- {100 * math.sqrt(share * (1 - share) / a.images):.1f}", flush=True)


if __name__ == "__main__":
    main()
