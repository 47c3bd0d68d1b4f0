"""Recipe of the embedded MAR pair (draft and target), on class-conditional Scenes."""

from dataclasses import replace

from parity.embedded.classes import CLASSES
from parity.models.continuous.mar import MARConfig, MARNet
from parity.training.latents import latents_recipe, masked_loss
from parity.training.recipe import Job, Recipe

KIND = "continuous"
DATA = "classes"
EXAMPLES = 20_000
READS = ("kl",)
RUN = {"mar": (5450, 64), "mar-draft": (1800, 64)}  # steps, batch
CARDS = {
    "mar": "MAR at small scale, class-conditional, over the tokens of `kl`: the target.",
    "mar-draft": "Draft model of `mar`: the same architecture, a quarter of the parameters.",
}
SIZES = {"grid": 8, "encoder": 3, "decoder": 3, "heads": 5, "buffer": 8}
CONFIG = MARConfig(classes=len(CLASSES), width=160, head_width=192, head_depth=3, **SIZES)
CONFIGS = {"mar": CONFIG, "mar-draft": replace(CONFIG, width=80, head_width=96, head_depth=2)}


def recipe(job: Job) -> Recipe:
    """Its log: the diffusion loss on training and on held-out pictures."""
    config, tested = CONFIGS[job.name], ((0, 8), (1, 8))
    return latents_recipe(job, MARNet, config, masked_loss, stream=7, hidden=r"_blocks\.", tested=tested)
