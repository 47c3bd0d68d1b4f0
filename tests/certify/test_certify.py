"""Decoders of users get their verdicts; a fault has its predicted distribution, and the likeliest is named."""

import inspect
from pathlib import Path

import numpy as np
import pytest
import torch
from parity_certify import Distribution, import_by_name
from parity_certify import diagnosis as F
from parity_certify.distributions import compute_joint
from parity_certify.evidence import needed
from parity_decoders.discrete.ar import ar
from parity_decoders.discrete.sjd import sjd
from parity_decoders.steps import Step

from parity.base.errors import ParityError
from parity.certify import __main__ as command
from parity.certify import certify
from parity.equality.targets.discrete import targets
from parity.experiment.schema import EqualitySpec
from parity.models.discrete.tabular import count_prefixes

ROOT = Path(__file__).parents[2]


def test_users_decoders_get_their_verdicts(monkeypatch, capsys, tmp_path):
    """The documented example: the correct one by the command, the subtly wrong one by the call."""
    settings = ["--models", "small", "--n", "3000", "--margin", "0.1", "--out", f"{tmp_path}/out"]
    monkeypatch.setattr("sys.argv", ["", "decoder", f"{ROOT}/docs/example_decoders.py:lookahead", *settings])
    with pytest.raises(SystemExit) as exit_info:
        command.main(command.add_decoder)
    printed = capsys.readouterr()
    assert exit_info.value.code == 0, printed.out + printed.err
    assert printed.out.startswith("lookahead: certified lossless"), printed.out + printed.err
    assert printed.out.endswith(f"\nreport: {tmp_path}/out/report.html\n")
    assert (tmp_path / "out/report.html").exists()
    certificate = certify(import_by_name.load(f"{ROOT}/docs/example_decoders.py:hasty"), n=3000, models="small")
    assert certificate.verdict.words.startswith("lossy: TV = 0.1")
    assert certificate.mismatch
    assert certificate.exit_code == 1
    assert str(certificate).startswith("hasty: lossy: TV = 0.1")
    assert "(repeat, seed 1)" in str(certificate)


def test_the_call_takes_options():
    verdict = certify(sjd, n=3000, models="small", margin=0.1, window=2).verdict
    assert verdict.kind == "certified"
    assert "options window=2 " in verdict.tested[1]
    assert import_by_name.parse_option("window=2") == ("window", 2)
    assert import_by_name.parse_option("init=random") == ("init", "random")


def test_a_decoder_of_one_pass_is_warned_about():
    """A decoder that draws all tokens in its first pass, or one a pass, is certified, with a list of what was not
    tested."""

    def draw_in_one_pass(model, start, *, noise):
        """Decode by `ar`, but yield all tokens [B, L] in a single step, as if one pass had drawn them."""
        steps = list(ar(model, start, noise=noise))
        tokens = torch.cat([step.tokens for step in steps], 1)
        yield Step(tokens, torch.full_like(start, tokens.shape[1]), steps[0].positions)

    for decoder, gap in (
        (draw_in_one_pass, "a second pass: there were 1.00 a sequence"),
        (ar, "no draft was accepted"),
        (sjd, ""),
    ):
        certificate = certify(decoder, n=2000, models="small", margin=0.2)
        assert certificate.verdict.kind == "certified"
        assert len(certificate.warnings) == bool(gap)
        assert gap in "".join(certificate.warnings)
        assert set(certificate.warnings) <= set(certificate.verdict.untested)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere.py:f", "nowhere.py: no such file"),
        ("sjd", "sjd: allowed: MODULE:FUNCTION or FILE.py:FUNCTION"),
        ("json:sjd", "json: has no 'sjd'"),
        ("no.such:f", "no.such: no such module"),
    ],
)
def test_a_name_that_is_not_found_is_one_line(name, message):
    with pytest.raises(ParityError, match=message):
        import_by_name.load(name)


V, L, BLOCK = 4, 4, 2
RNG = np.random.default_rng(0)
P, Q = (np.exp(x) / np.exp(x).sum(-1, keepdims=True) for x in 1.2 * RNG.standard_normal((2, count_prefixes(V, L), V)))
DISTRIBUTION = Distribution("p", np.array([[0]]), P[None], L)
DRAFT = Distribution("q", np.array([[0]]), Q[None], L)
BARE = Distribution("bare", np.array([[0]]), F.apply_temperature(P, 2)[None], L)


def fix_distribution(suspect):
    """Return a suspect with its distribution computed once, here, so that asking again costs nothing."""
    distribution_once = suspect.distribution()
    return suspect._replace(distribution=lambda: distribution_once)


SUSPECTS = [fix_distribution(s) for s in F.list_suspects(DISTRIBUTION, DRAFT, BLOCK, bare=BARE)]


def compute_tv(a, b):
    return 0.5 * np.abs(a - b).sum()


@pytest.mark.parametrize("block", [1, 2, 5])
def test_without_a_fault_the_distribution_is_the_targets(block):
    """Whatever is drafted, also where nothing is offered. The simulated loop agrees, and a fault in it does not."""
    offered = np.random.default_rng(1).random(len(P)) < 0.6
    for mask in (None, offered):
        assert np.allclose(F.predict_joint(P, Q, block=block, offered=mask), compute_joint(P, L))
        drawn = F.simulate_joint(P, Q, block=block, fault="none", offered=mask, n=20_000)
        assert compute_tv(drawn, compute_joint(P, L)) < 0.06
    assert compute_tv(F.predict_joint(P, Q, block=block, correct=lambda p, q: p), compute_joint(P, L)) > 0.05
    assert compute_tv(F.predict_joint(P, Q, block=block, drawn=F.make_greedy(Q)), compute_joint(P, L)) > 0.1


@pytest.mark.parametrize("name", list(dict.fromkeys(s.name for s in SUSPECTS)))
def test_a_fault_is_named(name):
    """From 3,000 sequences of its distribution: the name fits, and is the first unless another is as likely."""
    distribution = next(s for s in SUSPECTS[::-1] if s.name == name).distribution()
    distance = compute_tv(distribution, DISTRIBUTION.joint)
    counts = np.random.default_rng(0).multinomial(3000 if distance > 0.05 else 100_000, distribution[0])
    diagnosis = F.diagnose_counts(
        counts, DISTRIBUTION, [s for s in SUSPECTS if s.name == name or not s.name.startswith("draft's distribution")]
    )
    assert name in [diagnosis["name"], *diagnosis["others"]], (distance, diagnosis["says"])
    assert diagnosis["log_likelihood_ratio"] > 0


def test_an_unknown_fault_is_none_of_the_named():
    """Tokens are exchanged in what is returned."""
    order = np.array([1, 2, 3, 0])
    distribution = DISTRIBUTION.joint.reshape([V] * L)[np.ix_(*[order] * L)].reshape(1, -1)
    counts = np.random.default_rng(0).multinomial(5000, distribution[0])
    diagnosis = F.diagnose_counts(counts, DISTRIBUTION, SUSPECTS)
    assert diagnosis["name"] is None
    assert diagnosis["says"].startswith("none of these")
    assert diagnosis["fits"] <= 1e-3
    assert F.diagnose_counts(counts, DISTRIBUTION, [])["name"] is None


def test_the_default_draws_reach_the_default_margin_on_every_target():
    defaults = {name: p.default for name, p in inspect.signature(certify).parameters.items()}
    distributions = [np.asarray(target.probs).ravel() for target in targets("full")]
    most = max(needed(p / p.sum(), defaults["margin"]) for p in distributions)
    assert EqualitySpec().margin_tv == defaults["margin"]
    assert most <= defaults["n"] == EqualitySpec().n
    assert max(needed(p / p.sum(), defaults["margin"] / 2) for p in distributions) > defaults["n"]
