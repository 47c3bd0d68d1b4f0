"""Rows of a black box's sample, valid although sampling stops as soon as the evidence is enough.

Two tests share the false-alarm rate. The e-process may be looked at after every batch, so sampling stops once it
reaches 4 / alpha. The four statistics of `joint_tests` are looked at when a size fixed beforehand is reached; a sampler
that is continued later, and a repeat that goes on until it rejects, is tested again, and the j-th such look (j = 0, 1,
...) spends alpha / 2^(j + 2). So

    p = min(1, 2 / max E, min_j 2^(j + 2) p_j)

is a p-value at any time: row "all looks", which decides. The bound and the interval of the j-th look hold at
1 - .05 / 2^(j + 1): all of them together with 95 %. A first sample without a folder has one look: p = 2 p_0, and its
bound the whole 5 %.

Row "rows independent" decides as well (`independence`): Holm over the two.
"""

import math
from typing import Any

import numpy as np
from scipy import special

from parity_certify import result_rows as R
from parity_certify.calls import Drawn
from parity_certify.distributions import Distribution
from parity_certify.independence import measure_dependence
from parity_certify.joint_tests import bound_tv, compute_log_e, compute_tv_interval, make_code_rows
from parity_certify.result_rows import Row

DRAWS = 9999
MISS = 1e-3  # probability that a perfect sampler's bound misses the margin by chance
INDEPENDENCE = "rows independent"
SHARES = 2  # Holm adjusts two tests: of the distribution of single rows, and of the independence of rows


def estimate_tv_floor(distribution: np.ndarray, n: int) -> float:
    """Estimate the mean TVhat of n draws of `distribution` [K]: a cell's E|N(0, s^2)| = s sqrt(2 / pi), and at most 2
    p."""
    return float(0.5 * np.minimum(np.sqrt(2 / np.pi * distribution * (1 - distribution) / n), 2 * distribution).sum())


def estimate_bound(distribution: np.ndarray, n: int, alpha: float = R.ALPHA, miss: float = MISS) -> float:
    """Estimate the upper bound on the TV (confidence 1 - alpha) that a perfect sampler exceeds with probability `miss`
    with n draws of `distribution` [K]: the expected one, and that quantile of a normal variable."""
    slack = math.sqrt(math.log(1 / alpha) / (2 * n)) - special.ndtri(miss) * 0.5 * math.sqrt((1 - 2 / math.pi) / n)
    return estimate_tv_floor(distribution, n) + slack


def needed(distribution: np.ndarray, margin: float, alpha: float = R.ALPHA, miss: float = MISS) -> int:
    """Compute how many sequences, in hundreds, bring a perfect sampler's TV bound below `margin`, but with probability
    `miss`."""
    low, high = 1, 1
    while estimate_bound(distribution, high, alpha, miss) > margin:
        low, high = high, 2 * high
    while high - low > max(1, low // 100):
        middle = (low + high) // 2
        low, high = (middle, high) if estimate_bound(distribution, middle, alpha, miss) > margin else (low, middle)
    return -(-high // 100) * 100


def find_detectable_tv(distribution: np.ndarray, n: int, alpha: float, power: float) -> float:
    """Find the smallest TV that n draws of `distribution` [K] reject with this probability, however it is spread: of
    all distributions at a TV, the one that is off by a share of each cell moves the joint G least, to noncentrality 4 n
    TV^2. That test has a sixteenth of alpha at least: one of `SHARES`, half of its looks, a quarter of `all four`."""
    support = int((distribution > 0).sum())
    if n < support:
        return 1.0
    if support == 1:  # any other sequence is a rejection
        return 1 - (1 - power) ** (1 / n)
    critical = special.chdtri(support - 1, alpha / 16)
    low, high = 0.0, 1.0
    for _ in range(30):
        middle = (low + high) / 2
        found = special.chndtr(critical, support - 1, 4 * n * middle**2) <= 1 - power
        low, high = (low, middle) if found else (middle, high)
    return high


def make_sample_rows(
    drawn: Drawn,
    distribution: Distribution,
    seed: int,
    *,
    alpha: float,
    draws: int = DRAWS,
    looks: dict[int, float] | None = None,
) -> list[Row]:
    """Make the rows of the sample of one seed: those of `joint_tests`, "all looks" and independence, which decide (Holm
    over the two), and one a prompt. draws: of the simulated null.

    looks   sizes of earlier looks, in order, and the p-value of `all four` at each (None without a folder); `add_look`
    adds this one. If the e-process stopped the sample, there are no tests and no bound
    """
    n = drawn.n
    length = distribution.length + (len(distribution.prompts) > 1)
    joint, cell_codes, vocab = distribution.prepend_prompt()
    settings = {"seed": seed, "draws": 1 if drawn.stopped else draws}
    codes = np.repeat(cell_codes, drawn.counts)
    *tests, e_value, certificate = make_code_rows("exact", distribution.name, codes, joint, vocab, length, **settings)
    note = certificate["note"]
    columns: dict[str, Any] = {"model": distribution.name, "seed": seed, "note": note}
    spent = [convert_to_p_value(drawn.max_log_e, factor=2)]
    if drawn.stopped:
        needs = "a size fixed beforehand (stopped)"
        tests = [R.make_not_run_row("exact", r["test"], n, needs, **columns) for r in tests]
        certificate |= {"effect": 1.0, "verdict": "not run"}
        certificate["note"] = "; ".join(n for n in (note, f"stopped as soon as p <= {alpha / SHARES:g}") if n)
    else:
        share = 1.0
        if looks is None:
            spent.append(2 * (tests[-1]["p_value"] or 1.0))
        else:
            looks = add_look(looks, drawn, tests)
            share = 2.0 ** (list(looks).index(n) + 1)
        bound = min(1.0, bound_tv(drawn.counts, distribution.cells, R.ALPHA / share))
        confidence = R.describe_confidence(R.ALPHA)
        certificate |= {"effect": bound, "verdict": f"TV <= {bound:.4f} ({confidence})", "alpha": R.ALPHA / share}
        certificate["tv_low"], certificate["tv_high"] = compute_tv_interval(
            drawn.counts, distribution.cells, R.ALPHA / share
        )
    spent += [2.0 ** (j + 2) * p for j, p in enumerate((looks or {}).values())]
    e_value |= {"statistic": R.clean_number(drawn.max_log_e), "p_value": convert_to_p_value(drawn.max_log_e)}
    common = {"effect": certificate["statistic"], "minimum_detectable_effect": e_value["minimum_detectable_effect"]}
    common["statistic"] = R.clean_number(drawn.max_log_e)
    decision = R.make_row("exact", "all looks", n, p_value=min(1, *spent), **columns | common)
    deciding = [decision]
    if drawn.batches and len(drawn.batches[0].prompts):  # counts without rows have no order
        deciding.append(make_independence_row(drawn, distribution, seed))
    decision, *independence = R.adjust_family(deciding, alpha)
    by_prompt = make_prompt_rows(drawn.counts, distribution, seed) if len(distribution.prompts) > 1 else []
    tests = [r | {"decides": False} for r in tests]
    return [*tests, e_value, decision, certificate, *independence, *by_prompt]


def add_look(looks: dict[int, float], drawn: Drawn, rows: list[Row]) -> dict[int, float]:
    """Copy the looks (see `make_sample_rows`) and add the one that made these rows of a sample, at its size; none if
    the e-process stopped the sample, as then no test was made."""
    if drawn.stopped:
        return dict(looks)
    p = next(r["p_value"] for r in rows if r["test"] == "all four")
    return looks | {drawn.n: p or 1.0}


def make_independence_row(drawn: Drawn, distribution: Distribution, seed: int) -> Row:
    """Make the row of the test that rows do not depend on each other, not yet adjusted."""
    dependence = measure_dependence(drawn.batches, distribution)
    values: Row = {
        "model": distribution.name,
        "seed": seed,
        "note": dependence.name,
        "statistic": R.clean_number(dependence.log_e),
    }
    values |= {"minimum_detectable_effect": dependence.detectable, "p_value": convert_to_p_value(dependence.log_e)}
    return R.make_row("exact", INDEPENDENCE, drawn.n, **values)


def convert_to_p_value(log_evidence: float, factor: float = 1) -> float:
    """Convert the largest log e-value of an e-process to a p-value, min(1, factor / e)."""
    return min(1.0, factor * math.exp(-min(max(log_evidence, 0.0), 690.0)))


def make_prompt_rows(counts: np.ndarray, distribution: Distribution, seed: int) -> list[Row]:
    """Make a row for each prompt with draws, which does not decide: its TVhat and e-value, from counts [K * V^L]."""
    rows = []
    for prompt, drawn, p in zip(
        distribution.prompts, counts.reshape(len(distribution.prompts), -1), distribution.joint, strict=True
    ):
        n = int(drawn.sum())
        if n:
            evidence = float(compute_log_e(drawn, p))
            tv = float(0.5 * np.abs(drawn / n - p).sum())
            values: Row = {"effect": tv, "minimum_detectable_effect": R.compute_detectable_tv(n), "decides": False}
            values |= {
                "model": distribution.name,
                "seed": seed,
                "statistic": evidence,
                "p_value": convert_to_p_value(evidence),
            }
            values["note"] = f"TVhat; a perfect sampler's is about {estimate_tv_floor(p, n):.3f}"
            rows.append(R.make_row("exact", f"prompt {' '.join(map(str, prompt))}", n, **values))
    return rows
