"""Black boxes: correct ones pass, faulty ones are rejected twice, and what is no sampler is one line."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from parity_certify import Sampled, certify_sampler, target_distribution
from parity_certify import evidence as E
from parity_certify import joint_tests as J
from parity_certify.calls import Drawn, Store
from parity_certify.distributions import count_prefixes
from parity_certify.errors import ParityError
from parity_certify.page import format_page
from parity_certify.result_rows import make_row
from parity_certify.verdict import WITHIN, Verdict, judge_decoders

V, L = 3, 3
PROMPTS = [[0, 1], [2, 1]]
QUIET = {"tell": lambda text: None, "draws": 499}


LOGITS = np.random.default_rng(0).standard_normal((3, count_prefixes(V, L), V))
TABLE = np.exp(LOGITS) / np.exp(LOGITS).sum(-1, keepdims=True)


def compute_conditionals(prefixes):
    """Look up distributions [n, V] after prefixes [n, a, b and tokens], in the part of TABLE that `a` numbers."""
    tokens = prefixes[:, 2:]
    code = (tokens @ V ** np.arange(tokens.shape[1])[::-1]).astype(int)
    return TABLE[prefixes[:, 0], count_prefixes(V, tokens.shape[1]) + code]


DISTRIBUTION = target_distribution(compute_conditionals, vocab=V, length=L, prompts=PROMPTS)


def draw_sequences(distribution, rng, prompts, rows=None):
    """Draw a sequence of a distribution after each prompt, or of `rows`, other joint distributions by prompt; return
    [n, L]."""
    which = [int((distribution.prompts == p).all(1).argmax()) for p in prompts]
    return J.digits(V, L)[[rng.choice(V**L, p=(distribution.joint if rows is None else rows)[k]) for k in which]]


def sample_correctly(prompts, seed):
    """Draw sequences of DISTRIBUTION."""
    return draw_sequences(DISTRIBUTION, np.random.default_rng(seed), prompts)


def sample_first_distribution(prompts, seed):
    """Draw from the distribution of the first prompt after both: a fault."""
    return draw_sequences(DISTRIBUTION, np.random.default_rng(seed), prompts, rows=DISTRIBUTION.joint[[0, 0]])


def test_a_correct_sampler_is_certified_at_the_promised_size():
    n = E.needed(DISTRIBUTION.cells, 0.12)
    # at this size seeds 0 and 1 reject once by chance (p = .012); of seeds 2 to 81, in pairs, none does
    certificate = certify_sampler(sample_correctly, DISTRIBUTION, margin=0.12, seeds=(2, 3), **QUIET)
    assert certificate.verdict.kind == "certified" and certificate.exit_code == 0, str(certificate)
    assert certificate.details["n"] == [n] and certificate.verdict.bound <= 0.12
    tests = {r["test"] for r in certificate.rows}
    assert {"joint G", "Valiant-Valiant", "pairs", "conditionals", "all four", "e-value", "TV certificate"} <= tests
    small = certify_sampler(sample_correctly, DISTRIBUTION, n=300, margin=0.12, **QUIET)
    assert small.verdict.words == "consistent" and f"about {n} sequences" in small.verdict.reason


def test_a_fault_after_one_prompt_is_rejected_and_located():
    certificate = certify_sampler(sample_first_distribution, DISTRIBUTION, margin=0.12, **QUIET)
    v = certificate.verdict
    assert certificate.exit_code == 1 and v.words.startswith("lossy: TV = ") and certificate.mismatch, str(certificate)
    assert v.interval[0] <= 0.5 * np.abs(DISTRIBUTION.joint[0] - DISTRIBUTION.joint[1]).sum() / 2 <= v.interval[1]
    assert certificate.details["where"]["prompt"] == PROMPTS[1]
    assert certificate.details["n"][0] < E.needed(DISTRIBUTION.cells, 0.12)
    longer = certify_sampler(sample_first_distribution, DISTRIBUTION, margin=0.12, repeat=1200, **QUIET)
    assert longer.details["n"] == [certificate.details["n"][0], 1200] and longer.verdict.interval[0] > v.interval[0]
    assert v.where.startswith(f"prompt {PROMPTS[1]}, then ")
    assert {r["seed"] for r in certificate.rows} == {0, 1} and "(repeat, seed 1)" in str(certificate)
    assert "  -   (stopped as soon as p <= 0.025)" in str(certificate)
    by_prompt = {r["test"]: r["p_value"] for r in certificate.rows if r["test"].startswith("prompt")}
    assert by_prompt["prompt 2 1"] < 1e-6 < by_prompt["prompt 0 1"]


def test_distributions_of_callables_and_end_tokens():
    """A sequence has the product of its conditionals; after an end token nothing is drawn any more."""
    product = np.prod(
        [compute_conditionals(np.array([[2, 1, 2, 0, 1][: 2 + t]]))[0, x] for t, x in enumerate((2, 0, 1))]
    )
    assert np.isclose(DISTRIBUTION.joint[1, 2 * V**2 + 0 * V + 1], product)
    ended = target_distribution(compute_conditionals, vocab=V, length=L, prompts=PROMPTS, end=2)
    cells = ended.joint.reshape(2, V, V, V)
    assert np.isclose(cells.sum(), 2) and not cells[:, 2, :2].any() and not cells[:, :, 2, :2].any()
    # sequences that end at once
    assert np.allclose(cells[:, 2, 2, 2], DISTRIBUTION.joint.reshape(2, V, -1)[:, 2].sum(-1))
    joint, codes, width = DISTRIBUTION.prepend_prompt()
    assert width == 3 and np.isclose(joint.sum(), 1) and np.allclose(joint[codes], DISTRIBUTION.cells)
    assert len(J.make_tables(joint, width, L + 1, 1000).df)  # pairs of a token and the prompt are tested, too


def test_short_rows_end_with_the_end_token():
    ended = target_distribution(compute_conditionals, vocab=V, length=L, prompts=PROMPTS, end=2)

    def sample(prompts, seed):
        """Draw rows, but cut each after its first end token, 2."""
        rows = draw_sequences(ended, np.random.default_rng(seed), prompts).tolist()
        return [row[: row.index(2) + 1] if 2 in row else row for row in rows]

    assert certify_sampler(sample, ended, n=400, margin=0.3, **QUIET).exit_code == 0


def test_where_nothing_was_drafted_nothing_is_certified():
    for drafted, accepted, words in ((0, 0, "no draft was offered"), (9, 0, "none of 45 drafts"), (9, 1, "TV <= ")):
        counting = lambda p, s: Sampled(sample_correctly(p, s), drafted, accepted)  # noqa: B023, E731
        certificate = certify_sampler(counting, DISTRIBUTION, n=400, margin=0.5, **QUIET)
        assert certificate.exit_code == (0 if accepted else 2) and words in certificate.verdict.reason


def test_the_verdicts_own_line_says_how_much_was_speculated():
    """Counted, or not known; the same on the page."""
    counting = lambda p, s: Sampled(sample_correctly(p, s), 9, 4)  # noqa: E731
    expected = {counting: "drafts: 4 of 9 accepted", sample_correctly: "not known, it may have drawn plainly"}
    for sample, words in expected.items():
        c = certify_sampler(sample, DISTRIBUTION, n=100, margin=0.5, **QUIET)
        assert words in str(c).splitlines()[0] and words[1:] in format_page(c, Path(), {})


def test_a_gap_of_speculation_is_told():
    """One round a sequence, drafts that are always or never accepted; none of these where there is nothing to tell."""
    gaps = {
        (90, 30, 250): [],
        (90, 30, -1): ["rounds were not counted"],
        (90, 30, 100): ["a second round of speculation: there were 1.00 a sequence"],
        (90, 89, 250): ["what follows a rejection: 98.9% of the drafts were accepted"],
        (900, 3, 250): ["what follows an acceptance: 0.3% of the drafts were accepted"],
        (90, 90, 100): ["a second round", "what follows a rejection: 100.0%"],
    }
    for counts, expected in gaps.items():
        counting = lambda p, s: Sampled(sample_correctly(p, s), *counts)  # noqa: B023, E731
        certificate = certify_sampler(counting, DISTRIBUTION, n=400, margin=0.5, vary=False, **QUIET)
        assert certificate.exit_code == 0 and len(certificate.warnings) == len(expected), certificate.warnings
        assert all(text in gap for text, gap in zip(expected, certificate.warnings, strict=True))
        assert set(certificate.warnings) <= set(certificate.verdict.untested)
        if counts[2] > 0:
            assert certificate.details["rounds"] == counts[2] / 100
            assert f"accepted, {counts[2] / 100:.2f} rounds a sequence" in str(certificate)


@pytest.mark.parametrize(
    ("tv", "seeds"), [(0.2, [16, 18, 53, 59, *range(13)]), (0.06, [12, 38, 57, 64, 83, *range(20, 28)])]
)
def test_a_fault_found_early_by_luck_gets_an_answer(tv, seeds):
    """Seeds on which twice the first sample was too few to reject again, and others: all are lossy, and the interval
    holds the TV."""
    d = np.random.default_rng(7).dirichlet(np.ones(27), size=2) - DISTRIBUTION.joint
    wrong = (DISTRIBUTION.joint + d * tv / (0.5 * np.abs(d).sum(1).mean())).clip(0)
    wrong /= wrong.sum(1, keepdims=True)
    truth, longer = 0.25 * np.abs(wrong - DISTRIBUTION.joint).sum(), 0
    for seed in seeds:
        sample = lambda p, s: draw_sequences(DISTRIBUTION, np.random.default_rng(s), p, rows=wrong)  # noqa: E731
        certificate = certify_sampler(
            sample, DISTRIBUTION, margin=0.05, seeds=(2 * seed, 2 * seed + 1), **QUIET | {"draws": 199}
        )
        assert certificate.verdict.kind == "lossy"
        assert certificate.verdict.interval[0] <= truth <= certificate.verdict.interval[1]
        longer += certificate.details["n"][1] > 2 * certificate.details["n"][0] + 100
    assert longer >= 4


def test_a_repeat_that_goes_on_keeps_the_level():
    """150 correct samplers, looked at after 200, 400, 800 and 1600 sequences: at most 16 reach p <= .05 at some look
    (99.9 % by the binomial), and the last p-value is the one of all looks."""
    rejected = 0
    for seed in range(150):
        drawn, looks, ps = Drawn(np.zeros(len(DISTRIBUTION.cells), dtype=np.int64)), {}, []
        for size in (200, 200, 400, 800):
            drawn.counts += np.random.default_rng([seed, len(ps)]).multinomial(size, DISTRIBUTION.cells)
            drawn.max_log_e = max(drawn.max_log_e, float(J.compute_log_e(drawn.counts, DISTRIBUTION.cells)))
            rows = E.make_sample_rows(drawn, DISTRIBUTION, seed, alpha=0.05, draws=99, looks=looks)
            looks = E.add_look(looks, drawn, rows)
            ps.append(next(r["p_value"] for r in rows if r["test"] == "all looks"))
        rejected += min(ps) <= 0.05
        assert ps == sorted(ps, reverse=True) and len(looks) == 4
    assert rejected <= 16


def test_a_rejection_that_does_not_repeat_says_what_to_do():
    """Wrong in the first call alone: the repeat goes on to four times the sequences, then names the next run."""
    first = set()

    def sample(prompts, seed):
        """Draw wrongly on the first seed that is asked for, rightly on others."""
        first.update([] if first else [seed])
        return sample_first_distribution(prompts, seed) if seed in first else sample_correctly(prompts, seed)

    certificate = certify_sampler(sample, DISTRIBUTION, n=200, margin=0.12, vary=False, **QUIET | {"draws": 199})
    assert certificate.verdict.kind == "inconclusive" and certificate.details["n"] == [100, 800], str(certificate)
    assert "certify on other seeds, with n = 3200 sequences or more" in certificate.verdict.reason


@pytest.mark.parametrize(("wrong", "kind"), [(0, "certified"), (0.01, "lossy")])
def test_a_greedy_distribution_is_a_distribution(wrong, kind):
    """The likeliest token with certainty: a sampler that draws another one now and then is lossy."""
    greedy = target_distribution(
        lambda x: np.eye(V)[compute_conditionals(x).argmax(1)], vocab=V, length=L, prompts=PROMPTS
    )

    def sample(prompts, seed):
        """Return the likeliest sequences, but replace the last token by a random one in a share `wrong` of them."""
        rng, likeliest = np.random.default_rng(seed), J.digits(V, L)[greedy.joint.argmax(1)]
        tokens = likeliest[(prompts[:, 0] == 2).astype(int)]
        tokens[rng.random(len(tokens)) < wrong, -1] = rng.integers(V)
        return tokens

    assert certify_sampler(sample, greedy, margin=0.05, **QUIET).verdict.kind == kind


def cache_samples(p, s):
    """Draw rightly, but return for every second row what an earlier row with its prompt got: a fault."""
    tokens = sample_correctly(p, s)
    cache = {}
    for i, prompt in enumerate(map(tuple, p)):
        if prompt in cache and i % 2:
            tokens[i] = cache[prompt]
        cache[prompt] = tokens[i]
    return tokens


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        (lambda p, s: sample_correctly(p, s)[:, :2], "row 0: 2 tokens and no end token; allowed: 3"),
        (
            lambda p, s: np.repeat(sample_correctly(p, s), 2, 1),
            r"row 0: 6 tokens; allowed: 3, the distribution's length \(--length",
        ),
        (lambda p, s: sample_correctly(p, s)[1:], "99 sequences for 100 prompts; allowed: one each"),
        (lambda p, s: sample_correctly(p, s) + 1, r"position \d: token 3; allowed: 0 to 2"),
        (lambda p, s: None, r"returned NoneType; allowed: tokens \[n, 3\], or Sampled"),
        (lambda p, s: sample_correctly(p, s) + 0.5, r"row 0: shape \(3,\) of float64; allowed: 3 token numbers"),
        (cache_samples, "repeats its last sample"),
        (lambda p, s: Sampled(sample_correctly(p, s), 247, 321), "321 drafts accepted of 247 offered"),
        (lambda p, s: sample_correctly(p, 1), "the same samples under different seeds"),
    ],
)
def test_what_is_no_sampler_is_one_line(sample, message):
    with pytest.raises(ParityError, match=message) as error:
        certify_sampler(sample, DISTRIBUTION, n=400, **QUIET)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n": -5}, "n -5: allowed: above 0"),
        ({"n": 1.5}, "n 1.5: allowed: above 0, a whole number"),
        ({"batch": "100"}, "batch '100': allowed"),
        ({"margin": "0.1"}, "margin '0.1': allowed: above 0, below 1"),
        (
            {"seeds": (0, 0)},
            r"seeds \(0, 0\): allowed: whole numbers from 0 to .*, each another",
        ),  # a repeat on no fresh seed
        ({"seeds": (0, 1.5)}, r"seeds 1.5: allowed"),
        ({"seeds": 3}, "seeds 3: allowed"),
    ],
)
def test_a_setting_that_is_no_number_of_its_kind_is_one_line(settings, message):
    with pytest.raises(ParityError, match=message):
        certify_sampler(sample_correctly, DISTRIBUTION, **{"n": 400} | settings, **QUIET)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: target_distribution(lambda x: np.full((len(x), V), 0.5), vocab=V, length=L),
            r"not a distribution \(smallest 0.5, sum 1.5\)",
        ),
        (
            lambda: target_distribution(lambda x: np.ones(3), vocab=V, length=L),
            r"shape \(3,\) for \(1, 1\) prefixes; allowed: \[n, 3\]",
        ),
        (
            lambda: target_distribution(compute_conditionals, vocab=50_000, length=8),
            "too many to enumerate .*parity-certify texts",
        ),
        (
            lambda: target_distribution(compute_conditionals, vocab=np.int64(2**16), length=4),  # 2^64 would wrap to 0
            "too many to enumerate .*parity-certify texts",
        ),
        (
            lambda: target_distribution(compute_conditionals, vocab=3.0, length=2),
            "vocab 3.0, length 2, .*: allowed: whole numbers",
        ),
        (lambda: target_distribution(compute_conditionals, vocab=V, length=L, end=1.5), "end 1.5: allowed: a token"),
        (
            lambda: target_distribution(compute_conditionals, vocab=V, length=L, prompts=[[0, 1], [0, 1]]),
            "one is given twice",
        ),
        (
            lambda: target_distribution(compute_conditionals, vocab=V, length=L, prompts=[[0, 1], [2]]),
            r"prompts: allowed: \[K, P\] token",
        ),
        (
            lambda: target_distribution(compute_conditionals, vocab=V, length=L, prompts=PROMPTS, end=V),
            "end 3: allowed: a token, 0 to 2",
        ),
    ],
)
def test_what_is_no_distribution_is_one_line(make, message):
    with pytest.raises(ParityError, match=message) as error:
        make()
    assert "\n" not in str(error.value)


def test_kept_samples_are_continued(tmp_path):
    """A crash keeps what there is; a second call draws the rest alone; another sampler is refused."""
    calls = []

    def sample(prompts, seed):
        """Draw rightly, but fail at the third call."""
        calls.append(seed)
        if len(calls) == 3:
            raise RuntimeError("out of memory")
        return sample_correctly(prompts, seed)

    def certify(n=500, name="it", folder=tmp_path):
        """Certify the sampler with samples kept in a folder."""
        return certify_sampler(sample, DISTRIBUTION, n=n, folder=folder, name=name, vary=False, **QUIET)

    with pytest.raises(ParityError, match=r"failed after 200 sequences \(kept in .*\): RuntimeError: out of memory"):
        certify()
    certificate = certify()
    assert len(calls) == 6 and certificate.details["n"] == [500]
    assert certify().details["n"] == [500] and len(calls) == 6
    longer = certify(700)
    assert len(calls) == 8 and longer.rows[-1]["n"] <= 700 and Store(tmp_path).read_looks(0).keys() == {500, 700}
    assert (certificate.counts == certify(folder=None).counts).all()  # the same samples as drawn in one call
    with pytest.raises(ParityError, match=r"holds samples of another sampler \(sampler differ\)"):
        certify(name="other")


def test_stopping_leaves_the_size_of_the_test():
    """400 correct samplers, looked at after every batch: at most 6 % rejected at .05, none at 1e-6."""
    rng, codes = np.random.default_rng(1), DISTRIBUTION.prepend_prompt()[1]
    t = J.make_tables(*DISTRIBUTION.prepend_prompt()[::2], L + 1, 1500)
    running = np.cumsum(rng.multinomial(100, DISTRIBUTION.cells, size=(400, 15)), 1)
    best = J.compute_log_e(running, DISTRIBUTION.cells).max(1)
    counts = np.zeros((400, len(t.distribution)))
    counts[:, codes] = running[:, -1]
    null = J.simulate_null(t, 1999, rng)
    p = np.minimum(2 * np.exp(-best), 2 * J.compute_p_values(J.compute_statistics(counts, t), null)[:, 4])
    assert (p <= 0.05).sum() <= 24 and not (p <= 1e-6).any(), np.sort(p)[:30]
    wrong = np.cumsum(rng.multinomial(100, DISTRIBUTION.joint[[0, 0]].ravel() / 2, size=(50, 15)), 1)
    assert (
        2 * np.exp(-J.compute_log_e(wrong, DISTRIBUTION.cells).max(1)) <= 1e-6
    ).all()  # a wrong distribution is rejected


def test_a_budget_is_kept_and_what_could_be_seen_is_said(clock):
    """A slow sampler, a tenth of the sequences that the margin needs: in time, and consistent with the bound."""

    def slow(prompts, seed):
        """Draw rightly, taking 2 ms a row."""
        clock.sleep(0.002 * len(prompts))
        return sample_correctly(prompts, seed)

    certificate = certify_sampler(slow, DISTRIBUTION, budget=1.5, margin=0.01, **QUIET)
    assert clock.now <= 1.5 and certificate.verdict.kind == "consistent"
    assert certificate.details["n"][0] >= 100
    assert "could not be found; a bound below 0.01 takes about" in certificate.verdict.reason

    def fast(prompts, seed):
        """Draw wrongly, taking 10 microseconds a row."""
        clock.sleep(1e-5 * len(prompts))
        return sample_first_distribution(prompts, seed)

    wrong = certify_sampler(fast, DISTRIBUTION, budget=3, margin=0.01, **QUIET)
    assert wrong.verdict.kind == "lossy" and len(wrong.details["n"]) == 2


def test_minutes_count_the_repeat_as_well(clock):
    """A rejection that takes longer to repeat than the time has left."""

    def slow(prompts, seed):
        """Draw wrongly, taking 4 ms a row."""
        clock.sleep(0.004 * len(prompts))
        return sample_first_distribution(prompts, seed)

    lines: list[str] = []
    settings = QUIET | {"tell": lines.append}
    certificate = certify_sampler(
        slow, DISTRIBUTION, minutes=1.5 / 60, repeat=100_000, margin=0.01, batch=20, **settings
    )
    assert clock.now <= 1.5 and len(certificate.details["n"]) == 2
    assert "sequences, about" in lines[0]


@pytest.mark.parametrize("shape", ["everywhere", "in four cells"])
@pytest.mark.parametrize("tv", [0.0, 0.05])
def test_the_tv_estimate_is_nearer_to_the_truth_than_tvhat(shape, tv):
    """On 243 cells at two sizes: the truth is known, and the plain TVhat of a perfect sampler is far from 0."""
    rng = np.random.default_rng(3)
    distribution = rng.dirichlet(np.ones(243))
    d = rng.dirichlet(np.ones(243)) - distribution
    if shape == "in four cells":
        d = np.zeros(243)
        d[np.argsort(distribution)[-4:]] = 1, -1, 1, -1
    wrong = (distribution + d * tv / (0.5 * np.abs(d).sum())).clip(0)
    wrong /= wrong.sum()
    truth = 0.5 * np.abs(wrong - distribution).sum()
    for n in (500, 40_000):
        counts = rng.multinomial(n, wrong, size=20)
        estimates = np.array([J.estimate_tv(c, distribution) for c in counts])
        assert np.abs(estimates - truth).mean() < np.abs(J.compute_tv(counts, distribution) - truth).mean() + 0.002
        assert np.abs(estimates - truth).mean() < 0.045 + 2 / np.sqrt(n) * (tv > 0)


@pytest.mark.parametrize(
    ("verdict", "words", "pill", "code"),
    [
        (Verdict("certified", bound=0.0123), "certified lossless", "certified lossless, TV <= 0.012", 0),
        (Verdict("consistent"), "consistent", "consistent", 2),
        (Verdict("consistent", require="consistent"), "consistent", "consistent", 0),
        (Verdict("certified", require="consistent"), "certified lossless", "certified lossless", 0),
        (Verdict("inconclusive", require="consistent"), "inconclusive", "inconclusive", 2),
        (Verdict("lossy", bound=0.3, estimate=0.25), "lossy: TV = 0.2500", "lossy: TV = 0.2500", 1),
        (Verdict("inconclusive", bound=0.1), "inconclusive", "inconclusive", 2),
        (Verdict("certified", within=True), WITHIN, WITHIN, 0),
        (Verdict("lossy", within=True), "differs by more than eps", "differs by more than eps", 1),
    ],
)
def test_words_pill_and_exit_code_are_made_from_the_value(verdict, words, pill, code):
    assert (verdict.words, verdict.pill, verdict.exit_code) == (words, pill, code)
    loaded = json.loads(json.dumps(verdict.json()))
    assert loaded["kind"] == verdict.kind and loaded["exit_code"] == code and loaded["bound"] == verdict.bound
    with pytest.raises(dataclasses.FrozenInstanceError):
        verdict.kind = "certified"


def test_the_judge_returns_the_value_with_what_was_tested():
    bound = make_row(
        "exact", "TV certificate", 5000, effect=0.004, minimum_detectable_effect=0.01, decides=False, alpha=0.05
    )
    bound |= {"tv": 0.001, "tv_low": 0.0, "tv_high": 0.005, "method": "d"}
    test = make_row("exact", "all four", 5000, p_value=0.4, p_holm=0.4, method="d")
    (judged,) = judge_decoders([test, bound], {"d": "lossy"}, 0.01)
    v = judged["value"]
    assert (v.kind, v.bound, v.estimate, v.interval, v.n, v.tested) == (
        "certified", 0.004, 0.001, (0.0, 0.005), 5000, ("exact",),
    )  # fmt: skip
    assert judged["verdict"] == v.words
    assert judged["mismatch"]
    assert v.contradicts("lossy")
    assert not v.contradicts("lossless")
