"""Decoders on enumerable models: exactness, reductions, independence of the batch."""

import itertools

import numpy as np
import pytest
import torch
from scipy import stats

from parity.base.noise import counted_noise
from parity.decode.discrete import decode
from parity.decoders.candidates import dynamic
from parity.decoders.discrete.ar import ar
from parity.decoders.discrete.eagle import eagle
from parity.decoders.discrete.gsd import groups, gsd
from parity.decoders.discrete.jacobi import jacobi
from parity.decoders.discrete.lantern import lantern
from parity.decoders.discrete.lantern_pp import lantern_pp
from parity.decoders.discrete.mtj import mtj
from parity.decoders.discrete.sjd import sjd
from parity.decoders.discrete.sjd_coupled import sjd_coupled
from parity.decoders.discrete.sjd_pac import sjd_pac
from parity.decoders.discrete.spec import spec
from parity.decoders.discrete.vvs import similarity, vvs
from parity.decoders.discrete.zipar import zipar
from parity.decoders.steps import Step
from parity.decoders.verification import descend, look_alikes, race, verify
from parity.models.discrete.sampling import Sampled, Sampling
from parity.models.discrete.tabular import TabularDrafter, TabularModel, joint
from tests.tables import counts, run, table

INITS = ("random", "repeat_left", "repeat_above", "sample_left", "sample_above")
CASES = [(ar, {}), (jacobi, {"window": 3}), (jacobi, {"window": 3, "coupling": "shared"})]
CASES += [(sjd, {"window": w, "init": i}) for w in (3, 4) for i in INITS]
CASES += [(sjd, {"window": 3, "init": i, "refine": False}) for i in ("random", "sample_above")]
CASES += [
    (sjd_coupled, {"window": 4, "init": i, "warm": w, "coupling": "maximal"}) for i in INITS for w in (False, True)
]
CASES += [(sjd_coupled, {"window": 4, "init": i, "warm": w}) for i in ("random", "sample_above") for w in (False, True)]
CASES += [
    (gsd, {"window": 3, "group": g, "resample": "group", "init": i}) for g in (2, 3) for i in ("random", "sample_above")
]
CASES += [(gsd, {"window": 3, "group": 1})]
TREES = [
    {"window": 3, "branches": 2, "depth": 2},
    {"window": 4, "branches": 5, "depth": 1},
    {"window": 2, "branches": 2},
    {"window": 1},
]
PAC = [
    {"window": 4, "branches": 2},
    {"window": 3, "branches": 3},
    {"window": 5, "branches": 2, "depth": 3},
    {"window": 2, "depth": 1},
]
CASES += [
    (sjd_pac, {**t, "init": i, "warm": w})
    for t in PAC
    for i, w in (("random", False), ("sample_above", True), ("repeat_left", False))
]
CASES += [(spec, {"gamma": g}) for g in (1, 2, 4, 9)]
CASES += [(mtj, {**t, "warm": w}) for t in TREES for w in (False, True)]
DRAFTS = [{}, {"total": 5, "depth": 2, "top_k": 2}, {"total": 9, "depth": 3, "top_k": 3}]
CASES += [(eagle, t) for t in (*DRAFTS, {"depth": 3, "total": 6, "top_k": 2, "rank": "race"})] + [
    (lantern, {"delta": 0.0, "top_k": 2}),
    (vvs, {"delta": 0.0, "schedule": "off", "depth": 2}),
]
CASES += [(lantern_pp, {"relax": 0.0, "breadth": b, "depth": d}) for b, d in ((4, 4), (2, 2), (1, 3))]


LOSSY = [
    (sjd, {"window": 3, "init": "sample_above", "tolerance": 0.05}),
    (gsd, {"window": 3, "group": 3, "delta": 1.0}),
    (sjd_coupled, {"window": 4, "coupling": "maximal", "store": "q"}),
    (lantern, {}),
    (lantern, {"reject": "all"}),
    (lantern_pp, {"relax": 1.0}),
    (vvs, {"delta": 0.0, "interval": 2}),
    (vvs, {"delta": 0.0, "interval": 2, "select": "confidence", "truncate": False}),
    (vvs, {"delta": 0.0, "schedule": "dynamic"}),
    (vvs, {"delta": 0.0, "schedule": "off", "replace": 1.0}),
    (zipar, {"ahead": 1}),
]
# zipar's tokens do not become final in the order of their positions: it has tests of its own
ANY = CASES + [c for c in LOSSY if c[0] is not zipar]


def p_value(tokens, law, vocab):
    """Chi-square against the exact joint; cells expected fewer than ten times are pooled."""
    observed, expected = counts(tokens, vocab).numpy(), law.numpy() * len(tokens)
    big = expected >= 10
    o, e = np.append(observed[big], observed[~big].sum()), np.append(expected[big], expected[~big].sum())
    if e[-1] < 1:
        o, e = o[:-1], e[:-1] * o[:-1].sum() / e[:-1].sum()
    return stats.chisquare(o, e).pvalue


@pytest.mark.parametrize(("decoder", "options"), CASES)
def test_exact_on_an_enumerable_model(decoder, options):
    V, L, n = 3, 5, 60_000
    logits = table(V, L)
    law = joint(TabularModel(logits, L, V**L), V, L)
    assert p_value(run(decoder, logits, L, n, **options).tokens, law, V) > 1e-4


def test_a_biased_decoder_is_noticed():
    """The must-fail case beside it: SJD whose correction is drawn from p instead of the residual."""
    import parity.decoders.sjd as module

    from parity.decoders.verification import race

    V, L, n = 3, 5, 60_000
    logits = table(V, L)
    law = joint(TabularModel(logits, L, V**L), V, L)
    original = module.verify

    def wrong(p, q, draft, point, u, exponential, tolerance):
        accepted = torch.where(
            point, False, u * q.gather(-1, draft[..., None])[..., 0] < p.gather(-1, draft[..., None])[..., 0]
        )
        n = accepted.long().cumprod(-1).sum(-1)
        fresh = race(p, exponential)
        tokens = torch.where(torch.arange(draft.shape[1]) < n[:, None], draft, fresh)
        return tokens, (n + 1).clamp(max=draft.shape[1])

    try:
        module.verify = wrong
        assert p_value(run(sjd, logits, L, n, window=3).tokens, law, V) < 1e-12
    finally:
        module.verify = original


@pytest.mark.parametrize(("decoder", "options"), CASES)
def test_guidance_top_k_and_grammar_reach_the_decoder(decoder, options):
    V, L, n = 3, 5, 40_000
    forced = torch.tensor([-1, 2, -1, -1, 0])
    logits, sampling = table(V, L, pair=True), Sampling(guidance=2.0, temperature=0.9, top_k=2)
    exact = Sampled(TabularModel(logits, L, V**L, forced=forced), sampling)
    law = joint(exact, V, L)
    assert (law > 0).sum() <= 2**3
    tokens = run(decoder, logits, L, n, forced=forced, sampling=sampling, **options).tokens
    assert (tokens[:, 1] == 2).all() and (tokens[:, 4] == 0).all()
    support = law > 0
    observed = counts(tokens, V)[support].numpy()
    assert observed.sum() == n  # nothing outside the law's support
    assert stats.chisquare(observed, law[support].numpy() * n).pvalue > 1e-4


@pytest.mark.parametrize(("decoder", "options"), [*ANY, (zipar, {"ahead": 1})])
def test_a_row_alone_equals_the_row_in_a_batch(decoder, options):
    logits = table(4, 6)
    together = run(decoder, logits, 6, 40, **options)
    for b in range(0, 40, 7):
        alone = run(decoder, logits, 6, 1, noise=counted_noise(1, range(b, b + 1)), **options)
        assert torch.equal(alone.tokens[0], together.tokens[b]) and alone.nfe[0] == together.nfe[b]
        assert torch.equal(alone.step[0], together.step[b])


@pytest.mark.parametrize("init", INITS)
def test_sjd_with_a_window_of_one_is_ar(init):
    logits = table(4, 6)
    a, s = run(ar, logits, 6, 3000), run(sjd, logits, 6, 3000, window=1)
    assert torch.equal(a.tokens, s.tokens) and (s.nfe == 6).all()
    assert (run(sjd, logits, 6, 300, window=1, init=init).nfe == 6).all()


@pytest.mark.parametrize("window", [1, 2, 4, 9])
def test_jacobi_with_shared_noise_is_ar_in_fewer_passes(window):
    logits = table(4, 6)
    a, j = run(ar, logits, 6, 3000), run(jacobi, logits, 6, 3000, window=window, coupling="shared")
    assert torch.equal(a.tokens, j.tokens)
    assert (j.nfe <= 6).all() and (window == 1) == (j.nfe == 6).all().item()


@pytest.mark.parametrize(("decoder", "options"), CASES)
def test_greedy_equals_greedy_ar(decoder, options):
    logits, greedy = table(5, 6), Sampling(top_k=1)
    a = run(ar, logits, 6, 20, sampling=greedy).tokens
    assert torch.equal(run(decoder, logits, 6, 20, sampling=greedy, **options).tokens, a)
    assert (a == a[0]).all()  # the most likely token at each place, whatever the noise


@pytest.mark.parametrize(("decoder", "options"), ANY)
def test_records_add_up(decoder, options):
    L = 6
    d = run(decoder, table(4, L), L, 200, **options)
    assert (d.kept.sum(1) == L).all() and ((d.kept > 0).sum(1) == d.nfe).all()
    assert (d.step.diff(dim=1) >= 0).all() and (d.step[:, 0] == 1).all() and torch.equal(d.step[:, -1].long(), d.nfe)
    assert d.passes == d.nfe.max() and (d.nodes >= d.nfe).all()


def test_forced_tokens_cost_plain_sampling_no_pass():
    forced = torch.tensor([2, -1, 2, 2, -1, 0])
    d = run(ar, table(3, 6), 6, 50, forced=forced)
    assert (d.nfe == 2).all() and (d.tokens[:, forced >= 0] == forced[forced >= 0]).all()


def test_refinement_is_what_accelerates():
    """Teng et al. 2024, fig. 14: without eq. 3 fewer tokens per pass. On a model whose law depends weakly on the past."""
    V, L = 4, 6
    weak = table(V, 1, seed=3, scale=2.0)[:1].expand(sum(V**i for i in range(L)), -1) + 0.2 * table(V, L)
    assert (
        run(sjd, weak, L, 2000, window=6).nfe.float().mean()
        < run(sjd, weak, L, 2000, window=6, refine=False).nfe.float().mean() - 0.5
    )


def test_reductions_hold_token_for_token():
    """The methods of one family are the same decoder where their options say so, under the same noise."""
    logits = table(4, 6)

    def tokens(decoder, **options):
        return run(decoder, logits, 6, 2000, **options).tokens

    for init in INITS:
        base = tokens(sjd, window=3, init=init)
        for resample in ("token", "group"):
            assert torch.equal(base, tokens(gsd, window=3, init=init, group=1, resample=resample))
        assert not torch.equal(base, tokens(gsd, window=3, init=init, group=3, delta=1.0, distance=9.0))
        for warm in (False, True):
            assert torch.equal(tokens(ar), tokens(sjd_coupled, window=4, init=init, warm=warm))
    assert torch.equal(tokens(jacobi, window=3, coupling="shared"), tokens(sjd_coupled, window=3, init="random"))
    for tree in TREES:
        assert torch.equal(tokens(ar), tokens(mtj, **tree))
    for init, warm in (("random", False), ("sample_above", True), ("repeat_left", True)):
        chain = tokens(sjd_coupled, window=4, init=init, warm=warm, coupling="maximal")
        assert torch.equal(chain, tokens(sjd_pac, window=4, branches=1, init=init, warm=warm))
    assert torch.equal(tokens(ar), tokens(sjd_coupled, window=1, coupling="maximal", init="random"))
    for tree in DRAFTS:
        assert torch.equal(tokens(ar), tokens(eagle, **tree)) and torch.equal(
            tokens(ar), tokens(lantern, delta=0.0, **tree)
        )
        for delta in (0.0, 0.3):
            assert torch.equal(tokens(lantern, delta=delta, **tree), tokens(vvs, delta=delta, schedule="off", **tree))
    assert torch.equal(
        tokens(ar), tokens(vvs, delta=0.0, schedule="off", s1=2)
    )  # older features make worse drafts, not other tokens
    assert not torch.equal(tokens(vvs, schedule="off"), tokens(vvs, interval=2))


@pytest.mark.parametrize(("decoder", "options"), LOSSY)
def test_what_is_lossy_is_rejected(decoder, options):
    V, L, n = 3, 5, 60_000
    logits = table(V, L)
    law = joint(TabularModel(logits, L, V**L), V, L)
    assert p_value(run(decoder, logits, L, n, **options).tokens, law, V) < 1e-6


def test_a_good_drafter_saves_passes_and_skipping_saves_more():
    """The drafter equal to its target: every path of the tree is there. Skipped steps save more."""
    logits, L = table(3, 9), 9
    own = TabularModel(logits, L, 500)
    own.drafter = TabularDrafter(TabularModel(logits, L, 500))
    nfe = {}
    for name, decoder, options in (
        ("eagle", eagle, {}),
        ("vvs", vvs, {"delta": 0.0, "interval": 2, "truncate": False}),
    ):
        steps = decoder(
            own,
            torch.zeros(500, dtype=torch.int64),
            noise=counted_noise(1, range(500)),
            total=12,
            depth=2,
            top_k=3,
            **options,
        )
        nfe[name] = decode(own, steps, 500).nfe
    assert (nfe["eagle"] == 4).all()  # 1, then twice two candidates and the draw behind them, then the last two
    assert (nfe["vvs"] == 3).all()  # 1, 2 + 2 + 1, 2 + 1


def test_a_drafter_that_knows_the_races_is_right_more_often():
    """Same tree size, same drafter; the tokens are plain sampling's either way."""
    logits = table(4, 6)
    plain = run(ar, logits, 6, 3000)
    blind, seeing = (run(eagle, logits, 6, 3000, total=4, depth=4, top_k=2, rank=r) for r in ("probability", "race"))
    assert torch.equal(plain.tokens, blind.tokens) and torch.equal(plain.tokens, seeing.tokens)
    assert seeing.nfe.float().mean() < blind.nfe.float().mean() - 0.3


def test_rejected_candidates_take_their_look_alikes_with_them():
    """LANTERN: what was counted when a candidate was rejected cannot be accepted, or drawn, afterwards; the acceptance is p of the set."""
    n, V = 100_000, 4
    p = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64).expand(n, 2, V)
    near = look_alikes(torch.arange(V, dtype=torch.float64)[:, None], 1)  # 0 -> 1, 1 -> 0, 2 -> 1, 3 -> 2
    noise, where = counted_noise(0, range(n)), torch.arange(2).expand(n, 2)
    tokens, parents = torch.tensor([[0, 0]]).expand(n, -1), torch.tensor([[-1, 0]]).expand(n, -1)
    begin, e, u = (
        torch.zeros(n, dtype=torch.int64),
        noise.exponential("sample", where, V),
        noise.uniform("accept", where[:, :1, None]),
    )
    counted, everything = (
        descend(p, tokens, parents, begin, e, u, near, delta, r) for delta, r in ((0.2, "counted"), (0.1, "all"))
    )
    accepted = counted.path[:, 1] >= 0
    assert abs(accepted.double().mean().item() - 0.3) < 4 * (0.3 * 0.7 / n) ** 0.5  # 0.1 and its look-alike's 0.2
    assert not (counted.tokens[~accepted, 0] < 2).any()
    kept = everything.path[:, 1] >= 0  # 0.2 is over the budget: the look-alike does not count, and yet it goes
    assert abs(kept.double().mean().item() - 0.1) < 4 * (0.1 * 0.9 / n) ** 0.5
    assert not (everything.tokens[~kept, 0] < 2).any()


@pytest.mark.parametrize("stride", [1, 2])
def test_similarity_of_candidate_sequences_is_the_papers_sum(stride):
    """VVS, eq. 2 and Alg. 1, over the sequences written out."""
    generator = torch.Generator().manual_seed(3)
    logits, V, depth = table(6, 4), 6, 3
    model = TabularModel(logits, 4, 5)
    codes = torch.randn(V, 2, generator=generator, dtype=torch.float64)
    law = model.drafter.logits(torch.zeros(5, 1, dtype=torch.int64), torch.full((5, 1), -1), torch.full((5, 1), -1))[
        :, -1
    ]
    tree = dynamic(model.drafter, law + torch.rand(5, V, generator=generator), torch.full((5,), -1), 12, depth, 4)
    found = similarity(tree, codes, depth, 0.9, stride)
    unit = codes / codes.norm(dim=1, keepdim=True)
    for b in range(5):
        parents, paths = tree.parents[b].tolist(), []
        for node in sorted(set(range(12)) - set(parents)):
            path = []
            while node >= 0:
                path.insert(0, int(tree.tokens[b, node]))
                node = parents[node]
            paths.append(path)
        paths, means = paths[::stride], []
        for d in range(max(map(len, paths))):
            reach = [unit[path[d]] for path in paths if len(path) > d]
            pairs = [float(x @ y) for x, y in itertools.combinations(reach, 2)]
            means.append(sum(pairs) / len(pairs) if pairs else 1.0)
        weights = [0.9**d for d in range(len(means))]
        assert found[b].item() == pytest.approx(sum(w * m for w, m in zip(weights, means, strict=True)) / sum(weights))


def test_the_dynamic_tree_holds_the_likeliest_nodes_of_those_expanded():
    """EAGLE-2: every node's ancestors are there, scores are the paths' log-probabilities, siblings differ."""
    model, B = TabularModel(table(5, 5), 5, 8), 8
    root = torch.zeros(B, 1, dtype=torch.int64)
    trees = {}
    for total in (4, 11):
        law = model.drafter.logits(root, root - 1, root - 1)[:, -1]
        trees[total] = dynamic(model.drafter, law, root[:, 0] - 1, total, 3, 4)
    for b in range(B):
        t = [x[b].tolist() for x in trees[11]]
        assert len(set(zip(t[0], t[1], strict=True))) == 11
        for node, (token, parent, depth, score) in enumerate(zip(*t, strict=True)):
            assert parent < node and depth == (t[2][parent] + 1 if parent >= 0 else 1)
            prefix, up = [token], parent
            while up >= 0:
                prefix.insert(0, t[0][up])
                up = t[1][up]
            fresh = TabularModel(table(5, 5), 5, 1).draft
            given = torch.tensor([[0, *prefix[:-1]]])
            law = fresh.logits(given, torch.arange(-1, len(prefix) - 1)[None]).log_softmax(-1)[0]
            assert score == pytest.approx(sum(law[i, x].item() for i, x in enumerate(prefix)))
        kept = sorted(t[3], reverse=True)[:4]
        assert sorted(trees[4].score[b].tolist(), reverse=True) == pytest.approx(kept)


def test_a_draft_from_q_is_accepted_with_probability_one_minus_the_total_variation():
    """GSD supplement, Proposition 1, to Monte-Carlo accuracy."""
    n, V = 200_000, 6
    generator = torch.Generator().manual_seed(0)
    p, q = torch.rand(2, V, generator=generator, dtype=torch.float64)
    p, q = p / p.sum(), q / q.sum()
    noise, one = counted_noise(0, range(n)), torch.zeros(n, 1, dtype=torch.int64)
    draft = race(q, noise.exponential("draft", one, V))
    wide = (law.expand(n, 1, V) for law in (p, q))
    done = verify(
        *wide,
        draft,
        torch.zeros(n, 1, dtype=torch.bool),
        noise.uniform("accept", one),
        noise.exponential("sample", one, V),
    )
    rate, expected = (done.tokens == draft).double().mean().item(), 1 - 0.5 * (p - q).abs().sum().item()
    assert abs(rate - expected) < 4 * (expected * (1 - expected) / n) ** 0.5


def test_branches_lower_the_passes_and_none_is_the_chain():
    """On a table whose law changes with every token no draft fits for long: here the alternatives are what helps."""
    logits = table(4, 6)
    chain, bare = (
        run(d, logits, 6, 3000, window=4, warm=True, **o) for d, o in ((sjd_coupled, {}), (mtj, {"branches": 0}))
    )
    assert torch.equal(chain.tokens, bare.tokens)
    tree = run(mtj, logits, 6, 3000, window=4, branches=8)
    assert tree.nfe.float().mean() < min(chain.nfe.float().mean(), bare.nfe.float().mean()) - 0.3
    assert (tree.nodes > bare.nodes).float().mean() > 0.9


def test_siblings_against_the_whole_q_are_noticed(monkeypatch):
    """The must-fail case of trees with residual verification: every sibling tested as if it were the first draw from q."""
    import parity.decoders.sjd_pac as module

    def wrong(p, q, candidates, valid, point, u, exponential):
        drawn, rank = race(p, exponential), torch.full_like(candidates[:, 0], -1)
        for k in range(candidates.shape[1]):
            v = candidates[:, k : k + 1]
            accepted = u[:, k] * q.gather(-1, v)[:, 0] < p.gather(-1, v)[:, 0]
            rank = torch.where(accepted & valid[:, k] & ~point & (rank < 0), k, rank)
        token = torch.where(
            rank < 0, race(module.residual(p, q), exponential), candidates.gather(1, rank.clamp(min=0)[:, None])[:, 0]
        )
        return torch.where(point, drawn, token), torch.where(point & (drawn == candidates[:, 0]), 0, rank)

    V, L, n = 3, 5, 60_000
    logits = table(V, L)
    law = joint(TabularModel(logits, L, V**L), V, L)
    monkeypatch.setattr(module, "verify_siblings", wrong)
    assert p_value(run(sjd_pac, logits, L, n, window=4, init="sample_above").tokens, law, V) < 1e-12


@pytest.mark.parametrize(("G", "border"), [(1, "clip"), (2, "clip"), (5, "clip"), (6, "plain"), (40, "clip")])
def test_groups_are_those_of_the_papers_loop(G, border):
    """GSD supplement, Alg. 2, lines 2 to 11, written out."""
    generator = torch.Generator().manual_seed(G)
    V, delta, d = 12, 0.08, 0.9
    p = torch.rand(3, 4, V, generator=generator, dtype=torch.float64).softmax(-1)
    draft, vectors = (
        torch.randint(V, (3, 4), generator=generator),
        torch.rand(V, 2, generator=generator, dtype=torch.float64),
    )
    members, counts = groups(p, draft, G, delta, d, vectors, border)
    for b in range(3):
        for w in range(4):
            x, law = int(draft[b, w]), p[b, w]
            order = law.argsort().tolist()
            place = order.index(x)
            low, high = place - G // 2, place - G // 2 + G
            near = order[max(low, 0) : high] if border == "clip" or low >= 0 else [x]
            expected = {c for c in near if abs(law[c] - law[x]) <= delta and (vectors[c] - vectors[x]).norm() <= d}
            assert set(members[b, w][counts[b, w]].tolist()) == expected and int(counts[b, w].sum()) == len(expected)


ROWS = [(6, 2), (6, 3), (7, 3), (5, 4), (6, 6)]  # length and width; the last row may be short


@pytest.mark.parametrize(("L", "width"), ROWS)
def test_zipar_waits_for_whole_rows_and_is_ar_or_starts_early_and_takes_fewer_passes(L, width):
    """Records, which no other test of all decoders covers: tokens become final out of order, in order within a row."""
    logits, rows = table(3, L), -(-L // width)
    a = run(ar, logits, L, 500, width=width)
    for ahead in range(1, width + 2):
        z = run(zipar, logits, L, 500, width=width, ahead=ahead)
        assert (z.kept.sum(1) == L).all() and (z.step > 0).all() and ((z.kept > 0).sum(1) == z.nfe).all()
        if ahead >= width:
            assert all(torch.equal(getattr(a, x), getattr(z, x)) for x in ("tokens", "step", "nfe", "nodes", "kept"))
            continue
        assert torch.equal(a.tokens, z.tokens) == (rows == 1)
        start = torch.arange(L) // width * ahead
        assert (z.step == 1 + start + torch.arange(L) % width).all()
        assert (z.nfe == max(width + (rows - 2) * ahead, L - (rows - 1) * width + (rows - 1) * ahead)).all()
        assert L % width or (z.nfe == width + (rows - 1) * ahead).all()


def test_zipar_fills_what_the_grammar_forces():
    """A separator at the end of each row stands there before the row is done; with whole rows the tokens are still `ar`'s."""
    forced, logits = torch.tensor([2, -1, 0, -1, 1, 0, -1, -1, 0]), table(3, 9)
    a, z = (run(d, logits, 9, 300, width=3, forced=forced, **o) for d, o in ((ar, {}), (zipar, {"ahead": 3})))
    assert torch.equal(a.tokens, z.tokens) and torch.equal(a.nfe, z.nfe)
    z = run(zipar, logits, 9, 300, width=3, forced=forced, ahead=1)
    assert (z.tokens[:, forced >= 0] == forced[forced >= 0]).all() and (z.nfe == 3).all() and (a.nfe == 4).all()


class Watched(TabularModel):
    """Keeps what it was fed: a dictionary of position to tokens [B], pass by pass."""

    def logits(self, tokens, positions):
        self.seen = [
            *getattr(self, "seen", []),
            dict(zip(positions[0].tolist(), tokens.clone().unbind(1), strict=True)),
        ]
        return super().logits(tokens, positions)


def test_zipar_lets_the_last_token_above_stand_in_until_the_true_one_is_there():
    model = Watched(table(4, 9), 9, 50, width=3)
    done = decode(
        model, zipar(model, torch.zeros(50, dtype=torch.int64), noise=counted_noise(0, range(50)), ahead=1), 50
    )
    assert [sorted(fed) for fed in model.seen] == [[-1], [0, 2], [1, 3, 5], [2, 4, 6], [5, 7]]
    assert torch.equal(model.seen[1][2], done.tokens[:, 0]) and torch.equal(model.seen[2][5], done.tokens[:, 3])
    assert all(torch.equal(fed[i], done.tokens[:, i]) for fed in model.seen[3:] for i in fed)
    assert torch.equal(done.nodes, torch.full((50,), 11))


def test_a_step_may_say_where_each_token_stands():
    """Slots with a position past the end are not used, wherever they are; given by its first position, a step says the same."""
    model, first = TabularModel(table(4, 5), 5, 2), torch.tensor([0, 1])
    consecutive = [Step(torch.tensor([[3, 1], [2, 2]]), torch.tensor([1, 2]), torch.tensor([0, 0]))]
    consecutive += [Step(torch.tensor([[1, 2, 3, 0], [1, 0, 3, 9]]), torch.tensor([4, 3]), 1 + first)]
    spread = [Step(torch.tensor([[9, 3], [2, 2]]), torch.tensor([1, 2]), torch.tensor([[7, 0], [1, 0]]))]
    spread += [
        Step(
            torch.tensor([[0, 3, 2, 1], [9, 3, 0, 1]]), torch.tensor([4, 3]), torch.tensor([[4, 3, 2, 1], [5, 4, 3, 2]])
        )
    ]
    a, b = decode(model, iter(consecutive), 2), decode(model, iter(spread), 2)
    assert a.tokens.tolist() == [[3, 1, 2, 3, 0], [2, 2, 1, 0, 3]]
    assert all(torch.equal(getattr(a, x), getattr(b, x)) for x in ("tokens", "step", "nfe", "kept"))
    assert a.nodes.tolist() == [6, 5] and b.nodes.tolist() == [5, 5]


def drafted(target, drafts, gamma, rows=2000, sampling=None, length=6):
    """Speculative sampling of a table with another as its draft model."""
    model = TabularModel(target, length, rows, width=2, drafts=drafts)
    model = model if sampling is None else Sampled(model, sampling)
    return decode(
        model, spec(model, torch.zeros(rows, dtype=torch.int64), noise=counted_noise(1, range(rows)), gamma=gamma), rows
    )


@pytest.mark.parametrize("sampling", [None, Sampling(guidance=2.0, temperature=0.8, top_k=3)])
@pytest.mark.parametrize("gamma", [1, 2, 4, 9])
def test_speculative_sampling_accepts_all_of_its_own_model_s_drafts(gamma, sampling):
    """gamma + 1 tokens a pass, and at the end as many as are left: so no draft was made without its context. A row costs the nodes it evaluates."""
    logits = table(4, 6, pair=sampling is not None)
    d = drafted(logits, logits, gamma, sampling=sampling)
    sizes = [min(gamma + 1, 6 - n) for n in range(0, 6, gamma + 1)]
    assert (d.kept == torch.tensor(sizes)).all() and (d.nodes == 6).all()
    other = drafted(logits, table(4, 6, seed=9, pair=sampling is not None), gamma, sampling=sampling)
    assert other.nfe.float().mean() > d.nfe.float().mean() + 0.2 and (other.nodes > 6).float().mean() > 0.2


def test_speculative_sampling_accepts_one_minus_the_total_variation():
    """Leviathan et al. 2023, Theorem 3.5: of the first draft; every law is the same, so of each."""
    p, q = (table(4, 1, seed=s)[0] for s in (1, 2))
    laws = [x.expand(sum(4**i for i in range(6)), -1) for x in (p, q)]
    d = drafted(*laws, gamma=1, rows=20_000)
    rate, expected = (
        (d.kept[:, 0] == 2).double().mean().item(),
        1 - 0.5 * (p.softmax(-1) - q.softmax(-1)).abs().sum().item(),
    )
    assert abs(rate - expected) < 4 * (expected * (1 - expected) / 20_000) ** 0.5


@pytest.mark.parametrize("fault", ["corrected from p", "bonus from q"])
def test_faults_of_speculative_sampling_are_noticed(monkeypatch, fault):
    """The must-fail cases beside it."""
    import parity.decoders.spec as module

    from parity.decoders.verification import finish

    def wrong(p, q, draft, point, accepted, fresh, exponential):
        if fault == "corrected from p":
            return finish(p, torch.zeros_like(q), draft, point, accepted, fresh, exponential)
        q = torch.cat([q[:, :1], q[:, :-1]], 1)  # the law of the slot before
        return finish(p, q, draft, point, accepted, torch.where(point, race(q, exponential), fresh), exponential)

    V, L, n = 3, 5, 60_000
    logits = table(V, L)
    law = joint(TabularModel(logits, L, V**L), V, L)
    assert p_value(run(spec, logits, L, n, gamma=2).tokens, law, V) > 1e-4
    monkeypatch.setattr(module, "finish", wrong)
    assert p_value(run(spec, logits, L, n, gamma=2).tokens, law, V) < 1e-12


def test_speculative_sampling_needs_a_draft_model():
    class Bare(TabularModel):
        draft = None

    with pytest.raises(ValueError, match="no draft model"):
        decode(
            Bare(table(3, 4), 4, 2),
            spec(Bare(table(3, 4), 4, 2), torch.zeros(2, dtype=torch.int64), noise=counted_noise(0, range(2))),
            2,
        )
