"""Decoders on an enumerable model: lossless ones draw from its distribution, and lossy ones are rejected."""

import pytest
import torch
from parity_decoders.distribution import TokenSampling
from parity_decoders.engine import Sampled
from parity_decoders.verification import residual, sample_token
from parity_decoders.window import Window

from parity.experiment import options
from parity.models.discrete.tabular import TabularModel
from tests.equality.faults import patch_module
from tests.tables import (
    compute_joint,
    compute_p_value,
    compute_probs,
    count_sequences,
    decode_table,
    generate_variants,
    make_table,
)

V, L, N = 3, 5, 20_000
LOGITS = make_table(V, L)
DISTRIBUTION = compute_probs(LOGITS, V, L)
FORCED = torch.tensor([-1, 2, -1, -1, 0])
LOSSLESS = [v for v in generate_variants("discrete") if options.claim("discrete", v.method, v.options) == "lossless"]
CASES = [
    pytest.param(v.method, v.options, id=v.name)
    for v in LOSSLESS
    if not options.is_coupled(
        "discrete", v.method, v.options
    )  # coupled variants are left out: tests/contracts compares their tokens with plain decoding's
]
CASES += [
    ("sjd", {"window": 3, "init": "sample_above", "refine": False}),
    ("sjd", {"window": 3, "init": "sample_above", "random": "uniform"}),
    ("sjd", {"window": 4, "init": "repeat_left", "random": "uniform", "refine": False}),
    ("sjd_coupled", {"window": 4, "init": "sample_left", "coupling": "maximal", "warm": True}),
    ("gsd", {"window": 4, "group": 3, "resample": "group", "random": "uniform"}),
    ("gsd", {"window": 3, "group": 3, "resample": "group", "init": "sample_above"}),
    ("sjd_pac", {"window": 5, "branches": 2, "depth": 3, "init": "sample_above", "warm": True}),
    ("sjd_pp", {"window": 5, "tau": 1.0, "store": "drawn", "init": "sample_left"}),
    ("sjd_sv", {"window": 5, "verify": "block", "init": "sample_above"}),
    ("sjd_vp", {"window": 5, "strength": 3.0, "init": "sample_above"}),
    ("pjd", {"window": 4, "ahead": 9}),  # a row at a time
    ("pjd", {"window": 4, "ahead": 9, "init": "sample_above"}),
    ("spec", {"gamma": 9, "verify": "block"}),
    ("lantern_pp", {"relax": 0.0, "breadth": 1, "depth": 3}),
]
SMALL = {"depth": 2, "total": 12}
LOSSY = [
    ("sjd", {"window": 3, "init": "sample_above", "tolerance": 0.05}),
    ("gsd", {"window": 3, "group": 3, "delta": 1.0}),
    ("gsd", {"window": 3, "group": 3, "delta": 1.0, "odd": "printed", "random": "uniform"}),
    ("sjd_coupled", {"window": 4, "coupling": "maximal", "store": "q"}),
    ("sjd_coupled", {"window": 4, "coupling": "maximal", "correct": "p"}),
    ("sjd_pp", {"window": 4}),
    ("sjd_sv", {"window": 4}),
    ("sjd_sv", {"window": 4, "alpha": 1.0}),
    ("sjd_vp", {"window": 4, "store": "target", "init": "sample_above"}),
    ("lantern", SMALL),
    ("lantern", {**SMALL, "reject": "all"}),
    ("lantern_pp", {"relax": 1.0}),
    ("vvs", {**SMALL, "delta": 0.0, "interval": 2}),
    ("vvs", {**SMALL, "delta": 0.0, "interval": 2, "select": "confidence", "truncate": False}),
    ("vvs", {**SMALL, "delta": 0.0, "schedule": "dynamic"}),
    ("vvs", {**SMALL, "delta": 0.0, "schedule": "off", "replace": 1.0}),
    ("zipar", {"ahead": 1}),
    ("pjd", {"window": 3, "ahead": 1}),
    ("pjd", {"window": 2, "ahead": 1, "init": "sample_above"}),
    ("pjd", {"window": 3, "ahead": 1, "rejected": "reuse"}),
]


def compute_method_p_value(method, **method_options):
    """Decode N sequences by a method and return the p-value of their counts under the exact distribution."""
    return compute_p_value(
        count_sequences(decode_table(method, LOGITS, L, N, **method_options).tokens, V), DISTRIBUTION
    )


@pytest.mark.parametrize(("method", "method_options"), CASES)
def test_a_lossless_decoder_draws_from_the_distribution(method, method_options):
    assert compute_method_p_value(method, **method_options) > 1e-4


@pytest.mark.parametrize(("method", "method_options"), CASES)
def test_guidance_top_k_and_grammar_reach_the_decoder(method, method_options):
    """p is 0 if a token outside the distribution's support is drawn."""
    logits, sampling = make_table(V, L, pair=True), TokenSampling(guidance=2.0, temperature=0.9, top_k=2)
    exact = compute_joint(Sampled(TabularModel(logits, L, V**L, forced=FORCED), sampling), V, L)
    assert (exact > 0).sum() <= 2**3
    tokens = decode_table(method, logits, L, N // 2, forced=FORCED, sampling=sampling, **method_options).tokens
    assert compute_p_value(count_sequences(tokens, V), exact) > 1e-4


@pytest.mark.parametrize("variant", LOSSLESS, ids=lambda v: v.name)
def test_greedy_decoding_is_greedy_plain_decoding(variant):
    logits, greedy = make_table(5, 6), TokenSampling(top_k=1)
    plain = decode_table("ar", logits, 6, 20, sampling=greedy).tokens
    tokens = decode_table(variant.method, logits, 6, 20, sampling=greedy, **variant.options).tokens
    assert torch.equal(tokens, plain)
    assert (plain == plain[0]).all()  # all rows have the likeliest token at each position, whatever their noise


@pytest.mark.parametrize(("method", "method_options"), LOSSY)
def test_a_lossy_decoder_is_rejected(method, method_options):
    assert compute_method_p_value(method, **method_options) < 1e-6


def test_random_drafts_that_are_not_uniform_are_noticed(monkeypatch):
    """Must fail: drafts of some of the tokens alone, verified as if they had been drawn from all."""
    draw = Window.draw_uniforms
    monkeypatch.setattr(Window, "draw_uniforms", lambda slots, use: draw(slots, use) * (0.5 if use == "draft" else 1))
    assert compute_method_p_value("sjd", window=4, random="uniform") < 1e-8
    assert compute_method_p_value("sjd", window=4) > 1e-4  # a point draft may be any token


def verify_siblings_as_first(p, q, candidates, valid, point, u, exponential):
    """Verify siblings of a tree as if each were the first draw from q: a fault. Return token and its rank."""
    drawn = sample_token(p, exponential)
    rank = torch.full_like(candidates[:, 0], -1)
    for k in range(candidates.shape[1]):
        v = candidates[:, k : k + 1]
        accepted = u[:, k] * q.gather(-1, v)[:, 0] < p.gather(-1, v)[:, 0]
        rank = torch.where(accepted & valid[:, k] & ~point & (rank < 0), k, rank)
    chosen = candidates.gather(1, rank.clamp(min=0)[:, None])[:, 0]
    token = torch.where(rank < 0, sample_token(residual(p, q), exponential), chosen)
    return torch.where(point, drawn, token), torch.where(point & (drawn == candidates[:, 0]), 0, rank)


def verify_runs_as_blocks(p, q, draft, bonus, u):
    """Verify a block as if its shorter runs were accepted as often as the whole: a fault."""
    ratio = (p / q).gather(-1, draft[..., None])[..., 0]
    W = draft.shape[1]
    weight = [torch.ones_like(u[:, 0])]
    for i in range(W - 1):
        weight.append((weight[-1] * ratio[:, i]).clamp(max=1))
    w = torch.stack(weight, 1)
    slot = torch.arange(W)
    accepted = torch.cat([torch.ones_like(bonus[:, :1]), (u[:, :-1] < w[:, 1:]) & ~bonus[:, :-1]], 1)
    return slot < torch.where(accepted, slot, 0).amax(1, keepdim=True), w[..., None] * p


@pytest.mark.parametrize(
    ("method", "fault", "method_options"),
    [
        ("sjd_pac", {"verify_siblings": verify_siblings_as_first}, {"window": 4, "init": "sample_above"}),
        ("spec", {"VERIFY": {"block": verify_runs_as_blocks}}, {"gamma": 3, "verify": "block"}),
        (
            "pjd",
            {"draw_correction": lambda p, q, e, slot: sample_token(p, e).gather(1, slot)},
            {"window": 2, "ahead": 9},
        ),
    ],
)
def test_a_injected_fault_is_noticed(method, fault, method_options):
    module = patch_module(f"parity_decoders.discrete.{method}", **fault)
    assert compute_method_p_value(getattr(module, method), **method_options) < 1e-8
