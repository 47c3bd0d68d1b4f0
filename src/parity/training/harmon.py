"""Recipe of the embedded Harmon pair (draft and target): pictures of one large plain thing with their captions."""

from dataclasses import replace
from typing import Any

from torch import Tensor

from parity.embedded.tokenizer import PREFIX, VOCAB, token_ids
from parity.models.continuous.harmon import HarmonConfig, HarmonNet
from parity.training.data import class_latents, class_pictures
from parity.training.latents import latents_recipe, masked_loss
from parity.training.recipe import Job, Recipe

KIND = "continuous"
DATA = "classes"
EXAMPLES = 20_000
READS = ("kl",)
RUN = {"harmon": (6000, 32), "harmon-draft": (2000, 32)}  # steps, batch
CARDS = {
    "harmon": "Harmon at small scale: MAR around a Qwen2-type language model, captions of one large plain"
    " thing, over the tokens of `kl`: the target.",
    "harmon-draft": "Draft model of `harmon`.",
}
DRAWING = {"classes": 1, "grid": 8, "width": 128, "encoder": 2, "decoder": 2, "heads": 4, "buffer": 8}
LANGUAGE = {"vocab": VOCAB, "hidden": 128, "intermediate": 384, "layers": 2, "attention_heads": 4, "key_value_heads": 2}
NO_CAPTION = tuple(token_ids([""], 1)[0][0].tolist())
CONFIG = HarmonConfig(**DRAWING, **LANGUAGE, head_width=160, head_depth=3, without=NO_CAPTION)
DRAFT: dict[str, Any] = {"width": 64, "head_width": 80, "head_depth": 2, "hidden": 64, "intermediate": 192}
CONFIGS = {"harmon": CONFIG, "harmon-draft": replace(CONFIG, **DRAFT)}


def prompts(captions: list[str]) -> Tensor:
    """Token ids [B, PREFIX], -1 for padding."""
    ids, valid = token_ids(captions, PREFIX)
    return ids.masked_fill(valid == 0, -1)


def caption_latents(job: Job, test: bool) -> tuple[Tensor, Tensor]:
    """Tokens float32 [n, L, D] and prompts [n, PREFIX] of class-conditional Scenes."""
    return class_latents(job, test)[0], prompts(class_pictures(job, test)[1])


def recipe(job: Job) -> Recipe:
    """Its log: the diffusion loss on training and on held-out pictures."""
    return latents_recipe(
        job,
        HarmonNet,
        CONFIGS[job.name],
        masked_loss,
        stream=12,
        hidden=r"_blocks\.|\.layers\.",
        tested=((0, 13), (1, 13)),
        data=caption_latents,
    )
