"""The exact layer: targets of every kind, one harness, what it accepts, rejects, repeats and refuses."""

import pytest
import torch
from parity_certify import verdict
from parity_certify.import_by_name import import_named_module
from parity_decoders.anysubset.assd import assd
from parity_decoders.anysubset.sequential import sequential
from parity_decoders.continuous.cspd import cspd
from parity_decoders.continuous.mar import mar
from parity_decoders.discrete.ar import ar
from parity_decoders.discrete.sjd import sjd
from parity_decoders.steps import Step

from parity.base.errors import ParityError
from parity.equality import targets
from parity.equality.exact import exact
from parity.equality.targets import anysubset, continuous, discrete
from parity.experiment.options import measure_reach
from parity.models.discrete import tabular
from parity.report.verdicts import find_undrafted
from tests.equality.faults import anysubset as any_faults
from tests.equality.faults import discrete as faults
from tests.tables import keep_drafts

FULL, SMALL = discrete.targets(), discrete.targets("small")


def find_target(name):
    return next(t for t in FULL if t.name == name)


def judge(rows, claim="lossless", margin=0.1):
    """Judge the rows of one decoder with this claim and margin on total variation; return its verdict, a dictionary."""
    return verdict.judge_decoders(rows, {rows[0]["method"]: claim}, margin)[0]


def accept_nothing(plain):
    """Make a decoder of plain decoding whose steps say that drafts were offered and none was accepted."""

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
@pytest.mark.parametrize("layer", ["exact", "long"])
def test_accepted_drafts_are_counted(kind, decoder, plain, options, layer):
    """Drafts that are never accepted leave the verdict open."""
    if layer == "exact":
        models = {"discrete": SMALL, "anysubset": anysubset.targets(), "continuous": continuous.targets()}[kind][:2]
    else:
        module = import_named_module(f"parity.equality.targets.{kind}")
        models = module.long_targets(measure_reach(kind, decoder.__name__, options), 2000)[:1]
    settings = {"n": 1000, "draws": 9, "seeds": [0], "layer": layer, "method": "it"}
    drafted = exact(decoder, models, options, **settings)
    rejected = exact(accept_nothing(plain), models, {}, **settings)
    undrafted = exact(plain, models, {}, **settings)
    assert all(r["accepted_drafts"] > 0 for r in drafted)
    assert {(r["model"], r["tokens"]) for r in drafted} == {(t.name, t.length) for t in models}
    assert (find_undrafted(drafted), find_undrafted(rejected)) == ([], [layer])
    assert {r["accepted_drafts"] for r in undrafted} == {0 if kind == "discrete" else None}


def test_a_distribution_that_is_none_is_an_error_that_names_its_position():
    table = tabular.random_table(3, 4, torch.Generator().manual_seed(0))
    table[2, 1] = float("nan")
    with pytest.raises(ParityError, match=r"model broken, row 27, position 1: p is not a distribution"):
        _ = discrete.Target("broken", table, 4, 4).probs


RIGHT = {
    "sjd": (discrete, sjd, {"window": 4, "init": "sample_above"}),
    "assd": (anysubset, assd, {"k": 3}),
    "cspd": (continuous, cspd, {"gamma": 2, "prefill": 0.0}),
}
WRONG = {
    "discrete": (discrete, faults.VARIANTS["sjd_coupled: residual p"][0], {}),
    "anysubset": (anysubset, any_faults.VARIANTS["assd: residual p"][0], {}),
    "continuous": (continuous, keep_drafts, {}),
}


@pytest.mark.parametrize("name", RIGHT)
def test_lossless_decoders_pass(name):
    kind, decoder, options = RIGHT[name]
    rows = exact(decoder, kind.targets("small"), options, n=5000, draws=1999, family=kind.FAMILY)
    assert {(r["repeat"], r["method"]) for r in rows} == {(0, name)}
    v = judge(rows, margin=0.13)  # a wide margin, as any-subset and continuous targets have up to 729 cells
    assert (v["verdict"], bool(v["mismatch"])) == ("certified lossless", False), v


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_decoder_is_rejected_and_repeated(name):
    """On another seed, and only on the targets that rejected it."""
    kind, decoder, options = WRONG[name]
    rows = exact(decoder, kind.targets("small"), options, method="bad", n=5000, draws=999, family=kind.FAMILY)
    rejected = {r["model"] for r in rows if r["decides"] and r["repeat"] == 0 and r["verdict"] == "rejected"}
    assert rejected
    assert {(r["model"], r["seed"]) for r in rows if r["repeat"] == 1} == {(model, 1) for model in rejected}
    v = judge(rows)
    assert v["verdict"].startswith("lossy: TV = 0.")
    assert v["mismatch"]
    assert v["tv_low"] > 0.01


def test_a_sample_depends_on_the_seed_alone(monkeypatch):
    """Not on threads or chunks."""
    random = find_target("random-0 3x4")
    for target, decoder, options in ((random, sjd, {"window": 3}), (anysubset.targets()[0], assd, {})):
        drawn = target.draw(decoder, 3000, 0, options)
        with monkeypatch.context() as patch:
            patch.setattr(targets, "CHUNK", 700)
            assert (drawn == target.draw(decoder, 3000, 0, options, threads=2)).all()
        assert (drawn != target.draw(decoder, 3000, 1, options)).any()


def draw_zeros(model, start, *, noise):
    tokens = torch.zeros(len(start), model.length, dtype=torch.int64)
    yield Step(tokens, torch.full_like(start, model.length), torch.zeros_like(start))


def test_an_impossible_token_is_an_error_or_a_rejection():
    """An error of a decoder that claims to be lossless, a rejection of a lossy one."""
    message = r"model forced 3x4, row 0, position 1: token 0 of probability zero was sampled"
    with pytest.raises(ParityError, match=message):
        exact(draw_zeros, [find_target("forced 3x4")], n=1000, draws=99)
    rows = exact(draw_zeros, [find_target("forced 3x4")], n=1000, draws=99, claim="lossy")
    row = next(r for r in rows if r["test"] == "all four")
    assert (row["verdict"], row["note"]) == ("rejected", "1000 of 1000 sequences have probability zero")


def stop_early(model, start, *, noise):
    """Draw two tokens and stop: a fault."""
    yield Step(torch.zeros(len(start), 2, dtype=torch.int64), torch.full_like(start, 2), torch.zeros_like(start))


def test_a_decoder_that_stops_early_in_a_chunk_is_an_error(monkeypatch):
    def stop_early_in_last(model, start, *, noise):
        return stop_early(model, start, noise=noise) if len(start) < 700 else sjd(model, start, noise=noise, window=2)

    monkeypatch.setattr(targets, "CHUNK", 700)
    with pytest.raises(ParityError, match=r"model random-0 3x4, from 700 on: row 0, position 2"):
        find_target("random-0 3x4").draw(stop_early_in_last, 1000, 0, {})
