"""SJD-PAC: coupled Jacobi with a tree of candidates at the place of rejection and verification continued after it."""

from collections.abc import Iterator
from typing import Annotated, Literal, NamedTuple

import torch
from annotated_types import Interval
from torch import Tensor
from torch.nn.functional import pad

from parity_decoders.counts import Counts
from parity_decoders.noise import Noise
from parity_decoders.protocols.discrete import TokenModel
from parity_decoders.steps import Step
from parity_decoders.trees import Tree, check_nodes
from parity_decoders.verification import transport, verify_siblings
from parity_decoders.window import Window

CLAIM = "lossless"
ORIGIN = "account"
REFILLS = True
SOURCE = "Kang et al. 2026 (SJD-PAC), from its description; warm: this project"


class Layout(NamedTuple):
    """A tree of K^d nodes at each offset d up to D, one for every combination of candidates, then a chain of one node
    each after the first of the deepest nodes."""

    parents: Tensor  # [S]
    offset: Tensor  # [S]
    chain: Tensor  # [W] the nodes after which the slots' distributions are taken if all drafts hold
    first: list[int]  # node of each offset, 0 to D + 1


def make_layout(K: int, D: int, W: int) -> Layout:
    """Lay out the tree of K candidates in the first D of W slots, and the chain of the other slots."""
    first = [sum(K**i for i in range(d)) for d in range(D + 2)]
    check_nodes(f"sjd_pac: branches {K}, depth {D}", first[-1])
    chain = list(range(first[D + 1], first[D + 1] + W - 1 - D))
    above = [first[d] + node // K for d in range(D) for node in range(K ** (d + 1))]
    tail = [first[D], *chain[:-1]] if chain else []
    offset = [d for d in range(D + 1) for _ in range(K**d)] + list(range(D + 1, W))
    lists = ([-1, *above, *tail], offset, first[: D + 1] + chain)
    parents, offsets, ends = (torch.tensor(x, device="cpu") for x in lists)
    return Layout(parents, offsets, ends, first)


def draw_candidates(draft: Tensor, q: Tensor, point: Tensor, exponential: Tensor, K: int) -> tuple[Tensor, Tensor]:
    """Draw K candidates [B, D, K] of each slot: its draft [B, D], then draws from the rest of its distribution q [B, D,
    V] without replacement; of a `point` [B, D] draft there is no rest. Also returns [B, D, K] bool which candidates
    exist."""
    rest = torch.where(point[..., None], 0, q.scatter(-1, draft[..., None], 0))
    ranked = (rest / exponential).topk(K - 1)
    valid = torch.cat([torch.ones_like(draft, dtype=torch.bool)[..., None], ranked.values > 0], -1)
    return torch.cat([draft[..., None], ranked.indices], -1), valid


def accept_candidates(
    p: Tensor, q: Tensor, tried: Tensor, valid: Tensor, point: Tensor, u: Tensor, exponential: Tensor, first: list[int]
) -> tuple[Tensor, Tensor]:
    """Descend the tree as long as a candidate is accepted. Returns the path [B, D + 1] of nodes, padded with -1, and
    the tokens [B, D] of its slots: those accepted, then one drawn, then arbitrary ones.

    p [B, S, V] after each node; q [B, D, V]; tried, valid, u [B, D, K]; point [B, D]; exponential [B, D, V]; first: see
    `Layout`.
    """
    (_, D, K) = tried.shape
    rows = torch.arange(len(p), device=p.device)
    node = torch.zeros_like(rows)
    path = [torch.zeros_like(rows)]
    tokens = [tried[:, :0, 0]]
    for d in range(D):
        inputs = (q[:, d], tried[:, d], valid[:, d], point[:, d], u[:, d], exponential[:, d])
        token, rank = verify_siblings(p[rows, node], *inputs)
        continues = (path[-1] >= 0) & (rank >= 0)
        node = torch.where(continues, first[d + 1] + (node - first[d]) * K + rank, node)
        path.append(torch.where(continues, node, -1))
        tokens.append(token[:, None])
    return torch.stack(path, 1), torch.cat(tokens, 1)


@torch.inference_mode()
def sjd_pac(
    model: TokenModel,
    start: Tensor,
    *,
    noise: Noise,
    window: Annotated[int, Interval(ge=1, le=4096), Counts("positions", small=3, most="length")] = 50,
    branches: Annotated[int, Interval(ge=1, le=16)] = 3,
    depth: Annotated[int, Interval(ge=1, le=6), Counts("positions", small=2)] = 2,
    init: Literal["random", "repeat_left", "repeat_above", "sample_left", "sample_above"] = "random",
    warm: bool = False,
) -> Iterator[Step]:
    """Verify `branches` candidates of each of the first `depth` slots in every combination, and one draft of each other
    slot: a tree, then a chain.

    window    W, slots of a pass
    branches  K, candidates a slot: the draft, then draws from its distribution without replacement. 1 is `sjd_coupled`
              with maximal coupling
    depth     D, slots with candidates; K + K^2 + ... + K^D nodes
    init      as in `sjd`
    warm      as in `sjd_coupled`
    """
    V = model.vocab
    K = min(branches, model.vocab)
    D = min(depth, window - 1)
    parents, offset, chain, first = make_layout(K, D, window)
    parents, offset, chain = (x.to(start.device) for x in (parents.expand(len(start), -1), offset, chain))
    rows, numbers = torch.arange(len(start), device=start.device), torch.arange(K - 1, device=start.device)
    slots = Window(model, start, noise, window, init, warm=warm)

    def run_pass() -> Step:
        draft, q, point = slots.make_drafts()
        u = slots.draw_uniforms("accept")
        e = slots.draw_exponentials()
        index = slots.index[:, :D]
        tried, valid = draw_candidates(draft[:, :D], q[:, :D], point[:, :D], noise.exponential("branch", index, V), K)
        levels = [tried[:, d].repeat(1, K**d) for d in range(D)]
        tree = Tree(slots.line, torch.cat([*levels, draft[:, D:-1]], 1), parents, offset)
        p, evaluated = tree.evaluate()
        probs = p[:, chain]
        tokens, _ = transport(probs, q, draft, point, u, e)  # along the chain every draft moves to its new distribution
        # These numbers are below 0, where no candidate's number is, so that draws are independent.
        uniforms = torch.cat([u[:, :D, None], noise.uniform("branch", -1 - index[..., None] * K - numbers)], -1)
        path, accepted = accept_candidates(p, q, tried, valid, point, uniforms, e, first)
        tokens[:, :D] = torch.where(path[:, :-1] >= 0, accepted, tokens[:, :D])
        # The slot after the tree is moved to its distribution after the accepted leaf, if that is not on the chain.
        leaf = path[:, -1]
        moved, _ = transport(p[rows, leaf.clamp(min=0)], q[:, D], draft[:, D], point[:, D], u[:, D], e[:, D])
        tokens[:, D] = torch.where((leaf >= 0) & (leaf != first[D]), moved, tokens[:, D])
        # Later slots are accepted as long as the chain's drafts hold.
        holds = (tokens[:, D:] == draft[:, D:]).long().cumprod(1) * (leaf == first[D])[:, None]
        nodes = torch.cat([path, torch.where(holds > 0, pad(chain[D + 1 :], (0, 1), value=-1), -1)], 1)
        model.keep(evaluated, nodes)
        n_kept = (path >= 0).sum(1) + holds.sum(1)
        return slots.advance(tokens, n_kept, probs, nodes=tree.count_evaluated())

    return slots.repeat(run_pass)
