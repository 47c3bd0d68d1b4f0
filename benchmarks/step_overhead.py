"""Step overhead: what a decoder's step costs beyond the bare forward of the same shape.

    python benchmarks/step_overhead.py [--batch 1] [--images 4] [--threads 1]

Every forward of the network is timed inside the run, so both times come from the same steps: overhead = 1 - sum(forward) / sum(step). The
forward is the network alone, both guidance rows, and the drafting network's where there is one; guidance mixing, filtering, noise,
verification and bookkeeping are the overhead. Methods alternate; the figure is the median over rounds. Seconds on a CPU rank no methods.
"""

import argparse
import importlib
import statistics
import time
from pathlib import Path

import torch

from parity.base.noise import batch_noise
from parity.decode.discrete import decode
from parity.experiment.config import COMPANIONS, ModelSpec, methods, needs, options
from parity.inputs.captions import encode
from parity.models import checkpoints
from parity.models.discrete.sampling import Sampled, Sampling


class Timed:
    """A model whose forwards are timed."""

    def __init__(self, model):
        self.model, self.seconds, self.calls = model, 0.0, 0
        self.vocab, self.length, self.width, self.forced = model.vocab, model.length, model.width, model.forced
        self.codebook, self.raw_codebook, self.embeddings, self.keep = (
            model.codebook,
            model.raw_codebook,
            model.embeddings,
            model.keep,
        )
        self.drafter, self.draft = (
            companion and TimedCompanion(companion, self) for companion in (model.drafter, model.draft)
        )

    def timed(self, call, *inputs):
        begin = time.perf_counter()
        out = call(*inputs)
        self.seconds += time.perf_counter() - begin
        self.calls += 1
        return out

    def logits(self, tokens, positions):
        return self.timed(self.model.logits, tokens, positions)

    def tree(self, tokens, positions, parents):
        return self.timed(self.model.tree, tokens, positions, parents)


class TimedCompanion:
    """A draft model or drafter: its forwards are forwards too."""

    def __init__(self, inner, timed):
        self.inner, self.timed = inner, timed
        for name in ("vocab", "length", "width", "forced", "codebook", "raw_codebook", "embeddings"):
            setattr(self, name, getattr(inner, name, None))

    def logits(self, *inputs):
        return self.timed.timed(self.inner.logits, *inputs)

    def tree(self, *inputs):
        return self.timed.timed(self.inner.tree, *inputs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    a = parser.parse_args()
    torch.set_num_threads(a.threads)
    manifest = checkpoints.get("scenes", ModelSpec(), Path("results"))
    loaded = {part: checkpoints.load(manifest, needs=part) for part in ("", *COMPANIONS)}
    prompts = Path("prompts/scenes.txt").read_text().splitlines()
    sampling = Sampling(guidance=1.8)
    found: dict[str, list[tuple[float, float]]] = {}
    for round_ in range(a.rounds + 1):
        for method in methods():
            captions = prompts[round_ * a.batch : (round_ + 1) * a.batch]
            timed = Timed(loaded[needs(method)].decodable(*encode(manifest, captions, "cpu"), True))
            decoder = getattr(importlib.import_module(f"parity.decoders.{method}"), method)
            noise = batch_noise(0, captions)
            steps = decoder(
                Sampled(timed, sampling), torch.zeros(a.batch, dtype=torch.int64), noise=noise, **options(method, {})
            )
            done = decode(timed, steps, a.batch)
            if round_:  # the first warms up
                found.setdefault(method, []).append(
                    (1 - timed.seconds / done.seconds, 1000 * done.seconds / timed.calls)
                )
    print(f"batch {a.batch}, {a.threads} thread(s), median of {a.rounds} rounds")
    for method, rows in found.items():
        print(
            f"{method:12s} overhead {statistics.median(r[0] for r in rows):6.1%} of a step of {statistics.median(r[1] for r in rows):7.2f} ms"
        )


if __name__ == "__main__":
    main()
