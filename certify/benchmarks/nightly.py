"""How often nights of a correct engine are rejected, and how soon a fault that begins late is found.

python benchmarks/nightly.py --nights 1000                    whole runs of six conditions, with a history
python benchmarks/nightly.py --nights 1000 --histories 10     the evidence of the history alone, of several engines
python benchmarks/nightly.py --fault 0.05 --repeats 20        nights until a TV that begins at night 100 is found

The distributions and the fault are those of design_level.py, and whole runs have 1,000 sequences in each condition. A
fault is in each condition alone, or in all of them; its nights have as many sequences as those of the command (margin
.1).
"""

import argparse
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import design_level
import numpy as np
from design_level import QUIET, V, compute_distribution, draw_from, scale_halves

from parity_certify import Condition, certify_conditions, design
from parity_certify.distributions import Distribution
from parity_certify.history import History

ALPHA, BEGIN, MOST = 0.01, 100, 60  # over all nights; the night at which a fault begins; nights that it has to be found


def run_nights(distributions: list[Distribution], nights: int) -> None:
    """Run whole nights of a correct engine and print how many are rejected, on the first seed or after all."""
    conditions = [Condition(one.name, draw_from(one.joint, one), one) for one in distributions]
    rejected = failed = 0
    start = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        for night in range(1, nights + 1):
            history = History.read(Path(folder) / "nights.jsonl")
            level = {"alpha": history.level(ALPHA), "seeds": history.seeds(0)}
            c = history.judge(certify_conditions(conditions, n=1000, budget=None, **level, **QUIET), ALPHA)
            history.write()
            rejected += any(r["decides"] and not r["repeat"] and r["verdict"] == "rejected" for r in c.rows)
            failed += c.verdict.kind in ("lossy", "inconclusive")
            if night % 100 == 0:
                size = history.file.stat().st_size / 2**20
                seconds = time.process_time() - start
                words = f"{rejected} rejected on the first seed, {failed} lossy or inconclusive"
                print(f"{night} nights: {words}; {size:.1f} MB; {seconds:.0f} CPU-seconds", flush=True)


def draw_nights(
    distributions: list[Distribution], sizes: list[int], joints: list[np.ndarray], seed: int
) -> Iterator[dict[str, np.ndarray]]:
    """Draw nights without end: counts of each condition, by its joint distribution [K, V^L]; the joints may change."""
    rng = np.random.default_rng(seed)
    while True:
        p = [joint.ravel() / len(joint) for joint in joints]
        yield {one.name: rng.multinomial(n, q / q.sum()) for one, n, q in zip(distributions, sizes, p, strict=True)}


def run_histories(distributions: list[Distribution], sizes: list[int], nights: int, histories: int) -> None:
    """Print the largest evidence of histories of correct engines, and how many of them reject."""
    rejected, largest = 0, []
    for seed in range(histories):
        history, most = History(Path("none")), -np.inf
        history.check(distributions)
        drawn = draw_nights(distributions, sizes, [one.joint for one in distributions], seed)
        for _ in range(nights):
            history.add(next(drawn))
            most = max(most, history.measure().log_e)
        largest.append(most)
        rejected += most >= np.log(2 / ALPHA)
        words = f"{rejected} rejected at {ALPHA / 2:g}, largest log e-value {max(largest):.2f}"
        print(f"{seed + 1} histories of {nights} nights: {words}", flush=True)


def run_faults(distributions: list[Distribution], sizes: list[int], repeats: int) -> None:
    """Print after how many nights a fault is found that begins at night BEGIN."""
    rng = np.random.default_rng(0)
    for where in (*[[k] for k in range(len(distributions))], list(range(len(distributions)))):
        found = []
        for seed in range(repeats):
            history = History(Path("none"))
            history.check(distributions)
            joints = [one.joint for one in distributions]
            drawn = draw_nights(distributions, sizes, joints, seed)
            for _ in range(BEGIN - 1):
                history.add(next(drawn))
            for k in where:
                joints[k] = scale_halves(distributions[k].joint, rng)
            nights = 0
            while nights < MOST and (not nights or history.measure().log_e < np.log(2 / ALPHA)):
                history.add(next(drawn))
                nights += 1
            found.append(nights)
        name = distributions[where[0]].name if len(where) == 1 else "all conditions"
        size = f"{sizes[where[0]]} sequences a night, " if len(where) == 1 else ""
        low, middle, high = np.percentile(found, (0, 50, 100)).astype(int)
        late = sum(nights >= MOST for nights in found)
        print(
            f"{name}: {size}found after {middle} nights ({low} to {high}; {late} of {repeats} not in {MOST})",
            flush=True,
        )


if __name__ == "__main__":
    main = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    main.add_argument("--nights", type=int, default=0)
    main.add_argument("--histories", type=int, default=0)
    main.add_argument("--fault", type=float, default=0.0)
    main.add_argument("--repeats", type=int, default=20)
    a = main.parse_args()
    names = [design.name_options(one) for one in design.DESIGN]
    found = [design.make_distribution(compute_distribution, one, V) for one in design.DESIGN]
    found = [
        Distribution(name, one.prompts, one.tables, one.length, one.end) for name, one in zip(names, found, strict=True)
    ]
    level = History(Path("none")).level(ALPHA) / len(found)
    sizes = [design.compute_size(Condition(one.name, draw_from(one.joint, one), one), 0.1, level) for one in found]
    if a.histories:
        run_histories(found, sizes, a.nights, a.histories)
    elif a.nights:
        run_nights(found, a.nights)
    if a.fault:
        design_level.TV = a.fault
        run_faults(found, sizes, a.repeats)
