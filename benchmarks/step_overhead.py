"""Step overhead: what a decoder's step costs beyond the bare forward of the same shape.

    python benchmarks/step_overhead.py [--batch 1] [--rounds 5] [--threads 1]

Every forward of a network is timed inside the run, so both times come from the same steps: overhead = 1 - sum(forward)
/ sum(step). The forward is the network alone, both guidance rows, and the drafting network's where there is one;
guidance mixing, filtering, noise, verification and bookkeeping are the overhead. Methods alternate; the figure is the
median over rounds. Seconds on a CPU rank no methods.
"""

import statistics
import time
from typing import Any

from common import asked, captioned, cell, guided

from parity.base.noise import batch_noise
from parity.decode import loop
from parity.decode.discrete import record
from parity.experiment.options import methods, needs


class Clock:
    """Seconds and number of the forwards of the models that it watches."""

    def __init__(self) -> None:
        self.seconds, self.calls = 0.0, 0

    def watch(self, model: Any) -> None:
        """Time a model's forwards from now on, in place."""
        model.logits, model.tree = self.timed(model.logits), self.timed(model.tree)

    def timed(self, call: Any) -> Any:
        def run(*inputs: Any) -> Any:
            begin = time.perf_counter()
            out = call(*inputs)
            self.seconds += time.perf_counter() - begin
            self.calls += 1
            return out

        return run


def main() -> None:
    a = asked(__doc__, batch=1, rounds=5)
    names = methods("discrete")
    manifest, every = captioned((a.rounds + 1) * a.batch)
    specs = {name: cell("discrete", name, 0, sampling=guided(1.8)) for name in names}
    loaded = {needs("discrete", name): loop.load("discrete", manifest, spec) for name, spec in specs.items()}
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    for turn in range(a.rounds + 1):
        rows = {k: v[turn * a.batch : (turn + 1) * a.batch] for k, v in every.items()}
        for name, spec in specs.items():
            clock, noise = Clock(), batch_noise(0, rows["ids"].tolist())
            model, start, steps = loop.begun("discrete", loaded[needs("discrete", name)], spec)(rows, noise)
            network = model.model  # under guidance and filters
            for watched in filter(None, (network, network.drafter, network.draft)):
                clock.watch(watched)
            done = record(model, start, steps)
            if turn:  # the first warms up
                taken[name].append((1 - clock.seconds / done.seconds, 1000 * done.seconds / clock.calls))
    print(f"batch {a.batch}, {a.threads} thread(s), median of {a.rounds} rounds")
    for name, runs in taken.items():
        overhead, step = (statistics.median(r[i] for r in runs) for i in (0, 1))
        print(f"{name:12s} overhead {overhead:6.1%} of a step of {step:7.2f} ms")


if __name__ == "__main__":
    main()
