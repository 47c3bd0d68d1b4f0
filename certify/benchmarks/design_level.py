"""How often `certify_conditions` rejects a correct sampler at alpha .05, and how often it finds a TV of .1.

python benchmarks/design_level.py --repeats 2000      rejections of a correct sampler in any condition
python benchmarks/design_level.py --power 200         lossy verdicts in each condition, of a fault that is hard to find

The distributions are those of `DESIGN` on a small table model; samples are drawn from the joint distribution, so a run
takes .3 seconds. The fault scales a random half of each joint distribution up and the other down: of all faults of its
TV it moves the joint G least. The size is the smallest that is called covered.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import stats

from parity_certify import (
    Condition,
    certify_conditions,
    certify_sampler,
    design,
    shape_distribution,
    target_distribution,
)
from parity_certify.distributions import Distribution
from parity_certify.joint_tests import digits

V, ALPHA, TV = 4, 0.05, 0.1
TABLE = 1.3 * np.random.default_rng(5).standard_normal((V, V, V))
QUIET: dict[str, Any] = {"draws": 999, "tell": lambda text: None}


def compute_logits(prefixes: np.ndarray) -> np.ndarray:
    return TABLE[prefixes[:, -1], prefixes[:, -2] if prefixes.shape[1] > 1 else 0]


def compute_distribution(
    options: dict[str, Any], *, prompts: np.ndarray, end: int | None, **settings: Any
) -> Distribution:
    source = shape_distribution(compute_logits, options, "transformers", prompts.shape[1], end)
    return target_distribution(source, prompts=prompts, end=end, **settings)


def draw_from(joint: np.ndarray, known: Distribution) -> Callable[[np.ndarray, int], np.ndarray]:
    """Make a sampler of joint distributions [K, V^L] after the prompts of a distribution."""
    sequences, sums = digits(V, known.length), joint.cumsum(1)

    def sample(prompts: np.ndarray, seed: int) -> np.ndarray:
        which = (prompts[:, None] == known.prompts).all(-1).argmax(1)
        u = np.random.default_rng(seed).random(len(which))
        return sequences[(u[:, None] >= sums[which]).sum(1).clip(max=len(sequences) - 1)]

    return sample


def scale_halves(joint: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return joint distributions [K, V^L] that are TV away from these."""
    joint = joint.copy()
    for p in joint:
        while not 0.3 < p[up := rng.random(len(p)) < 0.5].sum() < 0.7:
            pass
        p[up] *= 1 + TV / p[up].sum()
        p[~up] *= 1 - TV / p[~up].sum()
    return joint


def print_level(distributions: dict[str, Distribution], repeats: int) -> None:
    rejected = lossy = 0
    start = time.process_time()
    conditions = [Condition(name, draw_from(one.joint, one), one) for name, one in distributions.items()]
    for k in range(repeats):
        c = certify_conditions(conditions, n=1000, budget=None, alpha=ALPHA, seeds=(2 * k, 2 * k + 1), **QUIET)
        rejected += any(r["decides"] and not r["repeat"] and r["verdict"] == "rejected" for r in c.rows)
        lossy += c.exit_code == 1
        if (k + 1) % 100 == 0:
            high = int(stats.binom.ppf(0.995, k + 1, ALPHA))
            seconds = time.process_time() - start
            counts = f"{rejected} rejected on the first seed (at most {high}), {lossy} lossy"
            print(f"{k + 1} runs of {len(distributions)} conditions: {counts}; {seconds:.0f} CPU-seconds", flush=True)


def print_power(distributions: dict[str, Distribution], repeats: int) -> None:
    rng = np.random.default_rng(0)
    share = ALPHA / len(distributions)
    for name, one in distributions.items():
        n = 100
        while design.evidence.find_detectable_tv(one.cells, n, share, design.POWER) > TV:
            n += 10
        found = 0
        for k in range(repeats):
            sample = draw_from(scale_halves(one.joint, rng), one)
            c = certify_sampler(sample, one, n=n, alpha=share, seeds=(2 * k, 2 * k + 1), **QUIET)
            found += c.exit_code == 1
        print(f"{name}: {n} sequences, {found} of {repeats} lossy at TV {TV}", flush=True)


if __name__ == "__main__":
    main = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    main.add_argument("--repeats", type=int)
    main.add_argument("--power", type=int)
    a = main.parse_args()
    found = {design.name_options(one): design.make_distribution(compute_distribution, one, V) for one in design.DESIGN}
    if a.repeats:
        print_level(found, a.repeats)
    if a.power:
        print_power(found, a.power)
