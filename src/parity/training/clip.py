"""Recipe of the embedded CLIP (an open_clip model from a custom configuration) on Scenes."""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from parity.embedded.tokenizer import token_ids
from parity.metrics.networks.clip import CONTEXT, MODEL_CONFIG, build
from parity.training.data import pictures, to_pictures
from parity.training.recipe import Job, Recipe

KIND = "discrete"
DATA = "scenes"
EXAMPLES = 48_000
RUN = {"clip": (450, 128)}  # steps, batch
CARDS = {
    "clip": "CLIP (open_clip, custom configuration) for CLIP-score and as the feature extractor of FID, KID,"
    " precision and recall.",
}


def retrieval(clip: Any, captions: list[str], pixels: np.ndarray) -> float:
    """Share of pictures whose own caption is the nearest of 100, over disjoint groups of 100 distinct captions."""
    hits = []
    for i in range(0, len(captions) - 99, 100):
        image = F.normalize(clip.encode_image(to_pictures(pixels[i : i + 100])), dim=-1)
        text = F.normalize(clip.encode_text(token_ids(captions[i : i + 100], CONTEXT)[0]), dim=-1)
        hits.append(((image @ text.T).argmax(1) == torch.arange(100)).float().mean().item())
    return float(np.mean(hits))


def recipe(job: Job) -> Recipe:
    """Its log ends with the held-out retrieval rate (1 of 100)."""
    captions, pixels = pictures(job)
    ids, _ = token_ids(captions, CONTEXT)
    torch.manual_seed(job.seed)
    clip = build()

    def loss(step, rng):
        rows = rng.integers(0, len(pixels), job.batch)
        with torch.autocast("cpu", torch.bfloat16):
            image = F.normalize(clip.encode_image(to_pictures(pixels[rows])).float(), dim=-1)
            text = F.normalize(clip.encode_text(ids[rows]).float(), dim=-1)
        logits = clip.logit_scale.exp().clamp(max=100) * image @ text.T
        # Equal captions are not each other's negatives.
        same = torch.from_numpy((ids[rows][:, None] == ids[rows][None]).all(-1).numpy())
        logits = logits.masked_fill(same & ~torch.eye(job.batch, dtype=torch.bool), float("-inf"))
        labels = torch.arange(job.batch)
        value = (F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels)) / 2
        hits = (logits.argmax(1) == labels).float().mean().item()
        return value, {"hits": hits, "scale": clip.logit_scale.exp().item()}

    def finish():
        clip.eval()
        captions, shown = pictures(job, test=True)
        distinct = list({caption: i for i, caption in enumerate(captions)}.values())
        return {"retrieval": retrieval(clip, [captions[i] for i in distinct], shown[distinct])}, MODEL_CONFIG

    return Recipe(clip, loss, finish, stream=(2,), peak=1e-3, weight_decay=0.1, average=0.995)
