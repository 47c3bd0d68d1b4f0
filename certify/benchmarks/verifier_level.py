"""How often correct verifiers are rejected at alpha .05, and what the injected faults and the speed come to.

python benchmarks/verifier_level.py --repeats 200      rejections of each correct verifier, with the binomial limits
python benchmarks/verifier_level.py --faults           verdict, TV and seconds of each injected fault at margin .01
python benchmarks/verifier_level.py --speed            seconds to a bound of .01 for the vectorised ones
"""

import argparse
import time

from scipy import stats

from parity_certify import certify_verifier
from parity_certify.verifiers import CORRECT, FAULTS

ALPHA = 0.05


def print_level(repeats: int, n: int) -> None:
    high = int(stats.binom.ppf(0.995, repeats, ALPHA))
    print(f"rejections on one seed in {repeats} repeats, n = {n} a problem; at most {high} by the binomial (99 %)")
    for name, (verify, shape, problems) in CORRECT.items():
        start, rejected = time.perf_counter(), 0
        for seed in range(repeats):
            settings = {"n": n, "alpha": ALPHA, "seeds": (1000 + seed,), "draws": 999}
            certificate = certify_verifier(verify, shape=shape, problems=problems, **settings)
            rejected += any(r["decides"] and r["verdict"] == "rejected" for r in certificate.rows)
        print(f"{name:34} {rejected:4}  {time.perf_counter() - start:.0f} s", flush=True)


def print_faults() -> None:
    for name, (verify, shape, problems) in FAULTS.items():
        start = time.perf_counter()
        margin = 0.1 if shape == "tree" else 0.01
        v = certify_verifier(verify, shape=shape, problems=problems, margin=margin).verdict
        print(f"{name:36} {v.words:22} on {v.where:8} {time.perf_counter() - start:.1f} s", flush=True)


def print_speed() -> None:
    for name, (verify, shape, problems) in CORRECT.items():
        if shape != "batch":
            continue
        start = time.perf_counter()
        certificate = certify_verifier(verify, shape=shape, problems=problems, margin=0.01)
        seconds, n = time.perf_counter() - start, certificate.verdict.n or 0
        rate = len(problems) * n / seconds
        cost = f"{n} sequences a problem, {seconds:.1f} s, {rate:.0f} a second, all in"
        print(f"{name:20} {certificate.verdict.pill}, {cost}")


if __name__ == "__main__":
    main = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    main.add_argument("--repeats", type=int)
    main.add_argument("--n", type=int, default=1000)
    main.add_argument("--faults", action="store_true")
    main.add_argument("--speed", action="store_true")
    a = main.parse_args()
    if a.repeats:
        print_level(a.repeats, a.n)
    if a.faults:
        print_faults()
    if a.speed:
        print_speed()
