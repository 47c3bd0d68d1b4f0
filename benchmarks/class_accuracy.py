"""Are the continuous models' pictures recognisable? The share whose class, colour or shape the Scenes classifier reads.

    python benchmarks/class_accuracy.py [--model mar] [--images 120] [--steps 25] [--guidance 3] [--temperature 0.8]

The classifier reads 100% of held-out pictures as drawn, and 96% of them through the autoencoder (its model card).
"""

import math
from pathlib import Path

from common import make_manifest, make_spec, number_images, parse_flags

from parity.decode import loop
from parity.embedded.classes import CLASSES
from parity.metrics.networks import classifier

ATTRIBUTES = {
    "class": lambda k: CLASSES[k],
    "colour": lambda k: CLASSES[k].split()[0],
    "shape": lambda k: CLASSES[k].split()[1],
}


def main() -> None:
    """Decode pictures plainly, and print for each attribute the share that the classifier reads right and its error."""
    models = ("mar", "xar", "harmon", "gmm")
    a = parse_flags(__doc__, model=models, images=120, steps=25, guidance=3.0, temperature=0.8, seed=0)
    manifest = make_manifest("continuous", a.model)
    settings = {"steps": a.steps, "guidance": a.guidance, "temperature": a.temperature, "clip": 4.0}
    settings["guidance_schedule"] = "constant" if a.model == "harmon" else "linear"
    spec = make_spec("continuous", "", a.seed, sampling=settings)
    loaded = loop.load("continuous", manifest, spec)
    net = classifier.load(Path(manifest["files"]["classifier"]))
    tokens = loop.decode("continuous", loaded, spec, number_images(a.images), a.images).tokens
    predicted = net.read(loaded.pictures(tokens))["logits"].argmax(1).tolist()
    labels = loaded.labels(range(a.images)).tolist()
    for name, select in ATTRIBUTES.items():
        share = sum(select(r) == select(w) for r, w in zip(predicted, labels, strict=True)) / a.images
        print(f"{name:7s} {100 * share:5.1f}% +- {100 * math.sqrt(share * (1 - share) / a.images):.1f}", flush=True)


if __name__ == "__main__":
    main()
