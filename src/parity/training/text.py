"""Recipe of the embedded text encoder: T5, taught to say from the mean of its outputs what a caption describes.

The published model's encoder is pretrained on text; this is the small stand-in. The mean is what matters: LlamaGen's
keys at caption positions are zero vectors, so every image token attends to the caption uniformly and reads nothing but
an average. Which colour belongs to the ground and which to a thing must therefore stand in each position's own
embedding.
"""

import torch
import torch.nn.functional as F
from torch import nn

from parity.embedded import scenes
from parity.embedded.tokenizer import PREFIX, token_ids
from parity.models.discrete.t5 import t5_encoder
from parity.training.data import FIRST, FIRST_TEST
from parity.training.recipe import Job, Recipe

KIND = "discrete"
DATA = "scenes"
EXAMPLES = 20_000
RUN = {"text": (1200, 128)}  # steps, batch
INSTALLED = {"text": "t5"}
CARDS = {
    "text": "Text encoder: a two-layer T5 encoder over the words of the Scenes grammar, taught to describe"
    " captions (recipe `text`).",
}
NONE = ("",)
OF_THINGS = {
    "shape": scenes.SHAPES,
    "colour": tuple(scenes.COLOURS),
    "texture": scenes.TEXTURES,
    "size": tuple(scenes.SIZES),
}
QUESTIONS = {
    "ground": tuple(scenes.COLOURS),
    "background": scenes.BACKGROUNDS,
    "relation": (*scenes.RELATIONS, *NONE),
    "count": (*scenes.COUNTS, *NONE),
    **{f"{what}{i}": (*options, *NONE) for i in (0, 1) for what, options in OF_THINGS.items()},
}


def answers(scene: scenes.Scene) -> list[int]:
    """The index of each question's answer."""
    words = {"ground": scene.ground, "background": scene.background, "relation": scene.relation, "count": scene.count}
    for i in (0, 1):
        for what in OF_THINGS:
            words[f"{what}{i}"] = getattr(scene.things[i], what) if i < len(scene.things) else ""
    return [options.index(words[question]) for question, options in QUESTIONS.items()]


def recipe(job: Job) -> Recipe:
    """Its log ends with the share of held-out questions answered right. The heads that answer are not written."""

    def asked(first, count, test):
        scene_list = [scenes.draw_scene(first + i, test=test)[0] for i in range(count)]
        return *token_ids([s.caption for s in scene_list], PREFIX), torch.tensor([answers(s) for s in scene_list])

    ids, valid, labels = asked(FIRST, job.examples, False)
    torch.manual_seed(job.seed)
    t5 = t5_encoder()
    heads = nn.ModuleDict({q: nn.Linear(t5.config.d_model, len(options)) for q, options in QUESTIONS.items()})

    def describe(ids, valid):
        hidden = t5(input_ids=ids, attention_mask=valid).last_hidden_state
        mean = (hidden * valid[..., None]).sum(1) / valid.sum(1, keepdim=True)
        return [head(mean) for head in heads.values()]

    def right(logits, labels):
        return torch.stack([x.argmax(-1) == labels[:, k] for k, x in enumerate(logits)]).float().mean().item()

    def loss(step, rng):
        rows = torch.from_numpy(rng.integers(0, job.examples, job.batch))
        logits, wanted = describe(ids[rows], valid[rows]), labels[rows]
        nats = [F.cross_entropy(x, wanted[:, k]) for k, x in enumerate(logits)]
        return torch.stack(nats).sum(), {"right": right(logits, wanted)}

    def finish():
        *told, wanted = asked(FIRST_TEST, 500, True)
        return {"held_out_right": right(describe(*told), wanted)}, t5.config.to_dict()

    net = nn.ModuleDict({"t5": t5, "heads": heads})
    return Recipe(net, loss, finish, stream=(4,), peak=2e-3, average=0.0, published=t5)
