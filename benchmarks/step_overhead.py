"""Step overhead: what a decoder's step costs beyond the bare forward of the same shape.

    python benchmarks/step_overhead.py [--batch 1] [--rounds 5] [--threads 1] [--keep NAME]

Every forward of a network is timed inside the run, so both times come from the same steps: overhead = 1 - sum(forward)
/ sum(step). The forward is the network alone, both guidance rows, and the drafting network's where there is one;
guidance mixing, filtering, noise, verification and bookkeeping are the overhead. Methods alternate; the figure is the
median over rounds. On a CPU compare methods by passes, not by seconds. --keep puts the table in docs/figures, from
which `benchmarks/docs_figures.py` writes it into the docs.
"""

import statistics

from common import encode_captions, make_sampling, make_spec, parse_flags
from docs_figures import keep_benchmark

from parity.base.row_noise import batch_noise
from parity.decode import loop
from parity.decode.clock import Clock
from parity.decode.discrete import record
from parity.experiment.options import methods, needs


def main() -> None:
    """Time every method's steps, print the share outside the networks, and keep the table with --keep."""
    a = parse_flags(__doc__, batch=1, rounds=5, keep="")
    names = methods("discrete")
    manifest, captions = encode_captions((a.rounds + 1) * a.batch)
    specs = {name: make_spec("discrete", name, 0, sampling=make_sampling(1.8)) for name in names}
    loaded = {needs("discrete", name): loop.load("discrete", manifest, spec) for name, spec in specs.items()}
    measured: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    for turn in range(a.rounds + 1):
        rows = {k: v[turn * a.batch : (turn + 1) * a.batch] for k, v in captions.items()}
        for name, spec in specs.items():
            noise = batch_noise(0, rows["ids"].tolist())
            clock = Clock(noise.keys.device)
            result = record(*loop.start_decoding("discrete", loaded[needs("discrete", name)], spec, clock)(rows, noise))
            if turn:  # the first round warms up and is not counted
                seconds = [call.seconds for call in clock.list_calls()]
                measured[name].append((1 - sum(seconds) / result.seconds, 1000 * result.seconds / len(seconds)))
    print(f"batch {a.batch}, {a.threads} thread(s), median of {a.rounds} rounds")
    table = []
    for name, runs in measured.items():
        overhead, step = (statistics.median(r[i] for r in runs) for i in (0, 1))
        print(f"{name:12s} overhead {overhead:6.1%} of a step of {step:7.2f} ms")
        table.append({"name": name, "batch": a.batch, "overhead": overhead, "step_ms": step, "rounds": a.rounds})
    if a.keep:
        keep_benchmark(a.keep, table)


if __name__ == "__main__":
    main()
