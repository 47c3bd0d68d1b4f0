"""How an any-subset model is best trained: the ablations of Guo & Ermon 2025 (Figures 3 to 6) on the embedded grammar.

    python benchmarks/arm_training.py --keep arm-training

Each run differs in one thing from `lattice`: a network pretrained as XLNet is (any order, a fifth of the words masked),
then trained by the schedule of section E.2 on short texts. Along training, held-out texts of which 95 % is masked are
filled in by `assd` and judged by the model that ships: generative perplexity, entropy (bits) and passes (NFE) a text.
"""

import argparse
import copy
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from docs_figures import keep_benchmark
from parity_decoders.anysubset.assd import assd
from parity_decoders.protocols.anysubset import make_infilling

from parity.base.files import sums
from parity.base.row_noise import batch_noise
from parity.decode.anysubset import record
from parity.embedded import WEIGHTS, stories
from parity.metrics.text_likelihood import perplexities
from parity.metrics.text_quality import entropy
from parity.models.anysubset.load import Loaded, load
from parity.models.anysubset.xlnet import CachedXLNet, xlnet
from parity.train import loop
from parity.train.joint import JointLesson, Scheme
from parity.train.texts import draw_rows

LENGTH, BATCH, RATE = 64, 16, 2e-3
WIDTH, LAYERS, HEADS = 64, 3, 4
TEXTS, MASKED = 32, 0.95  # held-out texts that are filled in
PRETRAINING = Scheme(start=0.2, low=0.1, high=0.2, warmup=0, permutations=1)
LATTICE = Scheme(start=0.15, low=0.90, high=0.99, permutations=0)
RUNS = {  # the figure that compares a run with `lattice`, what it is there, its scheme, and whether it is pretrained
    "lattice": ("3 to 6", "lattice, 1 to 10 % given, warm-up, pretrained", LATTICE, True),
    "permutations": ("3", "any order", replace(LATTICE, permutations=1), True),
    "wide": ("4", "1 to 85 % given", replace(LATTICE, low=0.15), True),
    "no-warmup": ("5", "no warm-up of the masking rate", replace(LATTICE, start=0.90), True),
    "scratch": ("6", "new weights", LATTICE, False),
}


def load_judge() -> Loaded:
    """Load the judge that ships with the package."""
    file = WEIGHTS / "anysubset/judge.safetensors"
    manifest = {"family": "xlnet", "source": "embedded", "files": {"judge": str(file)}}
    return load(manifest | {"sha256": {"judge": sums(file.parent)[file.name]}})


class Ablation:
    """Runs that share their texts, their judge and their pretrained network."""

    def __init__(self, steps: int, points: int, examples: int, seed: int):
        """Draw the texts. points: measurements along a run."""
        numbers = {word: i for i, word in enumerate(stories.list_words())}
        self.steps, self.points, self.seed = steps, points, seed
        self.rows = draw_rows(numbers, examples, LENGTH)
        self.held_out = torch.from_numpy(draw_rows(numbers, TEXTS, LENGTH, test=True)).long()
        self.judge = load_judge()
        rng = np.random.default_rng(seed)
        shown = max(1, round((1 - MASKED) * LENGTH))
        self.known = torch.from_numpy(rng.random((TEXTS, LENGTH)).argsort(1).argsort(1) < shown)

    def decode(self, net: Any) -> dict[str, float]:
        """Fill in the held-out texts by `assd`; measure their perplexity, entropy and passes, means over texts."""
        model = CachedXLNet(net.state_dict(), net.config.to_diff_dict(), 0)
        start = make_infilling(self.held_out, self.known, 0, model.vocab)
        noise = batch_noise(self.seed, [str(i) for i in range(TEXTS)])
        filled = record(model, start, assd(model, start, noise=noise))
        judged = perplexities(self.judge.gpt2, filled.tokens, start.end, 0, self.judge.judge_words.separator)
        bits = [entropy(row) for row in filled.tokens.numpy()]
        figures = {"perplexity": np.median(judged), "entropy": np.mean(bits), "nfe": filled.nfe.double().mean()}
        return {name: float(value) for name, value in figures.items()}

    def train(self, net: Any, name: str, scheme: Scheme, steps: int) -> list[dict[str, float]]:
        """Train a network by a scheme, whose warm-up is a fifteenth of the steps, as the learning rate's; return the
        measurements along training."""
        warmup = max(1, steps // 15)
        scheme = replace(scheme, warmup=0 if name == "no-warmup" else warmup)
        lesson = JointLesson(net, self.rows, self.held_out, scheme, BATCH, BATCH, seed=self.seed)
        every = max(1, steps // self.points)
        recipe = loop.Recipe(
            *(net, lesson.compute_loss, lambda: ({}, {}), (9,)),
            peak=RATE,
            average=0.9,
            warmup=warmup,
            linear=True,
            held_out=lambda: {"held_out": lesson.measure()} | self.decode(net),
            held_out_every=every,
            log_every=every,
        )
        with tempfile.TemporaryDirectory() as folder:
            log = loop.fit(recipe, loop.Job(name, Path(folder), steps, BATCH, len(self.rows), self.seed))
        return [row for row in log if "held_out" in row]

    def run(self) -> Iterator[dict[str, Any]]:
        """Pretrain, then train each run; yield a row a measurement."""
        torch.manual_seed(self.seed)
        new = xlnet(len(stories.list_words()), WIDTH, LAYERS, HEADS)
        pretrained = copy.deepcopy(new)
        self.train(pretrained, "pretraining", PRETRAINING, self.steps)
        for name, (figure, what, scheme, is_pretrained) in RUNS.items():
            net = copy.deepcopy(pretrained if is_pretrained else new)
            for row in self.train(net, name, scheme, self.steps):
                kept = {key: round(value, 4) for key, value in row.items() if key not in ("step", "minutes")}
                yield {"run": name, "figure": figure, "what": what, "step": row["step"], **kept}


def main() -> None:
    """Run all; print the rows, and keep them in docs/figures if --keep names the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("steps", 600), ("points", 6), ("examples", 4000), ("seed", 0), ("threads", 1)):
        parser.add_argument(f"--{name}", type=int, default=default, help="(%(default)s)")
    parser.add_argument("--keep", default="", help="name of the table in docs/figures")
    a = parser.parse_args()
    torch.set_num_threads(a.threads)
    rows = []
    for row in Ablation(a.steps, a.points, a.examples, a.seed).run():
        rows.append(row)
        print(row, flush=True)
    if a.keep:
        keep_benchmark(a.keep, rows)


if __name__ == "__main__":
    main()
