"""p-values of every test on data for which its null hypothesis is true, by name of the test, one a replicate. A
Monte-Carlo null that the replicates share adds sqrt(.0475 / draws) to the standard error of their size."""

from collections import defaultdict

import numpy as np
import torch
from parity_certify import joint_tests as C
from parity_certify import result_rows as R
from parity_certify import teacher_forced
from parity_decoders.discrete.ar import ar
from parity_decoders.noise import counted_noise
from scipy import stats

from parity.decode.discrete import record
from parity.equality.layers.discrete import paired
from parity.equality.targets.continuous import compute_energy_p
from parity.equality.targets.discrete import Target, compute_conditionals, targets
from parity.models.continuous.tabular import exact_sampler, random_mixture
from parity.models.discrete.tabular import random_table

P = dict[str, list[float]]


def replicate_exact(replicates: int, rng: np.random.Generator, draws: int, n: int) -> P:
    """Compute the null p-values of the joint tests and of the e-value: n sequences of 5 tokens out of 3, drawn from
    their distribution itself, in each replicate. draws: of the Monte-Carlo null, which all replicates share."""
    probs = next(t.probs for t in targets() if t.name == "random-0 3x5")
    t = C.make_tables(probs, 3, 5, n)
    null = C.simulate_null(t, draws, rng)
    counts = rng.multinomial(n, probs / probs.sum(), size=replicates)
    ps = C.compute_p_values(C.compute_statistics(counts, t), null)
    ps_of_test = {f"exact: {test}, n = {n:,}": list(ps[:, k]) for k, test in enumerate((*C.TESTS, "all four"))}
    ps_of_test[f"exact: e-value, n = {n:,}"] = list(np.exp(-np.maximum(C.compute_log_e(counts, probs), 0)))
    return ps_of_test


def replicate_teacher_forced(replicates: int, rng: np.random.Generator, seed: int, images: int = 100) -> P:
    """Compute the null p-values of the teacher-forced battery and its smallest Holm-corrected one, on plain
    autoregressive samples of `images` images from a prefix-dependent model of 8 codes on a 2 x 2 grid."""
    target = Target("calibration", random_table(8, 4, torch.Generator().manual_seed(0)), 4, 2)
    rows = images * replicates
    model = target.make_model(rows)
    start = torch.zeros(rows, dtype=torch.int64)
    tokens = record(model, start, ar(model, start, noise=counted_noise(seed, range(rows)))).tokens
    p = compute_conditionals(model, tokens)
    ps_of_test: P = defaultdict(list)
    for sample in np.split(np.arange(rows), replicates):
        probs = teacher_forced.wrap_probs(p[sample])
        battery = teacher_forced.run_battery(tokens[sample].numpy(), probs, 2, rng=rng, groups=np.arange(8) % 2)
        run = [row for row in battery if row["p_value"] is not None]
        for row in run:
            if ", row" not in row["test"]:
                ps_of_test[f"teacher-forced: {row['test']}"].append(row["p_value"])
        ps_of_test["teacher-forced: battery (Holm)"].append(min(row["p_holm"] for row in run))
    return ps_of_test


def replicate_paired(replicates: int, rng: np.random.Generator) -> P:
    """Compute the null p-values of the paired tests, on two samples that share a strong effect of the prompt and do not
    differ otherwise. TOST is tested where its null is true: at a difference of one margin."""
    ps_of_test: P = defaultdict(list)
    n, d, real = 200, 4, None
    ids = [f"{i}/0" for i in range(n)]
    for r in range(replicates):
        prompt = 2 * rng.standard_normal((n, d))
        x, y = prompt + rng.standard_normal((n, d)), prompt + rng.standard_normal((n, d))
        real = 2 * rng.standard_normal((500, d)) if real is None else real
        score, features = (paired.match_sides("it", *sides, ids, ids) for sides in ((x[:, 0], y[:, 0]), (x, y)))
        t, boot, _ = paired.make_scalar_rows(score, margin=1.0, seed=r, resamples=999)
        ps_of_test["paired: t"].append(t["p_value"])
        ps_of_test["paired: bootstrap interval"].append(0.01 if boot["verdict"] == "interval excludes 0" else 1.0)
        ps_of_test["paired: TOST at its margin"].append(paired.compute_tost_p(x[:, 0] + 0.5, y[:, 0], 0.5))
        ps_of_test["paired: MMD, swaps"].append(paired.make_mmd_row(features, seed=r, swaps=39)["p_value"])
        fid_row = paired.make_fid_row(real, features, seed=r, swaps=39)
        ps_of_test["paired: FID difference, swaps"].append(fid_row["p_value"])
    return ps_of_test


def replicate_continuous(replicates: int, rng: np.random.Generator, draws: int) -> P:
    """Compute the null p-values of KS, energy and binned tests on exact samples of a mixture of three 1-D tokens.
    draws: of the Monte-Carlo null of the binned tests."""
    n = 1000
    model = random_mixture(np.random.default_rng(0))
    samples = exact_sampler(model, n * replicates, rng)
    u = model.rosenblatt(samples).reshape(replicates, n, 3)
    ks = [[float(stats.kstest(v[:, j], "uniform", method="asymp").pvalue) for j in range(3)] for v in u]
    others = exact_sampler(model, 50 * replicates, rng).reshape(replicates, 50, 3)
    first = samples.reshape(replicates, n, 3)[:, :50]
    energy = [compute_energy_p(x, y, rng, 199)[1] for x, y in zip(first, others, strict=True)]
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
