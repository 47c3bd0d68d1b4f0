"""Decoders with a drafter or a draft model: their trees, their acceptance, what a good one saves."""

import pytest
import torch
from parity_decoders.candidates import grow_dynamic_tree
from parity_decoders.discrete.eagle import eagle
from parity_decoders.discrete.spec import spec
from parity_decoders.discrete.vvs import measure_similarity, vvs
from parity_decoders.noise import counted_noise
from parity_decoders.sampling import Sampled, TokenSampling
from parity_decoders.verification import descend, find_look_alikes

from parity.decode.discrete import record
from parity.models.discrete.tabular import TabularDrafter, TabularModel, count_prefixes
from tests.tables import make_table


def tree_of(model, rows, total, depth, top_k, shift=0.0):
    """EAGLE-2's tree behind the prompt's last token; `shift` is added to the drafter's law there."""
    root = torch.zeros(rows, 1, dtype=torch.int64)
    law = model.drafter.logits(root, root - 1, root - 1)[:, -1]
    return grow_dynamic_tree(model.drafter, law + shift, root[:, 0] - 1, total, depth, top_k)


def up(parents, node):
    """Nodes from the top to `node`."""
    path = []
    while node >= 0:
        path.insert(0, node)
        node = parents[node]
    return path


def test_the_dynamic_tree_holds_the_likeliest_nodes_of_those_expanded():
    """EAGLE-2: every node's ancestors are there, scores are the paths' log-probabilities, siblings differ."""
    model, B = TabularModel(make_table(5, 5), 5, 8), 8
    trees = {total: tree_of(model, B, total, 3, 4) for total in (4, 11)}
    for b in range(B):
        tokens, parents, depths, scores = (x[b].tolist() for x in trees[11])
        assert len(set(zip(tokens, parents, strict=True))) == 11
        for node in range(11):
            path = up(parents, node)
            assert path == sorted(path)
            assert depths[node] == len(path)
            drawn = [tokens[n] for n in path]
            given = torch.tensor([[0, *drawn[:-1]]])
            law = TabularModel(make_table(5, 5), 5, 1).draft.logits(given, torch.arange(-1, len(drawn) - 1)[None])
            expected = law.log_softmax(-1)[0].gather(1, torch.tensor(drawn)[:, None]).sum().item()
            assert scores[node] == pytest.approx(expected)
        assert sorted(trees[4].score[b].tolist(), reverse=True) == pytest.approx(sorted(scores, reverse=True)[:4])


def test_similarity_is_of_candidate_sequences_beside_each_other():
    """VVS, eq. 2: one where all codes are one, less where they differ."""
    codes = torch.randn(6, 2, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    tree = tree_of(TabularModel(make_table(6, 4), 4, 5), 5, 12, 3, 4)
    assert torch.allclose(measure_similarity(tree, codes[:1].expand(6, -1), 3, 0.9, 1), torch.ones(5).double())
    found = measure_similarity(tree, codes, 3, 0.9, 1)
    assert (found < 1).all()
    assert not torch.equal(found, measure_similarity(tree, codes, 3, 0.1, 1))


def test_rejected_candidates_take_their_look_alikes_with_them():
    """LANTERN: what was counted when a candidate was rejected cannot be accepted, or drawn, afterwards; the acceptance
    is p of the set."""
    n, V = 100_000, 4
    p = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64).expand(n, 2, V)
    near = find_look_alikes(torch.arange(V, dtype=torch.float64)[:, None], 1)  # 0 -> 1, 1 -> 0, 2 -> 1, 3 -> 2
    noise, where = counted_noise(0, range(n)), torch.arange(2).expand(n, 2)
    tokens, parents = torch.tensor([[0, 0]]).expand(n, -1), torch.tensor([[-1, 0]]).expand(n, -1)
    begin = torch.zeros(n, dtype=torch.int64)
    random = noise.exponential("sample", where, V), noise.uniform("accept", where[:, :1, None])
    for delta, reject, rate in ((0.2, "counted", 0.3), (0.1, "all", 0.1)):
        # "counted": 0.1 and its look-alike's 0.2; "all": 0.2 is over the budget and does not count, and yet it goes
        path, drawn = descend(p, tokens, parents, begin, *random, near, delta, reject)
        accepted = path[:, 1] >= 0
        assert abs(accepted.double().mean().item() - rate) < 4 * (rate * (1 - rate) / n) ** 0.5
        assert not (drawn[~accepted, 0] < 2).any()


def test_a_good_drafter_saves_passes_and_skipping_saves_more():
    """The drafter equal to its target: every path of the tree is there. Skipped steps save more."""
    logits, start = make_table(3, 9), torch.zeros(500, dtype=torch.int64)
    own = TabularModel(logits, 9, 500)
    own.drafter = TabularDrafter(TabularModel(logits, 9, 500))
    size = {"noise": counted_noise(1, range(500)), "total": 12, "depth": 2, "top_k": 3}
    skipping = {"delta": 0.0, "interval": 2, "truncate": False}
    # 1, then twice two candidates and the draw behind them, then the last two
    assert (record(own, start, eagle(own, start, **size)).nfe == 4).all()
    assert (record(own, start, vvs(own, start, **size, **skipping)).nfe == 3).all()  # 1, 2 + 2 + 1, 2 + 1


# --- a draft model


def drafted(target, drafts, gamma, rows=2000, sampling=None, length=6):
    """Speculative sampling of a table with another as its draft model."""
    model = TabularModel(target, length, rows, width=2, drafts=drafts)
    model = model if sampling is None else Sampled(model, sampling)
    start = torch.zeros(rows, dtype=torch.int64)
    return record(model, start, spec(model, start, noise=counted_noise(1, range(rows)), gamma=gamma))


@pytest.mark.parametrize("sampling", [None, TokenSampling(guidance=2.0, temperature=0.8, top_k=3)])
@pytest.mark.parametrize("gamma", [1, 2, 4, 9])
def test_speculative_sampling_accepts_all_of_its_own_model_s_drafts(gamma, sampling):
    """gamma + 1 tokens a pass, and at the end as many as are left: so no draft was made without its context. A row
    costs the nodes it evaluates."""
    logits = make_table(4, 6, pair=sampling is not None)
    d = drafted(logits, logits, gamma, sampling=sampling)
    sizes = [min(gamma + 1, 6 - n) for n in range(0, 6, gamma + 1)]
    assert (d.kept == torch.tensor(sizes)).all()
    assert (d.nodes == 6).all()
    other = drafted(logits, make_table(4, 6, seed=9, pair=sampling is not None), gamma, sampling=sampling)
    assert other.nfe.float().mean() > d.nfe.float().mean() + 0.2
    assert (other.nodes > 6).float().mean() > 0.2


def test_speculative_sampling_accepts_one_minus_the_total_variation():
    """Leviathan et al. 2023, Theorem 3.5: of the first draft; every law is the same, so of each."""
    p, q = (make_table(4, 1, seed=s)[0] for s in (1, 2))
    d = drafted(*(x.expand(count_prefixes(4, 6), -1) for x in (p, q)), gamma=1, rows=20_000)
    expected = 1 - 0.5 * (p.softmax(-1) - q.softmax(-1)).abs().sum().item()
    assert abs((d.kept[:, 0] == 2).double().mean().item() - expected) < 4 * (expected * (1 - expected) / 20_000) ** 0.5
