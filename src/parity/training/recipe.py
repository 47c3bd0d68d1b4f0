"""The recipes of the embedded models, as commands; `snakemake train_embedded` chains them.

    python -m parity.embedded.recipe vq --work results/training --steps 2800 --batch 48 --threads 2
    python -m parity.embedded.recipe install --work results/training        weights, digests and model cards into the package

Each is seeded and resumes from its last checkpoint, which is replaced whole every three minutes.
"""

import argparse
import hashlib
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from parity.base.command import one_line, pin_threads
from parity.base.files import publish, read_json, write_json
from parity.experiment.config import EMBEDDED

EXAMPLES = 48_000  # pictures of the training set
LLAMAGENS = ("llamagen", "draft", "llamagen8")  # one recipe, three sizes

CARDS = {
    "vq": "Image tokenizer: LlamaGen's VQ at small scale. Pictures 64x64 to 16x16 tokens and back.",
    "t5": "Text encoder: a two-layer T5 encoder over the words of the Scenes grammar, taught to describe captions (recipe `text`).",
    "llamagen": "Autoregressive transformer: LlamaGen at small scale over the tokens of `vq`, captions through `t5`.",
    "draft": "Draft model of `llamagen`, for speculative sampling: the same architecture, smaller, over the same tokens and captions.",
    "drafter": "EAGLE drafter of `llamagen`: one layer that continues its features; the header names the target by its SHA-256.",
    "llamagen8": "Autoregressive transformer over 8x8 tokens: `llamagen` in all but the grid, on pictures reduced to 32x32 by 2x2 means.",
    "clip": "CLIP (open_clip, custom configuration) for CLIP-score and as the feature extractor of FID, KID, precision and recall.",
}


def log_table(log: list[dict]) -> list[str]:
    """Lines of Markdown: what was measured at the end, then about eight rows of the log."""
    rows = [r for r in log if "step" in r]
    shown = [r for i, r in enumerate(rows) if i % max(1, len(rows) // 8) == 0 or i == len(rows) - 1]
    columns = list(dict.fromkeys(k for r in rows for k in r))
    table = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    table += ["| " + " | ".join(f"{r[c]:.4g}" if c in r else "" for c in columns) + " |" for r in shown]
    results = [f"- {k}: {v:.4g}" for r in log if "step" not in r for k, v in r.items()]
    return [*results, "", *table, ""]


def card(name: str, what: str, data: str, run: dict) -> str:
    """A model card in Markdown: what it is, the data, and what the run recorded."""
    facts = [
        f"# {name}",
        "",
        what,
        "",
        f"- data: {data}",
        f"- steps: {run['steps']:,} of batch {run['batch']}; seed {run['seed']}; threads {run['threads']}",
        "- licence: that of this repository; made from nothing but its code",
        *(f"- {note}" for note in run.get("notes", [])),
    ]
    return "\n".join([*facts, *log_table(run["log"])])


def train(name: str, a: argparse.Namespace) -> None:
    """Run one recipe and write its log beside its weights."""
    settings = {"steps": a.steps, "batch": a.batch, "examples": a.examples, "seed": a.seed}
    files: dict[str, Any] = {"out": a.work / f"{name}.safetensors"}
    module = importlib.import_module(f"parity.training.{'llamagen' if name in LLAMAGENS else name}")
    if name in LLAMAGENS:
        files |= {"vq_file": a.work / "vq.safetensors", "text_file": a.work / "text.safetensors"}
        files |= {"t5_out": a.work / "t5.safetensors" if name == "llamagen" else None, "config": module.CONFIGS[name]}
    if name == "drafter":
        files |= {
            f"{what}_file": a.work / f"{file}.safetensors"
            for what, file in (("vq", "vq"), ("target", "llamagen"), ("t5", "t5"))
        }
    log = module.main(work=a.work, processes=a.threads, **files, **settings)
    write_json(a.work / f"{name}.json", {"log": log, "threads": a.threads, **settings})


def install(
    work: Path, out: Path, cards: dict[str, str], data: Callable[[str, dict], str], run_of: Callable[[str], str] = str
) -> None:
    """Copy the trained weights named in `cards` into the package with a card each; SHA256SUMS last, for it is what the workflow reads.

    data(name, run) says what it was trained on; run_of(name) names the run that made it.
    """
    sums = []
    for name, what in cards.items():
        file, run = work / f"{name}.safetensors", read_json(work / f"{run_of(name)}.json")
        publish(out / file.name, file.read_bytes())
        publish(out / f"{name}.md", card(name, what, data(name, run), run).encode())
        sums.append(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}")
    publish(out / "SHA256SUMS", ("\n".join(sums) + "\n").encode())


def scenes_data(name: str, run: dict) -> str:
    return f"Scenes, {run['examples']:,} procedural pictures (src/parity/embedded/scenes.py); captions whose hash is 0 modulo 8 held out"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=["vq", "text", "clip", *LLAMAGENS, "drafter", "install"])
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=EMBEDDED)
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--batch", type=int, default=0)
    parser.add_argument("--examples", type=int, default=EXAMPLES)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    a = parser.parse_args()
    pin_threads(a.threads)
    if a.what == "install":
        install(a.work, a.out, CARDS, scenes_data, lambda name: "llamagen" if name == "t5" else name)
    elif a.steps < 1 or a.batch < 1:
        raise ValueError(f"--steps {a.steps} --batch {a.batch}: allowed: at least 1 each")
    else:
        train(a.what, a)


if __name__ == "__main__":
    one_line(main)
