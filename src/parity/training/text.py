"""Recipe of the embedded text encoder: a T5 encoder taught to say, from the mean of its outputs, what a caption describes.

The published model's encoder is pretrained on text; this is the small stand-in. The mean is what matters: LlamaGen's keys at caption
positions are zero vectors, so every image token attends to the caption uniformly and reads nothing but an average. Which colour belongs
to the ground and which to a thing must therefore stand in each position's own embedding.
"""

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from parity.embedded import scenes
from parity.models.discrete.text import PREFIX, t5_encoder, token_ids
from parity.training.loop import publish, train

NONE = ("",)
QUESTIONS = {
    "ground": tuple(scenes.COLOURS),
    "background": scenes.BACKGROUNDS,
    "relation": (*scenes.RELATIONS, *NONE),
    "count": (*scenes.COUNTS, *NONE),
    **{f"{kind}{i}": (*options, *NONE) for i in (0, 1) for kind, options in (
        ("shape", scenes.SHAPES), ("colour", tuple(scenes.COLOURS)), ("texture", scenes.TEXTURES), ("size", tuple(scenes.SIZES))
    )},
}  # fmt: skip


def answers(scene: scenes.Scene) -> list[int]:
    """The index of each question's answer."""
    found = {"ground": scene.ground, "background": scene.background, "relation": scene.relation, "count": scene.count}
    for i in (0, 1):
        for kind in ("shape", "colour", "texture", "size"):
            found[f"{kind}{i}"] = getattr(scene.things[i], kind) if i < len(scene.things) else ""
    return [options.index(found[question]) for question, options in QUESTIONS.items()]


def main(
    work: Path, out: Path, steps: int, batch: int, examples: int, seed: int, processes: int
) -> list[dict[str, float]]:
    """Train, write `out`, return the log; the last row holds the share of held-out questions answered right."""
    drawn = [scenes.draw_scene(1_000_000 + i, test=False)[0] for i in range(examples)]
    ids, valid = token_ids([s.caption for s in drawn], PREFIX)
    labels = torch.tensor([answers(s) for s in drawn])
    torch.manual_seed(seed)
    t5 = t5_encoder()
    heads = nn.ModuleDict({q: nn.Linear(t5.config.d_model, len(options)) for q, options in QUESTIONS.items()})

    def said(ids, valid):
        hidden = t5(input_ids=ids, attention_mask=valid).last_hidden_state
        mean = (hidden * valid[..., None]).sum(1) / valid.sum(1, keepdim=True)
        return [head(mean) for head in heads.values()]

    def loss(step):
        rows = torch.from_numpy(np.random.default_rng([seed, step, 4]).integers(0, examples, batch))
        logits = said(ids[rows], valid[rows])
        right = torch.stack([x.argmax(-1) == labels[rows, k] for k, x in enumerate(logits)]).float().mean().item()
        return torch.stack([F.cross_entropy(x, labels[rows, k]) for k, x in enumerate(logits)]).sum(), {"right": right}

    log = []
    for row in train({"t5": t5, "heads": heads}, loss, steps=steps, peak=2e-3, checkpoint=work / "text.pt"):
        print(row, flush=True)
        log.append(row)
    test = [scenes.draw_scene(3_000_000 + i, test=True)[0] for i in range(500)]
    with torch.inference_mode():
        logits = said(*token_ids([s.caption for s in test], PREFIX))
    wanted = torch.tensor([answers(s) for s in test])
    log.append(
        {
            "held_out_right": torch.stack([x.argmax(-1) == wanted[:, k] for k, x in enumerate(logits)])
            .float()
            .mean()
            .item()
        }
    )
    print(log[-1], flush=True)
    publish(t5, out, t5.config.to_dict())
    return log
