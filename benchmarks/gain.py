"""What a user gains on this CPU: images a second of every lossless method, against plain decoding compiled.

    python benchmarks/gain.py [--batch 1] [--rounds 3] [--threads 1] [--keep NAME]

Methods take turns on the embedded model, each at its default options, eager and with its passes compiled. All decode
the same captions, new ones each round; the figures are medians of wall seconds, and of their ratios to plain decoding
compiled in the same round. --keep puts the table in docs/figures, from which `benchmarks/docs_figures.py` writes it
into the docs.
"""

import itertools
import statistics

from common import encode_captions, make_sampling, make_spec, parse_flags
from docs_figures import keep_benchmark

from parity.base.row_noise import batch_noise
from parity.decode import loop
from parity.decode.discrete import record
from parity.experiment.options import claim, methods, needs

COMPILED = "ar, compiled"


def main() -> None:
    """Time every lossless method, eager and compiled; print images a second, the fastest first; keep with --keep."""
    a = parse_flags(__doc__, batch=1, rounds=3, keep="")
    manifest, captions = encode_captions((a.rounds + 1) * a.batch)
    specs = {name: make_spec("discrete", name, 0, sampling=make_sampling(1.8)) for name in methods("discrete")}
    specs = {name: spec for name, spec in specs.items() if claim("discrete", name, spec["options"]) == "lossless"}
    spec_by_networks = {needs("discrete", name): spec for name, spec in specs.items()}
    loaded = {
        (companion, fast): loop.load("discrete", manifest, spec, fast=fast)
        for companion, spec in spec_by_networks.items()
        for fast in (False, True)
    }
    seconds_by_name: dict[str, list[float]] = {}
    for turn in range(a.rounds + 1):  # the first round warms up, compiles, and is not counted
        rows = {k: v[turn * a.batch : (turn + 1) * a.batch] for k, v in captions.items()}
        for name, fast in itertools.product(specs, (False, True)):
            start = loop.start_decoding("discrete", loaded[needs("discrete", name), fast], specs[name])
            seconds = record(*start(rows, batch_noise(0, rows["ids"].tolist()))).seconds
            if turn:
                seconds_by_name.setdefault(f"{name}, compiled" if fast else name, []).append(seconds)
    table = []
    for name, seconds in sorted(seconds_by_name.items(), key=lambda kv: statistics.median(kv[1])):
        ratio = statistics.median(
            plain / timed for plain, timed in zip(seconds_by_name[COMPILED], seconds, strict=True)
        )
        rate = a.batch / statistics.median(seconds)
        print(f"batch {a.batch}  {name:12s} {rate:7.2f} images a second, {ratio:.2f} times compiled plain decoding")
        table.append({"name": name, "batch": a.batch, "images_per_second": rate, "ratio": ratio, "rounds": a.rounds})
    if a.keep:
        keep_benchmark(a.keep, table)


if __name__ == "__main__":
    main()
