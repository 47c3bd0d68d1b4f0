"""Recipe of the Scenes classifier, on class-conditional Scenes and on what the autoencoder makes of them.

Half of every batch has been through `kl` and back: the classifier is to read what a model drew, not how sharp a decoder
is.
"""

import torch
import torch.nn.functional as F

from parity.embedded.classes import CLASSES
from parity.metrics.networks.classifier import Classifier
from parity.models.continuous import kl
from parity.training.data import class_latents, class_pictures, to_pictures
from parity.training.recipe import Job, Recipe

KIND = "continuous"
DATA = "classes"
EXAMPLES = 20_000
READS = ("kl",)
RUN = {"classifier": (1000, 96)}  # steps, batch
CARDS = {
    "classifier": "Scenes classifier: which of 60 shapes and colours a picture of one large plain thing"
    " shows; for the Inception Score and class accuracy.",
}


def recipe(job: Job) -> Recipe:
    """Its log ends with the accuracy on captions held out, as drawn and through `kl`."""
    labels, _, pixels = class_pictures(job)
    tokens, _ = class_latents(job)
    tokenizer = kl.load(job.weights("kl"))
    torch.manual_seed(job.seed)
    net = Classifier().to(memory_format=torch.channels_last)

    def loss(step, rng):
        chosen = rng.integers(0, len(labels), job.batch)
        half = job.batch // 2
        with torch.autocast("cpu", torch.bfloat16):
            with torch.no_grad():
                made = tokenizer.decode(tokens[chosen[half:]]).float().clamp(-1, 1)
            x = torch.cat([to_pictures(pixels[chosen[:half]]), made])
            if rng.random() < 0.5:
                x = x.flip(3)  # every shape is its own mirror image
            # A little elsewhere: the thing is not always where training put it.
            x = torch.roll(x, tuple(rng.integers(-6, 7, 2)), (2, 3)).to(memory_format=torch.channels_last)
            logits = net(x).float()
        wanted = torch.from_numpy(labels[chosen])
        right = (logits.argmax(1) == wanted).float().mean().item()
        return F.cross_entropy(logits, wanted, label_smoothing=0.05), {"right": right}

    def finish():
        net.eval()
        wanted, _, shown = class_pictures(job, test=True)
        x = to_pictures(shown)
        scores = {
            "held_out_accuracy": net(x),
            "held_out_accuracy_through_kl": net(tokenizer.decode(tokenizer.encode(x))),
        }
        figures = {k: float((v.argmax(1).numpy() == wanted).mean()) for k, v in scores.items()}
        return figures, {"classes": list(CLASSES)}

    return Recipe(net, loss, finish, stream=(9,), peak=3e-3, average=0.99, every=100)
