"""Measure what refilling a batch with new images costs or saves, with the same tokens.

    python benchmarks/refill.py [--batch 32] [--images 64] [--rounds 2] [--threads 1] ['mtj: {window: 24}' ...]

A shard is decoded in batches one after the other and in one that is refilled, in turn; the seconds of each are the
least of the rounds, prompts read included. Passes are those of all batches. It ends with an error if a token differs.
"""

import time
from collections import defaultdict

import numpy as np
from common import encode_captions, make_sampling, make_spec, parse_flags

from parity.decode import loop

EAGLE = "eagle: {total: 10, depth: 3, top_k: 3}"
VARIANTS = ["jacobi: {window: 16}", "mtj: {window: 24, branches: 24}", "sjd_coupled: {window: 32}", EAGLE]


def main() -> None:
    """Decode by each variant with and without refilling; print seconds and passes of both; fail if a token differs."""
    a = parse_flags(__doc__, VARIANTS, batch=32, images=64, rounds=2)
    manifest, rows = encode_captions(a.images)
    print(f"{a.images} images, {a.batch} at once, {a.threads} thread(s), least of {a.rounds} rounds")
    for variant in a.variants:
        spec = make_spec("discrete", variant, 0, sampling=make_sampling(1.8))
        loaded = loop.load("discrete", manifest, spec)
        seconds = defaultdict(list)
        passes: dict[bool, int] = {}
        tokens: dict[bool, np.ndarray] = {}
        for _ in range(a.rounds):
            for refill in (False, True):
                start = time.perf_counter()
                shard = loop.decode("discrete", loaded, spec, rows, a.batch, refill=refill)
                seconds[refill].append(time.perf_counter() - start)
                tokens[refill] = shard.tokens
                passes[refill] = int(shard.passes[0] if refill else shard.passes[:: a.batch].sum())
        assert np.array_equal(tokens[False], tokens[True]), f"{variant}: other tokens"
        batched, refilled = (min(seconds[refill]) for refill in (False, True))
        times = f"{batched:6.2f} and {refilled:6.2f} s, {refilled / batched:.2f} times"
        counts = f"passes {passes[False]} and {passes[True]}, {passes[True] / passes[False]:.2f} times"
        print(f"{variant:32s} {times}; {counts}", flush=True)


if __name__ == "__main__":
    main()
