"""Passes with speculators that `parity train` made of the embedded model, beside those with the ones it ships with.

    parity train heads --prompts captions.txt --out speculators
    python benchmarks/speculators.py speculators/heads.yaml [--images 64] [--keep speculator-passes]

Captions are held out from training. Intervals are 95 % normal ones over images; of the ratio image by image. What is
kept has also the evaluations of the training: minutes, nats, and passes of a few held-out rows.
"""

from pathlib import Path
from typing import Any

import numpy as np
from common import parse_flags
from docs_figures import keep_benchmark

from parity.base.files import read_json
from parity.generate import load
from parity.train.speculators import FIGURES

OPTIONS = {  # 32 nodes a pass, as in config.yaml
    "mtj_heads": {"window": 16, "branches": 16},
    "mtj_draft": {"window": 16, "branches": 16, "rounds": 1},
    "eagle": {"total": 31, "depth": 4, "top_k": 6},
}


def read_evaluations(file: Path, method: str) -> list[dict[str, Any]]:
    """Read the evaluations of a speculator from the log beside its experiment `file`, a row each."""
    record = read_json(file.with_suffix(".json"))
    rows = [row for row in record["log"] if "step" in row and "passes" in row]
    return [
        {
            "label": f"{method}, step {row['step']:.0f}", "step": row["step"], "batch": record["batch"],
            "minutes": row["minutes"], "passes": row["passes"], "without": row["passes_without"],
            "nats": sum(value for name, value in row.items() if name not in FIGURES),
        }
        for row in rows
    ]  # fmt: skip


def main() -> None:
    """Decode the captions with each pair of speculators, and print passes and their ratio."""
    a = parse_flags(__doc__, [], images=64, keep="")
    kept: list[dict[str, Any]] = []
    captions = Path("prompts/scenes.txt").read_text().splitlines()[: a.images]
    shipped = load("", "config.yaml")
    for file in a.variants:
        trained = load("", file)
        method = next(name for name in OPTIONS if name in trained.config.image.methods)  # type: ignore[union-attr]
        passes = []
        for generator in (shipped, trained):
            made = generator.generate(captions, method=method, seed=0, batch=len(captions), **OPTIONS[method])
            passes.append(np.array([image.passes for image in made]))
        old, new = passes
        ratio = new.mean() / old.mean()
        spread = 1.96 * (new - ratio * old).std(ddof=1) / len(old) ** 0.5 / old.mean()
        print(
            f"{method}: {old.mean():.1f} passes shipped, {new.mean():.1f} trained, {ratio:.3f} +- {spread:.3f}",
            flush=True,
        )
        kept += read_evaluations(Path(file), method)
        row = {"label": method, "images": len(old), "passes": new.mean(), "shipped": old.mean()}
        kept.append(row | {"ratio": ratio, "spread": spread, "minutes": kept[-1]["minutes"]})
    if a.keep:
        keep_benchmark(a.keep, kept)


if __name__ == "__main__":
    main()
