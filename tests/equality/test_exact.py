"""The exact layer: targets of every kind, one harness, what it accepts, rejects, repeats and refuses."""

from functools import partial

import numpy as np
import pytest
import torch
from parity_certify import verdict
from parity_certify.import_by_name import import_named_module
from parity_certify.joint_tests import digits
from parity_decoders.anysubset.assd import assd
from parity_decoders.anysubset.sequential import sequential
from parity_decoders.continuous.cspd import cspd
from parity_decoders.continuous.mar import mar
from parity_decoders.discrete.ar import ar
from parity_decoders.discrete.sjd import sjd
from parity_decoders.protocols.anysubset import Infilling
from parity_decoders.protocols.continuous import Pair
from parity_decoders.steps import Step

from parity.base.errors import ParityError
from parity.equality import targets
from parity.equality.exact import exact
from parity.equality.faults import anysubset as any_faults
from parity.equality.faults import discrete as faults
from parity.equality.targets import anysubset, continuous, discrete
from parity.experiment.options import measure_reach
from parity.models.anysubset.tabular import TabularAnySubset, compute_joint_law, consistent_table, random_table
from parity.models.continuous.tabular import exact_sampler, random_mixture
from parity.models.discrete import tabular
from parity.report.verdicts import find_undrafted

FULL, SMALL = discrete.targets(), discrete.targets("small")


def named(name):
    return next(t for t in FULL if t.name == name)


def test_the_law_is_the_models_joint():
    t = named("random-1 3x4")
    np.testing.assert_allclose(
        t.law, tabular.compute_joint(tabular.TabularModel(t.table, 4, 81), 3, 4).numpy(), atol=1e-15
    )


def test_the_rosenblatt_transform_is_uniform_and_inverts_the_sampler():
    model = random_mixture(np.random.default_rng(0), 3, 3, 2)
    u = model.rosenblatt(exact_sampler(model, 20_000, np.random.default_rng(1)))
    assert u.shape == (20_000, 6) and np.abs(u.mean(0) - 0.5).max() < 0.01
    assert np.abs(np.corrcoef(u.T) - np.eye(6)).max() < 0.03


def judged(found, claim="lossless", margin=0.1):
    return verdict.judge_decoders(found, {found[0]["method"]: claim}, margin)[0]


# --- accepted drafts


def unaccepted(plain):
    """A decoder that drafts beside plain decoding and accepts nothing."""

    def decode(*model, **options):
        for step in plain(*model, **options):
            yield step if isinstance(step, Step) else step._replace(accepted_drafts=torch.zeros(len(step.tokens)))

    return decode


@pytest.mark.parametrize(
    ("kind", "decoder", "plain", "options"),
    [
        ("discrete", sjd, ar, {"window": 3}),
        ("anysubset", assd, sequential, {"k": 2}),
        ("continuous", cspd, mar, {"gamma": 3}),
    ],
)
def test_accepted_drafts_are_counted_on_targets_of_every_kind(kind, decoder, plain, options):
    """In the exact and in the long layer. Drafts that are never accepted leave the verdict open."""
    small = {"discrete": SMALL, "anysubset": anysubset.targets(), "continuous": continuous.targets()}[kind]
    long = import_named_module(f"parity.equality.targets.{kind}").long_targets(
        measure_reach(kind, decoder.__name__, options), 2000
    )[:1]
    for layer, some in (("exact", small[:2]), ("long", long)):
        settings = {"n": 1000, "draws": 9, "seeds": [0], "layer": layer, "method": "it"}
        drafted, never, alone = (
            exact(d, some, o, **settings) for d, o in ((decoder, options), (unaccepted(plain), {}), (plain, {}))
        )
        assert all(r["accepted_drafts"] > 0 for r in drafted)
        assert {(r["model"], r["tokens"]) for r in drafted} == {(t.name, t.length) for t in some}
        assert (find_undrafted(drafted), find_undrafted(never)) == ([], [layer])
        assert {r["accepted_drafts"] for r in alone} == {0 if kind == "discrete" else None}


# --- targets


def test_forced_positions_hold_the_forced_token():
    cells = digits(3, 4)[named("forced 3x4").law > 0]
    assert (cells[:, 1] == 2).all() and (cells[:, 3] == 2).all() and len(cells) == 9


def test_a_law_that_is_none_is_an_error_that_names_its_place():
    table = tabular.random_table(3, 4, torch.Generator().manual_seed(0))
    table[2, 1] = float("nan")
    with pytest.raises(ParityError, match=r"model broken, row 27, position 1: p is not a law"):
        _ = discrete.Target("broken", table, 4, 4).law


def test_any_subset_conditionals_are_those_of_the_joint():
    """A consistent table's law is one whatever the order; of a random table's law the order is a part."""
    for table, same in ((consistent_table, True), (random_table, False)):
        model = TabularAnySubset(table(3, 3, torch.Generator().manual_seed(0)))
        blank, begin = torch.full((1, 3), 3), torch.zeros(1, dtype=torch.int64)
        start = Infilling(blank, torch.arange(3)[None], begin, torch.tensor([3]))
        ahead = compute_joint_law(model, start).reshape(3, 3, 3)
        back = compute_joint_law(model, start._replace(order=start.order.flip(1))).reshape(3, 3, 3)
        assert ahead.sum() == pytest.approx(1) and np.allclose(ahead, back.transpose(2, 1, 0)) == same


# --- every kind: a lossless decoder passes, a wrong one is lossy


def drafts_kept(models, start, *, noise):
    """The draft's tokens as they are."""
    return mar(Pair(models.draft), start, noise=noise)


RIGHT = {
    "sjd": (discrete, sjd, {"window": 4, "init": "sample_above"}),
    "assd": (anysubset, assd, {"k": 3}),
    "cspd": (continuous, cspd, {"gamma": 2, "prefill": 0.0}),
}
WRONG = {
    "discrete": (discrete, partial(faults.jacobi, fault="residual p"), {}),
    "anysubset": (anysubset, any_faults.VARIANTS["assd: residual p"][0], {}),
    "continuous": (continuous, drafts_kept, {}),
}


@pytest.mark.parametrize("name", RIGHT)
def test_lossless_decoders_pass(name):
    kind, decoder, options = RIGHT[name]
    found = exact(decoder, kind.targets("small"), options, n=5000, draws=1999, family=kind.FAMILY)
    assert {r["repeat"] for r in found} == {0} and {r["method"] for r in found} == {name}
    v = judged(found, margin=0.13)  # the any-subset and continuous targets have up to 729 cells
    assert v["verdict"] == "certified lossless" and not v["mismatch"], v


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_decoder_is_rejected_and_repeated_where_it_was(name):
    kind, decoder, options = WRONG[name]
    found = exact(decoder, kind.targets("small"), options, method="bad", n=5000, draws=999, family=kind.FAMILY)
    deciding = [r for r in found if r["decides"]]
    once = {r["model"] for r in deciding if r["repeat"] == 0 and r["verdict"] == "rejected"}
    assert once and {r["model"] for r in found if r["repeat"] == 1} == once
    assert {r["seed"] for r in found if r["repeat"] == 1} == {1}
    v = judged(found)
    assert v["verdict"].startswith("lossy: TV = 0.") and v["mismatch"] and v["tv_low"] > 0.01


def test_a_sample_depends_on_the_seed_and_not_on_threads_or_chunks(monkeypatch):
    for target, decoder, options in ((named("random-0 3x4"), sjd, {"window": 3}), (anysubset.targets()[0], assd, {})):
        one = target.draw(decoder, 3000, 0, options)
        with monkeypatch.context() as patch:
            patch.setattr(targets, "CHUNK", 700)
            assert (one == target.draw(decoder, 3000, 0, options, threads=2)).all()
        assert (one != target.draw(decoder, 3000, 1, options)).any()


# --- bad decoders


def stubborn(model, start, *, noise):
    """Zeros everywhere."""
    tokens = torch.zeros(len(start), model.length, dtype=torch.int64)
    yield Step(tokens, torch.full_like(start, model.length), torch.zeros_like(start))


def test_an_impossible_token_is_an_error_or_of_a_lossy_decoder_a_rejection():
    said = r"model forced 3x4, row 0, position 1: token 0 of probability zero was sampled"
    with pytest.raises(ParityError, match=said):
        exact(stubborn, [named("forced 3x4")], n=1000, draws=99)
    found = exact(stubborn, [named("forced 3x4")], n=1000, draws=99, claim="lossy")
    four = next(r for r in found if r["test"] == "all four")
    assert four["verdict"] == "rejected" and four["note"] == "1000 of 1000 sequences have probability zero"


def test_a_position_that_is_never_decided_is_an_error_that_names_the_model(monkeypatch):
    def lazy(model, start, *, noise):
        yield Step(torch.zeros(len(start), 2, dtype=torch.int64), torch.full_like(start, 2), torch.zeros_like(start))

    target = named("random-0 3x4")
    with pytest.raises(ParityError, match=r"model random-0 3x4, row 0, position 2: the decoder stopped"):
        target.draw(lazy, 1000, 0, {})

    def lazy_later(model, start, *, noise):
        return lazy(model, start, noise=noise) if len(start) < 700 else sjd(model, start, noise=noise, window=2)

    monkeypatch.setattr(targets, "CHUNK", 700)
    with pytest.raises(ParityError, match=r"model random-0 3x4, from 700 on: row 0, position 2"):
        target.draw(lazy_later, 1000, 0, {})

    def lazy_vectors(models, start, *, noise):
        yield next(mar(models, start, noise=noise))

    with pytest.raises(ParityError, match=r"model mixture 3 x 1-D, row 0, position 1: the decoder stopped"):
        exact(lazy_vectors, continuous.targets(), n=1000, draws=99, family="tests")
