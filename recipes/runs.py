"""The recipes: what each learns from, how large its run is, and what the model card of its weights says. No torch here.

The recipe itself is the function of that name in `RECIPES` of `recipes.<kind>`. To add one, write the function
and its rows of SIZES and CARDS.
"""

import importlib
from dataclasses import dataclass
from typing import Any

INSTALLS = {"discrete": "train_embedded", "anysubset": "train_words", "continuous": "train_continuous"}  # of Snakemake
HELD_OUT = "captions whose hash is 0 modulo 8 held out"
DATA = {
    "scenes": f"Scenes, {{:,}} procedural images (src/parity/embedded/scenes.py); {HELD_OUT}",
    "classes": f"class-conditional Scenes, {{:,}} procedural images (src/parity/embedded/classes.py); {HELD_OUT}",
    "texts": "Stories and Snippets, {:,} procedural texts of 128 words (src/parity/embedded/stories.py); pairs"
    " (happening, thing) and (first step, second step) whose hash is 0 modulo 8 held out",
}


SIZES = {  # a recipe's kind of model, data, examples, steps, batch, threads, and the recipes whose weights it reads
    "vq": ("discrete", "scenes", 48_000, 2800, 48, 2, ()),
    "text": ("discrete", "scenes", 20_000, 1200, 128, 1, ()),
    "llamagen": ("discrete", "scenes", 130_000, 6600, 256, 2, ("vq", "text")),
    "draft": ("discrete", "scenes", 130_000, 1400, 128, 1, ("vq", "text", "llamagen")),
    "heads": ("discrete", "scenes", 130_000, 1600, 128, 1, ("vq", "text", "llamagen")),
    "llamagen8": ("discrete", "scenes", 48_000, 1500, 32, 1, ("vq", "text")),
    "drafter": ("discrete", "scenes", 130_000, 4000, 128, 1, ("vq", "text", "llamagen")),
    "clip": ("discrete", "scenes", 48_000, 450, 128, 1, ()),
    "kl": ("continuous", "scenes", 48_000, 4300, 48, 1, ()),
    "classifier": ("continuous", "classes", 20_000, 1000, 96, 1, ("kl",)),
    "mar": ("continuous", "classes", 20_000, 5450, 64, 1, ("kl",)),
    "mar-draft": ("continuous", "classes", 20_000, 1800, 64, 1, ("kl",)),
    "xar": ("continuous", "classes", 20_000, 5000, 32, 1, ("kl",)),
    "xar-draft": ("continuous", "classes", 20_000, 2500, 32, 1, ("kl",)),
    "harmon": ("continuous", "classes", 20_000, 6000, 32, 1, ("kl",)),
    "harmon-draft": ("continuous", "classes", 20_000, 2000, 32, 1, ("kl",)),
    "gmm": ("continuous", "classes", 20_000, 2500, 64, 1, ("kl",)),
    "gmm-draft": ("continuous", "classes", 20_000, 1500, 64, 1, ("kl",)),
    "xlnet": ("anysubset", "texts", 30_000, 3000, 16, 1, ()),
    "judge": ("anysubset", "texts", 30_000, 600, 16, 1, ()),
}
ON_DEVICES = ("llamagen", "llamagen8", "draft", "heads", "drafter")  # these recipes also run on a GPU
CARDS = {  # the first paragraph of each recipe's model card
    "vq": "Image tokenizer: LlamaGen's VQ at small scale. Images 64x64 to 16x16 tokens and back.",
    "text": "Text encoder: a two-layer T5 encoder over the words of the Scenes grammar, taught to describe captions"
    " (recipe `text`).",
    "llamagen": "Autoregressive transformer: LlamaGen at small scale over the tokens of `vq`, captions through `t5`.",
    "draft": "Draft model of `llamagen`, for speculative sampling: the same architecture, smaller, taught the target's"
    " guided distribution.",
    "heads": "Heads of `llamagen` that continue its features to the right and downwards, taught its guided"
    " distribution; the header names the target by its SHA-256.",
    "llamagen8": "Autoregressive transformer over 8x8 tokens: `llamagen` in all but the grid, on images reduced to"
    " 32x32 by 2x2 means.",
    "drafter": "EAGLE drafter of `llamagen`: one layer that continues its features; the header names the target by its"
    " SHA-256.",
    "clip": "CLIP (open_clip, custom configuration) for CLIP-score and as the feature extractor of FID, KID, precision"
    " and recall.",
    "kl": "Image tokenizer: a KL autoencoder (MAR's KL-16 at small scale). Images 64x64 to 8x8 tokens of 16 numbers"
    " and back.",
    "classifier": "Scenes classifier: which of 60 shapes and colours an image of one large plain thing shows; for the"
    " Inception Score and class accuracy.",
    "mar": "MAR at small scale, class-conditional, over the tokens of `kl`: the target.",
    "mar-draft": "Draft model of `mar`: the same architecture, a quarter of the parameters.",
    "xar": "xAR at small scale (cells of one token), class-conditional, over the tokens of `kl`: the target.",
    "xar-draft": "Draft model of `xar`.",
    "harmon": "Harmon at small scale: MAR around a Qwen2-type language model, captions of one large plain thing, over"
    " the tokens of `kl`: the target.",
    "harmon-draft": "Draft model of `harmon`.",
    "gmm": "Causal transformer with a Gaussian-mixture head, class-conditional, over the tokens of `kl` with noise of"
    " deviation 0.15: the target.",
    "gmm-draft": "Draft model of `gmm`.",
    "xlnet": "Any-subset text model: transformers' XLNet at small scale, trained with the joint conditional loss"
    " (recipe `xlnet`).",
    "judge": "Judge of generative perplexity: transformers' GPT-2 at small scale over the same words (recipe `judge`).",
}


@dataclass(frozen=True)
class Run:
    """A row of SIZES with its card; the command may change the numbers of steps, rows a step and examples."""

    name: str
    kind: str  # kind of model, which is also the module of its recipe and the folder that its weights are installed in
    data: str  # the key of DATA that describes what it is trained on
    examples: int
    steps: int
    batch: int
    threads: int
    reads: tuple[str, ...]
    card: str

    @property
    def weights_name(self) -> str:
        """Name the weights' file in the package, without suffix: the recipe's name, but "t5" for `text`."""
        return "t5" if self.name == "text" else self.name

    def make_recipe(self, job: Any) -> Any:
        """Make this run's `loop.Recipe` for a `loop.Job`; imports the recipe's module, and so torch."""
        return importlib.import_module(f"recipes.{self.kind}").RECIPES[self.name](job)


RUNS = {name: Run(name, *SIZES[name], card) for name, card in CARDS.items()}


def list_runs(kind: str) -> list[Run]:
    """List the runs of one kind of model, whose weights are installed together."""
    return [run for run in RUNS.values() if run.kind == kind]
