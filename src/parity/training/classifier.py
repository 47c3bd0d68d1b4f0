"""Recipe of the Scenes classifier, on class-conditional Scenes and on what the autoencoder makes of them.

Half of every batch has been through `kl` and back: the classifier is to read what a model drew, not how sharp a decoder is.
"""

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from parity.embedded.classes import CLASSES, class_arrays
from parity.metrics.networks.classifier import Classifier
from parity.models.continuous.load import load_kl
from parity.training.loop import publish, to_pictures, train
from parity.training.mar import TESTED, class_latents


def main(
    work: Path, kl_file: Path, out: Path, steps: int, batch: int, examples: int, seed: int, processes: int
) -> list[dict[str, float]]:
    """Train, write `out`, return the log; the last row holds the accuracy on captions held out, as drawn and through `kl`."""
    labels, _, pixels = class_arrays(work, 1_000_000, examples, False, processes)
    tokens, _ = class_latents(work, kl_file, 1_000_000, examples, False, processes)
    kl = load_kl(kl_file)
    torch.manual_seed(seed)
    net = Classifier().to(memory_format=torch.channels_last)

    def loss(step):
        rng = np.random.default_rng([seed, step, 9])
        chosen = rng.integers(0, len(labels), batch)
        half = batch // 2
        with torch.autocast("cpu", torch.bfloat16):
            with torch.no_grad():
                made = kl.decode(tokens[chosen[half:]]).float().clamp(-1, 1)
            x = torch.cat([to_pictures(pixels[chosen[:half]]), made])
            if rng.random() < 0.5:
                x = x.flip(3)  # every shape is its own mirror image
            # A little elsewhere: the thing is not always where training put it.
            x = torch.roll(x, tuple(rng.integers(-6, 7, 2)), (2, 3)).to(memory_format=torch.channels_last)
            logits = net(x).float()
        right = torch.from_numpy(labels[chosen])
        return F.cross_entropy(logits, right, label_smoothing=0.05), {
            "right": (logits.argmax(1) == right).float().mean().item()
        }

    log = []
    for row in train(
        {"net": net}, loss, steps=steps, peak=3e-3, checkpoint=out.with_suffix(".pt"), average=0.99, every=100
    ):
        print(row, flush=True)
        log.append(row)
    net.eval()
    test_labels, _, test = class_arrays(work, 3_000_000, TESTED, True, processes)
    with torch.inference_mode():
        x = to_pictures(test)
        found = {"held_out_accuracy": net(x), "held_out_accuracy_through_kl": net(kl.decode(kl.encode(x)))}
    log.append({k: float((v.argmax(1).numpy() == test_labels).mean()) for k, v in found.items()})
    print(log[-1], flush=True)
    publish(net, out, {"classes": list(CLASSES)})
    return log
