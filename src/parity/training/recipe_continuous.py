"""The recipes of the embedded continuous models, as commands; `snakemake train_continuous` chains them.

    python -m parity.embedded.recipe_continuous mar --work results/training --steps 2200 --batch 64 --threads 1
    python -m parity.embedded.recipe_continuous install --work results/training        weights, digests and model cards into the package

Each is seeded and resumes from its last checkpoint, which is replaced whole every three minutes.
"""

import argparse
import importlib
from pathlib import Path
from typing import Any

from parity.base.command import one_line, pin_threads
from parity.base.files import write_json
from parity.experiment.config import EMBEDDED
from parity.training.recipe import EXAMPLES as PICTURES
from parity.training.recipe import install

EXAMPLES = 20_000  # class-conditional pictures; the autoencoder sees all kinds of Scenes

CARDS = {
    "kl": "Image tokenizer: a KL autoencoder (MAR's KL-16 at small scale). Pictures 64x64 to 8x8 tokens of 16 numbers and back.",
    "classifier": "Scenes classifier: which of 60 shapes and colours a picture of one large plain thing shows; for the Inception Score and class accuracy.",
    "mar": "MAR at small scale, class-conditional, over the tokens of `kl`: the target.",
    "mar-draft": "Draft model of `mar`: the same architecture, a quarter of the parameters.",
    "xar": "xAR at small scale (cells of one token), class-conditional, over the tokens of `kl`: the target.",
    "xar-draft": "Draft model of `xar`.",
    "harmon": "Harmon at small scale: MAR around a Qwen2-type language model, captions of one large plain thing, over the tokens of `kl`: the target.",
    "harmon-draft": "Draft model of `harmon`.",
    "gmm": "Causal transformer with a Gaussian-mixture head, class-conditional, over the tokens of `kl` with noise of deviation 0.15: the target.",
    "gmm-draft": "Draft model of `gmm`.",
}


def pictures_data(name: str, run: dict) -> str:
    kind, file = ("Scenes", "scenes") if name == "kl" else ("class-conditional Scenes", "classes")
    return f"{kind}, {run['examples']:,} procedural pictures (src/parity/embedded/{file}.py); captions whose hash is 0 modulo 8 held out"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=[*CARDS, "install"])
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=EMBEDDED.parent / "continuous")
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--batch", type=int, default=0)
    parser.add_argument("--examples", type=int, default=0, help=f"0: {PICTURES:,} for kl, {EXAMPLES:,} for the others")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    a = parser.parse_args()
    pin_threads(a.threads)
    if a.what == "install":
        install(a.work, a.out, CARDS, pictures_data)
    elif a.steps < 1 or a.batch < 1:
        raise ValueError(f"--steps {a.steps} --batch {a.batch}: allowed: at least 1 each")
    else:
        settings: dict[str, Any] = {
            "steps": a.steps,
            "batch": a.batch,
            "examples": a.examples or (PICTURES if a.what == "kl" else EXAMPLES),
            "seed": a.seed,
        }
        module = importlib.import_module(f"parity.training.{a.what.removesuffix('-draft')}")
        given = {} if a.what == "kl" else {"kl_file": a.work / "kl.safetensors"}
        if hasattr(module, "CONFIGS"):
            given["config"] = module.CONFIGS[a.what]
        log = module.main(work=a.work, out=a.work / f"{a.what}.safetensors", processes=a.threads, **given, **settings)
        write_json(a.work / f"{a.what}.json", {"log": log, "threads": a.threads, **settings})


if __name__ == "__main__":
    one_line(main)
