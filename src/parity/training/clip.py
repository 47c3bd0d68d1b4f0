"""Recipe of the embedded CLIP (an open_clip model from a custom configuration) on Scenes."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from parity.metrics.networks.clip import CONTEXT, MODEL_CONFIG, build
from parity.models.discrete.text import token_ids
from parity.training.loop import publish, scene_arrays, to_pictures, train


def retrieval(clip: Any, captions: list[str], pixels: np.ndarray) -> float:
    """Share of pictures whose own caption is the nearest of 100, over disjoint groups of 100 distinct captions."""
    hits = []
    with torch.inference_mode():
        for i in range(0, len(captions) - 99, 100):
            image = F.normalize(clip.encode_image(to_pictures(pixels[i : i + 100])), dim=-1)
            text = F.normalize(clip.encode_text(token_ids(captions[i : i + 100], CONTEXT)[0]), dim=-1)
            hits.append(((image @ text.T).argmax(1) == torch.arange(100)).float().mean().item())
    return float(np.mean(hits))


def main(
    work: Path, out: Path, steps: int, batch: int, examples: int, seed: int, processes: int
) -> list[dict[str, float]]:
    """Train, write `out`, return the log; the last row holds the held-out retrieval rate (1 of 100)."""
    captions, pixels = scene_arrays(work, 1_000_000, examples, test=False, processes=processes)
    ids, _ = token_ids(captions, CONTEXT)
    torch.manual_seed(seed)
    clip = build()

    def loss(step):
        rows = np.random.default_rng([seed, step, 2]).integers(0, len(pixels), batch)
        with torch.autocast("cpu", torch.bfloat16):
            image = F.normalize(clip.encode_image(to_pictures(pixels[rows])).float(), dim=-1)
            text = F.normalize(clip.encode_text(ids[rows]).float(), dim=-1)
        logits = clip.logit_scale.exp().clamp(max=100) * image @ text.T
        same = torch.from_numpy(
            (ids[rows][:, None] == ids[rows][None]).all(-1).numpy()
        )  # equal captions are not each other's negatives
        logits = logits.masked_fill(same & ~torch.eye(batch, dtype=torch.bool), float("-inf"))
        labels = torch.arange(batch)
        value = (F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels)) / 2
        return value, {
            "hits": (logits.argmax(1) == labels).float().mean().item(),
            "scale": clip.logit_scale.exp().item(),
        }

    log = []
    for row in train(
        {"clip": clip}, loss, steps=steps, peak=1e-3, checkpoint=work / "clip.pt", weight_decay=0.1, average=0.995
    ):
        print(row, flush=True)
        log.append(row)
    clip.eval()
    test_captions, test_pixels = scene_arrays(work, 3_000_000, 1000, test=True, processes=processes)
    distinct = list({c: i for i, c in enumerate(test_captions)}.values())
    log.append({"retrieval": retrieval(clip, [test_captions[i] for i in distinct], test_pixels[distinct])})
    print(log[-1], flush=True)
    publish(clip, out, MODEL_CONFIG)
    return log
