"""What samples say: rows as the exact layer's, valid although sampling stops as soon as they are enough.

Two tests share the false-alarm rate. The e-process (`sequential`) may be looked at after every batch, so
sampling stops once it reaches 4 / alpha. The four statistics of `counts` are looked at when a size fixed
beforehand is reached; a sampler that is gone on with later is looked at again, and the j-th such look (j = 0, 1, ...)
spends alpha / 2^(j + 2). So

    p = min(1, 2 / max E, min_j 2^(j + 2) p_j)

is a p-value at any time: row "all looks", which decides. The bound of the j-th look holds at 1 - alpha / 2^(j + 1): all
of them together with 95 %. Where nothing is kept there is one look, and it has the whole 5 %.

Row "rows independent" decides as well (`independence`): Holm over the two.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from parity_certify import result_rows as R
from parity_certify.independence import rows_independent
from parity_certify.joint_tests import TESTS, joint_rows, log_e, tv_bound
from parity_certify.laws import Law
from parity_certify.result_rows import Row
from parity_certify.seeding import row_key
from parity_certify.store import Batch

DRAWS = 9999
INDEPENDENCE = "rows independent"
SHARES = 2  # of the false-alarm rate: the law of a row, and the independence of rows (Holm)


def floor(law: np.ndarray, n: int) -> float:
    """About the expected TVhat of a perfect sampler: E|N(0, s^2)| = s sqrt(2 / pi), and at most 2 p a cell."""
    return float(0.5 * np.minimum(np.sqrt(2 / np.pi * law * (1 - law) / n), 2 * law).sum())


def expected_bound(law: np.ndarray, n: int, alpha: float = R.ALPHA) -> float:
    """The bound that nine perfect samplers in ten stay below: TVhat's floor and 1.3 of its largest standard error."""
    return floor(law, n) + 1.3 * 0.5 / math.sqrt(n) * math.sqrt(1 - 2 / math.pi) + slack(n, alpha)


def slack(n: int, alpha: float) -> float:
    return math.sqrt(math.log(1 / alpha) / (2 * n))


def needed(law: np.ndarray, margin: float, alpha: float = R.ALPHA) -> int:
    """Sequences with which a perfect sampler's bound is below `margin` (nine times in ten)."""
    low, high = 1, 1
    while expected_bound(law, high, alpha) > margin:
        low, high = high, 2 * high
    while high - low > max(1, low // 100):
        middle = (low + high) // 2
        low, high = (middle, high) if expected_bound(law, middle, alpha) > margin else (low, middle)
    return -(-high // 100) * 100


def rejects(counts: np.ndarray, law: np.ndarray, alpha: float) -> bool:
    """Whether the e-process of counts [cells] alone rejects."""
    return bool(log_e(counts, law) >= math.log(2 * SHARES / alpha))


def sample_rows(
    counts: np.ndarray, law: Law, *, seed: int, best: float, look: int | None, fixed: bool, alpha: float, draws: int
) -> list[Row]:
    """Rows of counts [K * V^L] under one seed.

    best   largest log e-value seen at any look of the e-process so far
    look   number of earlier looks at a size fixed beforehand; None where nothing is kept
    fixed  whether this size was fixed beforehand: one that the e-process stopped has no p-values, and a bound that
           says so
    """
    wide, at, width = law.wide()
    padded = np.zeros(len(wide), dtype=np.int64)
    padded[at] = counts
    length = law.length + (len(law.prompts) > 1)
    outside = int(counts[law.cells == 0].sum())
    note = f"{outside} of {counts.sum()} sequences have probability zero" if outside else ""
    place: dict[str, Any] = {"model": law.name, "seed": seed, "note": note}
    rng = np.random.default_rng([seed, row_key(seed, law.name) % 2**32])
    rows = joint_rows("exact", padded, wide, width, length, rng=rng, draws=draws if fixed else 1, **place)
    tests = [r for r in rows if r["test"] in (*TESTS, "all four")]
    evidence, certificate = rows[-2], rows[-1]
    spend = 1.0 if look is None else 2.0 ** (look + 1)
    p = min(1.0, 2 * math.exp(-min(max(best, 0.0), 690.0)))
    if fixed:
        p = min([p, *(2 * spend * r["p_value"] for r in tests if r["test"] == "all four" and r["p_value"])])
        bound = min(1.0, tv_bound(counts, law.cells, R.ALPHA / spend))
        certificate |= {"effect": bound, "verdict": f"TV <= {bound:.4f} (95 %)"}
    else:
        n = int(counts.sum())
        certificate |= {"effect": 1.0, "verdict": "not run"}
        tests = [R.not_run("exact", r["test"], n, "a size fixed beforehand (stopped)", **place) for r in tests]
        certificate["note"] = "; ".join(n for n in (note, "stopped by the e-process: see the repeat") if n)
    for r in tests:
        r["decides"] = False
    evidence |= {"statistic": R.number(best), "p_value": max(p_of(best), R.SMALLEST)}
    common = {"effect": certificate["statistic"], "minimum_detectable_effect": evidence["minimum_detectable_effect"]}
    decision = R.row("exact", "all looks", int(counts.sum()), statistic=R.number(best), p_value=p, **place | common)
    R.family([decision])
    decision["verdict"] = "rejected" if p <= alpha else "not rejected"
    return [*tests, evidence, decision, certificate]


def independence_row(batches: Sequence[Batch], law: Law, seed: int, alpha: float) -> Row:
    """The row of the test that rows do not depend on each other."""
    found = rows_independent(batches, law)
    values: Row = {"model": law.name, "seed": seed, "statistic": R.number(found.log_e), "note": found.where}
    values["minimum_detectable_effect"] = found.least
    return R.row("exact", INDEPENDENCE, sum(len(b.prompts) for b in batches), p_value=p_of(found.log_e), **values)


def p_of(log_evidence: float) -> float:
    """p-value of an e-process by its largest value."""
    return math.exp(-min(max(log_evidence, 0.0), 690.0))


def prompt_rows(counts: np.ndarray, law: Law, seed: int) -> list[Row]:
    """A row a prompt, counts [K * V^L]: TVhat behind it alone and its e-value; a fault may stand behind one prompt."""
    found = []
    for prompt, own, p in zip(law.prompts, counts.reshape(len(law.prompts), -1), law.joint, strict=True):
        n = int(own.sum())
        if n:
            tv = float(0.5 * np.abs(own / n - p).sum())
            where = f"prompt {' '.join(map(str, prompt))}"
            values: Row = {"effect": tv, "minimum_detectable_effect": R.detectable_tv(n), "decides": False}
            logs = float(log_e(own, p))
            values |= {"statistic": logs, "note": f"TVhat; a perfect sampler's is about {floor(p, n):.3f}"}
            place = {"model": law.name, "seed": seed}
            found.append(R.row("exact", where, n, p_value=p_of(logs), **place | values))
    return found
