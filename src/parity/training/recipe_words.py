"""The recipes of the embedded text models, as commands; `snakemake train_words` chains them.

    python -m parity.embedded.recipe_words xlnet --work results/training --steps 3000 --batch 16 --threads 1
    python -m parity.embedded.recipe_words xlnet --scheme '{"permutations": 1}' ...        the ablation over all orders
    python -m parity.embedded.recipe_words install --work results/training        weights, digests and model cards into the package

Each is seeded and resumes from its last checkpoint, which is replaced whole every three minutes.
"""

import argparse
import importlib
import json
from pathlib import Path

from parity.base.command import one_line, pin_threads
from parity.base.files import write_json
from parity.experiment.config import EMBEDDED
from parity.training.anysubset import Scheme
from parity.training.recipe import install

EXAMPLES = 30_000  # texts of 128 words
RECIPES = {"xlnet": "anysubset", "judge": "judge"}
CARDS = {
    "xlnet": "Any-subset text model: transformers' XLNet at small scale, trained with the joint conditional loss (recipe `train_anysubset`).",
    "judge": "Judge of generative perplexity: transformers' GPT-2 at small scale over the same words (recipe `train_judge`).",
}


def words_data(name: str, run: dict) -> str:
    return (
        f"Stories and Snippets, {run['examples']:,} procedural texts of 128 words (src/parity/embedded/stories.py);"
        " pairs (happening, thing) and (first step, second step) whose hash is 0 modulo 8 held out"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=[*RECIPES, "install"])
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=EMBEDDED.parent / "anysubset")
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--batch", type=int, default=0)
    parser.add_argument("--examples", type=int, default=EXAMPLES)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--scheme",
        type=json.loads,
        default={},
        help="JSON of `train_anysubset.Scheme`'s fields, for the ablations (xlnet)",
    )
    a = parser.parse_args()
    pin_threads(a.threads)
    fields = list(Scheme.__dataclass_fields__)
    if a.what == "install":
        install(a.work, a.out, CARDS, words_data)
    elif wrong := sorted(set(a.scheme) - set(fields)):
        raise ValueError(f"--scheme {wrong[0]}: unknown key; allowed: {', '.join(fields)}")
    elif a.steps < 1 or a.batch < 1:
        raise ValueError(f"--steps {a.steps} --batch {a.batch}: allowed: at least 1 each")
    else:
        settings = {"steps": a.steps, "batch": a.batch, "examples": a.examples, "seed": a.seed}
        recipe = importlib.import_module(f"parity.training.{RECIPES[a.what]}").main
        given = {"scheme": Scheme(**a.scheme)} if a.what == "xlnet" else {}
        log = recipe(work=a.work, out=a.work / f"{a.what}.safetensors", processes=a.threads, **given, **settings)
        write_json(a.work / f"{a.what}.json", {"log": log, "threads": a.threads, **settings})


if __name__ == "__main__":
    one_line(main)
