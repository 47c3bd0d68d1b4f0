"""The long layer of continuous decoders: laws that are those of a joint density, their tests, small batches."""

import itertools

import numpy as np
import pytest
import torch
from scipy import stats

from parity.base.errors import ParityError
from parity.decoders.continuous.cspd import cspd
from parity.decoders.continuous.mar import mar
from parity.equality.exact import exact
from parity.equality.targets.continuous import long_targets, number_scores
from parity.models.continuous.hidden import LongMixture, Regimes
from parity.models.continuous.protocol import Pair

STEP = torch.tensor([[0.7, 0.3], [0.2, 0.8]], dtype=torch.float64)
REST = torch.tensor([0.4, 0.6], dtype=torch.float64)
MEANS, SCALES = (torch.tensor(v, dtype=torch.float64) for v in ([[-1.0, 0.5], [1.0, 0.0]], [[0.5, 1.0], [0.8, 0.6]]))
REGIMES = Regimes(REST, STEP, MEANS, SCALES)


def by_paths(x, place, known):
    """Density of x[place] given x[:known], by the sum over all regimes."""

    def density(tokens):
        total = 0.0
        for z in itertools.product(range(2), repeat=place + 1):
            p = REST[z[0]] * np.prod([STEP[a, b] for a, b in itertools.pairwise(z)])
            own = [stats.norm.pdf(x[i], MEANS[z[i]], SCALES[z[i]]).prod() for i in tokens]
            total += float(p) * np.prod(own)
        return total

    return density([*range(known), place]) / density(range(known))


def test_a_token_given_the_first_ones_is_of_the_joint_density():
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((2, 6, 2)))
    places, known = torch.tensor([[1, 3, 5], [2, 5, 4]]), torch.tensor([[1, 2, 2], [2, 5, 1]])
    model = LongMixture(REGIMES, 6)
    law = model.conditions(x, torch.arange(6).expand(2, -1), places, known)
    said = law.log_density(x.gather(1, places[..., None].expand(-1, -1, 2)).flatten(0, 1)).exp().view(2, 3)
    for b, j in itertools.product(range(2), range(3)):
        wanted = by_paths(x[b].numpy(), int(places[b, j]), int(known[b, j]))
        assert said[b, j] == pytest.approx(wanted, rel=1e-9)


def test_pits_are_uniform_and_log_p_has_its_mean_and_variance():
    x = torch.zeros(1, 1, 2, dtype=torch.float64)
    law = REGIMES.after(x, torch.zeros(1, 1, dtype=torch.int64), torch.zeros(1, 1, dtype=torch.int64))
    rng, n = np.random.default_rng(0), 40_000
    k = rng.choice(2, n, p=law.log_weights[0].exp().numpy())
    y = torch.from_numpy(rng.normal(MEANS[k], SCALES[k]))
    pit, score, variance = number_scores(law.rows(torch.zeros(n, dtype=torch.int64)), y).numpy()
    assert stats.kstest(pit.ravel(), "uniform").pvalue > 0.001
    for d in range(2):
        error = np.sqrt(variance[:, d].mean() / n)
        assert abs(score[:, d].mean()) < 4 * error
        assert np.mean(score[:, d] ** 2) == pytest.approx(variance[:, d].mean(), rel=0.06)
    moved = number_scores(law.rows(torch.zeros(n, dtype=torch.int64)), y + 0.05).numpy()
    assert stats.kstest(moved[0, :, 0], "uniform").pvalue < 0.001  # a test that sees nothing would pass too


def test_correct_decoders_pass():
    options = {"gamma": 4}
    found = exact(cspd, long_targets(options, 6_400)[:2], options, seeds=[0], family="all", layer="long")
    assert min(r["p_holm"] for r in found if r["p_holm"] is not None) > 0.05
    assert all(0 < r["minimum_detectable_effect"] < 1 for r in found if r["p_value"] is not None)
    assert {r["note"] for r in found if r["test"] == "batches"} == {"the same tokens in batches of 1, 3, 32"}


def test_drafts_kept_without_a_look_are_found_on_every_model():
    def kept(models, start, *, noise, **options):
        return mar(Pair(models.draft), start, noise=noise)

    for t in long_targets({}, 6_400):
        found = exact(kept, [t], {}, seeds=[0], family="all", layer="long")
        assert any(r["verdict"] == "rejected" for r in found), t.name


def test_a_number_that_is_none_is_an_error():
    def broken(models, start, *, noise, **options):
        for step in mar(models, start, noise=noise):
            yield step._replace(tokens=step.tokens / 0)

    with pytest.raises(ParityError, match="model regimes 64 x 1-D, row 0, position 0"):
        exact(broken, long_targets({}, 6_400), {}, family="all", layer="long")
