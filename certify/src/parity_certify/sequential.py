"""Layer 6, sequential: evidence that may be looked at after every shard.

    e_rows(shards, law, ...) -> rows     counts [S, K] of S shards -> one row per shard, of all shards so far
    false_alarms(...) -> rows            how often a correct sampler is rejected when one looks after each of 20 shards

The Dirichlet-multinomial e-value (`counts.log_e`: Lindon & Malek 2022, averaged over four concentrations) depends on
the summed counts alone, so shards may come in any order, and it is a test martingale under the null: P(it ever
reaches 1/alpha) <= alpha (Ville), however often it is read. So min(1, 1/E) is a p-value at any time. Plain chi-square
has that size for one look only.
"""

import math
from typing import Any

import numpy as np
from scipy import stats

from parity_certify import result_rows as R
from parity_certify.joint_tests import log_e, pool, total_variation
from parity_certify.result_rows import Row


def e_rows(shards: np.ndarray, law: np.ndarray, **place: Any) -> list[Row]:
    """Row s is the evidence after shards 0..s; statistic log E, p_value = min over looks of 1/E; the last decides."""
    running = np.cumsum(shards, 0)
    logs = np.array([float(log_e(c, law)) for c in running])
    best = np.maximum.accumulate(logs)
    rows = []
    for s, counts in enumerate(running):
        n, p = int(counts.sum()), math.exp(-min(max(best[s], 0.0), 690.0))
        values = {"statistic": logs[s], "effect": float(total_variation(counts, law)), "decides": s == len(running) - 1}
        rows.append(R.row("sequential", f"e-process after {s + 1}", n, p_value=p, **place | values))
    return rows


def false_alarms(
    law: np.ndarray,
    *,
    looks: int = 20,
    shard: int = 500,
    replicates: int = 1000,
    seed: int = 0,
    model: str = "",
    alternative: np.ndarray | None = None,
) -> list[Row]:
    """Rates of rejection at any of `looks` shards of `shard` draws, for the e-process and for chi-square on pooled
    cells; with an `alternative` law to draw from, their power. effect is the rate, the note its binomial interval."""
    rng = np.random.default_rng(seed)
    drawn = law if alternative is None else alternative
    running = rng.multinomial(shard, drawn / drawn.sum(), size=(replicates, looks)).cumsum(1)  # [replicates, looks, K]
    evidence = np.stack([log_e(running[:, k], law) for k in range(looks)], 1)
    plain = np.empty((replicates, looks))
    for k in range(looks):
        group = pool((k + 1) * shard * law)
        fold = (group[:, None] == np.arange(group.max() + 1)).astype(float)
        expected = ((k + 1) * shard * law) @ fold
        expected = expected * ((k + 1) * shard / expected.sum())
        plain[:, k] = stats.chisquare(running[:, k] @ fold, expected, axis=1).pvalue
    kind = "false alarms" if alternative is None else "power"
    rejected = {
        f"{kind}: e-process, {looks} looks": evidence.max(1) >= math.log(1 / R.ALPHA),
        f"{kind}: chi-square, {looks} looks": plain.min(1) <= R.ALPHA,
        f"{kind}: chi-square, one look": plain[:, -1] <= R.ALPHA,
    }
    rows = []
    for test, hit in rejected.items():
        low, high = stats.binomtest(int(hit.sum()), replicates).proportion_ci(method="wilson")
        note = f"rate {hit.mean():.3f}, 95 % interval {low:.3f} to {high:.3f}, {replicates} replicates"
        values: Row = {"model": model, "seed": seed, "note": note, "verdict": "measured", "decides": False}
        rows.append(R.row("sequential", test, looks * shard, effect=float(hit.mean()), **values))
    return rows
