"""Recipe of the Scenes classifier, on pictures of one thing."""

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from parity.embedded.classifier import CLASSES, Classifier
from parity.embedded.train_mar import single_things
from parity.embedded.training import publish, scene_arrays, to_pictures, train


def main(work: Path, out: Path, steps: int, batch: int, examples: int, seed: int, processes: int) -> list[dict[str, float]]:
    """Train, write `out`, return the log; the last row holds the accuracy on captions held out."""
    captions, pixels = scene_arrays(work, 1_000_000, examples, test=False, processes=processes)
    rows, labels = single_things(captions)
    torch.manual_seed(seed)
    net = Classifier().to(memory_format=torch.channels_last)

    def loss(step):
        rng = np.random.default_rng([seed, step, 9])
        chosen = rng.integers(0, len(rows), batch)
        x = to_pictures(pixels[rows[chosen]]).to(memory_format=torch.channels_last)
        x = torch.roll(x, tuple(rng.integers(-6, 7, 2)), (2, 3))  # a little elsewhere: the thing is not always where training put it
        with torch.autocast("cpu", torch.bfloat16):
            logits = net(x).float()
        right = torch.from_numpy(labels[chosen])
        return F.cross_entropy(logits, right), {"right": (logits.argmax(1) == right).float().mean().item()}

    log = []
    for row in train({"net": net}, loss, steps=steps, peak=3e-3, checkpoint=out.with_suffix(".pt"), average=0.99, every=100):
        print(row, flush=True)
        log.append(row)
    net.eval()
    test_captions, test = scene_arrays(work, 3_000_000, 1000, test=True, processes=processes)
    test_rows, test_labels = single_things(test_captions)
    with torch.inference_mode():
        found = net(to_pictures(test[test_rows])).argmax(1).numpy()
    log.append({"held_out_accuracy": float((found == test_labels).mean())})
    print(log[-1], flush=True)
    publish(net, out, {"classes": list(CLASSES)})
    return log
