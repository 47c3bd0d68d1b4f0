"""Calibration: the size of every test, measured on data for which its null hypothesis is true.

Nominal .05; 1000 replicates give a standard error of .007. A Monte-Carlo null that the replicates share adds
sqrt(.0475 / draws).
"""

from collections import defaultdict

import numpy as np
import torch
from parity_certify import joint_tests as C
from parity_certify import result_rows as R
from parity_certify import teacher_forced
from parity_certify.result_rows import Row
from parity_decoders.discrete.ar import ar
from parity_decoders.noise import counted_noise
from scipy import stats

from parity.decode.discrete import record
from parity.equality.layers.discrete import paired
from parity.equality.targets.continuous import energy_p
from parity.equality.targets.discrete import Target, conditionals, targets
from parity.models.continuous.tabular import exact_sampler, random_mixture
from parity.models.discrete.tabular import random_table

NOMINAL = (0.03, 0.07)
P = dict[str, list[float]]


def exact_p(replicates: int, rng: np.random.Generator, draws: int, n: int) -> P:
    """The joint statistics and the e-value on (3, 5): counts drawn from the law itself, as a perfect decoder would."""
    law = next(t.law for t in targets() if t.name == "random-0 3x5")
    t = C.make_tables(law, 3, 5, n)
    null = C.simulate_null(t, draws, rng)
    counts = rng.multinomial(n, law / law.sum(), size=replicates)
    ps = C.compute_p_values(C.compute_statistics(counts, t), null)
    of_test = {f"exact: {test}, n = {n:,}": list(ps[:, k]) for k, test in enumerate((*C.TESTS, "all four"))}
    return of_test | {f"exact: e-value, n = {n:,}": list(np.exp(-np.maximum(C.compute_log_e(counts, law), 0)))}


def teacher_forced_p(replicates: int, rng: np.random.Generator, seed: int, images: int = 100) -> P:
    """The battery on plain autoregressive samples of a prefix-dependent model of 8 codes on a 2 x 2 grid."""
    target = Target("calibration", random_table(8, 4, torch.Generator().manual_seed(0)), 4, 2)
    rows = images * replicates
    model = target.model(rows)
    start, noise = torch.zeros(rows, dtype=torch.int64), counted_noise(seed, range(rows))
    tokens = record(model, start, ar(model, start, noise=noise)).tokens
    p = conditionals(model, tokens)
    of_test: P = defaultdict(list)
    for own in np.split(np.arange(rows), replicates):
        law = teacher_forced.wrap_law(p[own])
        battery = teacher_forced.run_battery(tokens[own].numpy(), law, 2, rng=rng, groups=np.arange(8) % 2)
        run = [row for row in battery if row["p_value"] is not None]
        for row in run:
            if ", row" not in row["test"]:
                of_test[f"teacher-forced: {row['test']}"].append(row["p_value"])
        of_test["teacher-forced: battery (Holm)"].append(min(row["p_holm"] for row in run))
    return of_test


def paired_p(replicates: int, rng: np.random.Generator) -> P:
    """Two sides with a strong effect of the prompt and no difference. TOST is tested where its null is true: a
    difference of one margin."""
    of_test: P = defaultdict(list)
    n, d, real = 200, 4, None
    ids = [f"{i}/0" for i in range(n)]
    for r in range(replicates):
        prompt = 2 * rng.standard_normal((n, d))
        x, y = prompt + rng.standard_normal((n, d)), prompt + rng.standard_normal((n, d))
        real = 2 * rng.standard_normal((500, d)) if real is None else real
        score, features = (paired.matched("it", *sides, ids, ids) for sides in ((x[:, 0], y[:, 0]), (x, y)))
        t, boot, _ = paired.scalar_rows(score, margin=1.0, seed=r, resamples=999)
        of_test["paired: t"].append(t["p_value"])
        of_test["paired: bootstrap interval"].append(0.01 if boot["verdict"] == "interval excludes 0" else 1.0)
        of_test["paired: TOST at its margin"].append(paired.tost_p(x[:, 0] + 0.5, y[:, 0], 0.5))
        of_test["paired: MMD, swaps"].append(paired.mmd_row(features, seed=r, swaps=39)["p_value"])
        of_test["paired: FID difference, swaps"].append(paired.fid_row(real, features, seed=r, swaps=39)["p_value"])
    return of_test


def continuous_p(replicates: int, rng: np.random.Generator, draws: int) -> P:
    """KS, energy and the binned statistics on exact samples of a mixture of three 1-D tokens."""
    n, model = 1000, random_mixture(np.random.default_rng(0))
    samples = exact_sampler(model, n * replicates, rng)
    u = model.rosenblatt(samples).reshape(replicates, n, 3)
    ks = [[float(stats.kstest(v[:, j], "uniform", method="asymp").pvalue) for j in range(3)] for v in u]
    fresh = exact_sampler(model, 50 * replicates, rng).reshape(replicates, 50, 3)
    some = samples.reshape(replicates, n, 3)[:, :50]
    energy = [energy_p(x, y, rng, 199)[1] for x, y in zip(some, fresh, strict=True)]
    cells = np.minimum((u * 3).astype(int), 2) @ np.array([9, 3, 1])
    t = C.make_tables(np.full(27, 1 / 27), 3, 3, n)
    null = C.simulate_null(t, draws, rng)
    counts = np.array([np.bincount(c, minlength=27) for c in cells])
    return {
        "continuous: KS of PIT": [k[1] for k in ks],
        "continuous: KS, three tokens (Holm)": [float(R.holm(k).min()) for k in ks],
        "continuous: energy": energy,
        "continuous: binned, all four": list(C.compute_p_values(C.compute_statistics(counts, t), null)[:, 4]),
    }


def size_row(test: str, ps: list[float], seed: int) -> Row:
    """The rate of p <= .05 among null p-values, with its 95 % binomial interval.

    verdict  "size ok" if the rate lies in [.03, .07], "size off" if the whole interval lies outside, else "size
             unclear": too few replicates to tell. Families corrected by Holm, and e-values, promise at most .05: their
             verdict asks for the upper limit only
    """
    hits, n = int((np.array(ps) <= R.ALPHA).sum()), len(ps)
    low, high = stats.binomtest(hits, n).proportion_ci(method="wilson")
    at_most = "Holm" in test or "e-value" in test
    floor = 0.0 if at_most else NOMINAL[0]
    verdict = "size off" if high < floor or low > NOMINAL[1] else "size unclear"
    if floor <= hits / n <= NOMINAL[1]:
        verdict = "size ok"
    note = f"size {hits / n:.3f} at nominal .05 ({low:.3f} to {high:.3f}, {n} replicates)"
    note += "; at most .05 by design" if at_most else ""
    values: Row = {"effect": hits / n, "verdict": verdict, "seed": seed, "note": note, "decides": False}
    return R.make_row("calibration", test, n, model="null", method="null", **values) | {"low": low, "high": high}


def calibration(replicates: int = 1000, seed: int = 0, draws: int = 9999) -> tuple[list[Row], P]:
    """A row and the null p-values [replicates] of every test; five times the replicates for the exact statistics, which
    cost least."""
    streams = iter(np.random.default_rng(seed).spawn(5))
    of_test: P = {}
    for n in (10_000, 1_000_000):
        of_test |= exact_p(5 * replicates, next(streams), draws, n)
    of_test |= teacher_forced_p(replicates, next(streams), seed)
    of_test |= paired_p(replicates, next(streams))
    of_test |= continuous_p(replicates, next(streams), draws)
    return [size_row(test, ps, seed) for test, ps in of_test.items()], of_test
