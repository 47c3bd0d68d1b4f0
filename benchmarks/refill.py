"""Images that take the places of images that are done: what that costs or saves, with the same tokens.

    python benchmarks/refill.py [--batch 32] [--images 64] [--rounds 2] [--threads 1] ['mtj: {window: 24}' ...]

A shard is decoded in batches one after the other and in one that is refilled, in turn; the seconds of each are the
least of the rounds, prompts read included. Passes are those of all batches. It ends with an error if a token differs.
"""

import time
from collections import defaultdict

import numpy as np
from common import asked, captioned, cell, guided

from parity.decode import loop

EAGLE = "eagle: {total: 10, depth: 3, top_k: 3}"
VARIANTS = ["jacobi: {window: 16}", "mtj: {window: 24, branches: 24}", "sjd_coupled: {window: 32}", EAGLE]


def main() -> None:
    a = asked(__doc__, VARIANTS, batch=32, images=64, rounds=2)
    manifest, rows = captioned(a.images)
    print(f"{a.images} images, {a.batch} at once, {a.threads} thread(s), least of {a.rounds} rounds")
    for variant in a.variants:
        spec = cell("discrete", variant, 0, sampling=guided(1.8))
        loaded, seconds, passes, tokens = loop.load("discrete", manifest, spec), defaultdict(list), {}, {}
        for _ in range(a.rounds):
            for refill in (False, True):
                begin = time.perf_counter()
                shard = loop.decode("discrete", loaded, spec, rows, a.batch, refill=refill)
                seconds[refill].append(time.perf_counter() - begin)
                tokens[refill], passes[refill] = (
                    shard.tokens,
                    int(shard.passes[0] if refill else shard.passes[:: a.batch].sum()),
                )
        assert np.array_equal(tokens[False], tokens[True]), f"{variant}: other tokens"
        apart, one = (min(seconds[refill]) for refill in (False, True))
        said = f"{apart:6.2f} and {one:6.2f} s, {one / apart:.2f} times; passes {passes[False]} and {passes[True]}"
        print(f"{variant:32s} {said}, {passes[True] / passes[False]:.2f} times", flush=True)


if __name__ == "__main__":
    main()
