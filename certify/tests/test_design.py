"""Designs: a fault under any condition is found, what a sampler has no option for is told, the level is kept."""

import numpy as np
import pytest

from parity_certify import Sampled, certify_design, certify_sampler, target_distribution
from parity_certify import design as D
from parity_certify.errors import ParityError
from parity_certify.evidence import find_detectable_tv
from parity_certify.joint_tests import digits
from parity_certify.processors import shape_distribution

V = 4
TABLE = 1.3 * np.random.default_rng(5).standard_normal((V, V, V))
QUICK = {"vocab": V, "draws": 999, "budget": None}


def compute_logits(prefixes):
    """A target whose logits depend on the last two tokens."""
    return TABLE[prefixes[:, -1], prefixes[:, -2] if prefixes.shape[1] > 1 else 0]


def enumerate_distribution(options, *, prompts, end, **settings):
    """Enumerate the distribution under options of transformers."""
    return target_distribution(
        shape_distribution(compute_logits, options, "transformers", prompts.shape[1], end),
        prompts=prompts,
        end=end,
        **settings,
    )


DISTRIBUTION = enumerate_distribution({}, prompts=np.zeros((1, 1), int), end=None, vocab=V, length=2)


def sample(prompts, seed, *, length, drafts=0, end=None, rows=None, engine="transformers", **options):
    """Draw plainly under any options of an engine; rows: those of each row."""
    rng, out = np.random.default_rng(seed), np.array(prompts)
    each = [options | {k: v for k, v in row.items() if k != "seed"} for row in rows or [{}]]
    groups = {str(own): (own, [i for i, one in enumerate(each) if one == own]) for own in each}
    for t in range(length):
        p = np.empty((len(out), V))
        for own, members in groups.values():
            chosen = members if rows else slice(None)
            p[chosen] = shape_distribution(compute_logits, own, engine, prompts.shape[1], end)(out[chosen])
        token = (rng.random(len(out))[:, None] >= p.cumsum(1)).sum(1).clip(max=V - 1)
        if end is not None and t:
            token = np.where((out[:, prompts.shape[1] :] == end).any(1), end, token)
        out = np.concatenate([out, token[:, None]], 1)
    return Sampled(out[:, prompts.shape[1] :], 2, 1)


def test_a_correct_sampler_is_certified_under_all_conditions():
    """Each is covered at the margin, and none is left out."""
    c = certify_design(sample, compute_logits, **QUICK)
    assert c.verdict.kind == "certified" and f"in each of {len(D.DESIGN)} conditions" in c.verdict.reason, str(c)
    assert len(c.verdict.tested) == len(D.DESIGN) == len(c.details["conditions"])
    assert all("finds a TV of 0.0" in text or "0.100" in text for text in c.verdict.tested), c.verdict.tested
    assert not any("no such option" in text for text in c.verdict.untested)
    assert c.verdict.bound < c.details["joint_bound"] < 1.5 * c.verdict.bound


OTHER_ORDER = ["repetition_penalty", "temperature", "top_p", "top_k", "min_p"]


def sample_in_other_order(prompts, seed, **options):
    """Draw with top-p of all tokens, then top-k."""
    return sample(prompts, seed, engine=OTHER_ORDER, **options)


def draft_without_penalty(prompts, seed, *, factor=1.0, **options):
    """Draw plainly, with drafts except under a repetition penalty, which is applied `factor` times as strongly."""
    penalty = options.get("repetition_penalty", 1.0)
    options |= {} if penalty == 1 else {"repetition_penalty": penalty * factor}
    drawn = sample(prompts, seed, **options)
    return drawn if penalty == 1 else Sampled(drawn.tokens, 0, 0)


def test_a_condition_without_drafts_is_not_covered_and_not_excused():
    """The others are certified; a fault there is found; without any draft nothing is decided."""
    c = certify_design(draft_without_penalty, compute_logits, **QUICK)
    covered = len(c.details["conditions"]) - 1
    assert c.verdict.kind == "certified" and f"in each of {covered} conditions" in c.verdict.reason, str(c)
    assert any("repetition_penalty" in text and "no draft was offered" in text for text in c.verdict.untested)
    assert not any("repetition_penalty" in text for text in c.verdict.tested)
    faulty = certify_design(lambda *a, **k: draft_without_penalty(*a, factor=2.0, **k), compute_logits, **QUICK)
    assert faulty.verdict.kind == "lossy" and "repetition_penalty" in faulty.verdict.where
    none = certify_design(lambda *a, **k: Sampled(sample(*a, **k).tokens, 0, 0), compute_logits, n=200, **QUICK)
    assert none.verdict.kind == "inconclusive" and "no draft was offered" in none.verdict.reason


def test_the_order_of_filters_is_the_engines():
    """One that is not its own is found, and named; an engine may say that it has another."""
    c = certify_design(sample_in_other_order, compute_logits, **QUICK)
    assert c.exit_code == 1 and c.verdict.where.startswith("top_k 3, top_p 0.8"), str(c)
    assert "diagnosis: top_p before top_k; if the engine defines them so, name it" in str(c), str(c)
    c = certify_design(sample_in_other_order, compute_logits, engine=OTHER_ORDER, **QUICK)
    assert c.verdict.kind == "certified" and len(c.verdict.tested) == len(D.DESIGN), str(c)


def test_what_an_engine_has_no_option_for_is_told():
    """Also an option of a row; a pair of filters is left out whole."""
    conditions, missing = D.make_conditions(sample, compute_logits, vocab=V, engine=["temperature", "top_p", "min_p"])
    assert missing == dict.fromkeys(("repetition_penalty", "rows", "top_k"), "the engine has no such option")
    assert not any("top_k" in one.name or "repetition" in one.name for one in conditions) and len(conditions) == 4
    conditions, missing = D.make_conditions(sample, compute_logits, vocab=V, engine="llama.cpp")
    assert not missing and len(conditions) == len(D.DESIGN)


@pytest.mark.parametrize("fault", ["temperature", "top_k", "repetition_penalty", "top_p", "min_p", "prompt", "rows"])
def test_a_fault_of_one_condition_is_found_and_named(fault):
    """An option is ignored; the prompt's first token is lost; all rows of a call have the first one's options."""

    def faulty(prompts, seed, **options):
        """Draw with the fault."""
        if fault == "rows" and "rows" in options:
            options["rows"] = options["rows"][:1] * len(prompts)
        if fault == "prompt":
            return sample(prompts[:, -1:], seed, **options)
        return sample(prompts, seed, **{k: v for k, v in options.items() if k != fault or fault == "rows"})

    c = certify_design(faulty, compute_logits, **QUICK)
    assert c.exit_code == 1, str(c)
    assert fault in c.verdict.where or fault == "prompt", c.verdict.where
    assert f"diagnosis: {fault} is not applied" in str(c) or fault in ("prompt", "rows"), str(c)


def test_what_a_sampler_has_no_option_for_is_told():
    """It is called with the options of its signature alone, also one of a fixed length."""

    def limited(prompts, seed, *, temperature=1.0):
        return sample(prompts, seed, length=2, temperature=temperature)

    c = certify_design(limited, compute_logits, length=2, **QUICK)
    assert c.verdict.kind == "certified", str(c)
    missing = [text for text in c.verdict.untested if "no such option" in text]
    assert len(missing) == len(D.list_names() - {"temperature", *D.OF_PROMPTS}) and "top_k" in " ".join(missing)


def test_a_condition_that_time_does_not_cover_is_told(clock):
    """With few sequences of each nothing is covered, and each says which TVs could not be found."""
    c = certify_design(sample, compute_logits, n=150, **QUICK)
    assert c.verdict.kind == "consistent" and c.verdict.tested == (), str(c)
    assert sum("TVs below 0." in text for text in c.verdict.untested) == len(D.DESIGN)
    lines = []
    slow = D.Condition(
        "slow", lambda p, s: (clock.sleep(0.002 * len(p)), sample(p, s, length=2).tokens)[1], DISTRIBUTION
    )
    c = D.certify_conditions([slow], budget=1.0, draws=299, margin=0.05, tell=lines.append)
    assert 100 <= min(c.details["n"]) <= 600 and clock.now < 2, (c.details, lines)


def test_a_failure_names_its_condition():
    def failing(prompts, seed, *, top_k=0):
        raise ValueError(f"no top-k {top_k}")

    with pytest.raises(ParityError, match=r"^top_k 2, prompt 1: sampler: ValueError: no top-k 2"):
        certify_design(failing, compute_logits, **QUICK)
    with pytest.raises(ParityError, match="conditions: allowed: at least one"):
        D.certify_conditions([])


def make_faulty_distribution(distribution, tv, rng):
    """Scale random halves of each joint distribution up and down, so that it is `tv` away: the fault that is hardest to
    find."""
    joint = distribution.joint.copy()
    for p in joint:
        while not 0.3 < p[up := rng.random(len(p)) < 0.5].sum() < 0.7:
            pass
        p[up] *= 1 + tv / p[up].sum()
        p[~up] *= 1 - tv / p[~up].sum()
    return joint


def draw_jointly(joint, distribution):
    """Make the sampler of joint distributions [K, V^L] after the prompts of a distribution."""
    sequences = digits(distribution.vocab, distribution.length)

    def draw(prompts, seed):
        """Draw sequences after prompts [n, P]."""
        which = (prompts[:, None] == distribution.prompts).all(-1).argmax(1)
        u = np.random.default_rng(seed).random(len(which))
        return sequences[(u[:, None] >= joint.cumsum(1)[which]).sum(1).clip(max=joint.shape[1] - 1)]

    return draw


@pytest.mark.parametrize("K", [1, 2])
def test_the_tv_that_is_told_is_found(K):
    """In 19 of 20 cases or more, as with a power of .95; at a tenth of the TV in none."""
    distribution = D.make_distribution(enumerate_distribution, {"length": 3, "prompt": 2, "prompts": K}, V)
    n = D.compute_size(D.Condition("", None, distribution), 0.1, 0.01)
    rng = np.random.default_rng(0)
    for tv, expected in ((0.1, 19), (0.01, 0)):
        found = 0
        for seed in range(20):
            draw = draw_jointly(make_faulty_distribution(distribution, tv, rng), distribution)
            settings = {
                "n": n,
                "alpha": 0.01,
                "seeds": (2 * seed, 2 * seed + 1),
                "draws": 999,
                "tell": lambda text: None,
            }
            found += certify_sampler(draw, distribution, **settings).exit_code == 1
        assert found >= expected if expected else found == 0, (tv, found)
    assert find_detectable_tv(distribution.cells, n // 4, 0.01, D.POWER) > 0.15
