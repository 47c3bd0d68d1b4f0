"""Multi-trajectory Jacobi decoding: Gumbel-coupled Jacobi that also evaluates what its drafts are likeliest to be
replaced by."""

from collections.abc import Callable, Iterator
from typing import Annotated, NamedTuple, Protocol

import torch
from annotated_types import Interval
from torch import Tensor
from torch.nn.functional import pad

from parity_decoders.counts import Counts
from parity_decoders.grid import find_grid
from parity_decoders.noise import Noise
from parity_decoders.protocols.discrete import TokenModel, TreePass
from parity_decoders.steps import Step
from parity_decoders.trees import Tree
from parity_decoders.verification import find_largest
from parity_decoders.window import ProbsByPosition, Window

CLAIM = "lossless"
ORIGIN = "project"
REFILLS = True
COUPLED_WITH: dict = {}  # its tokens are those of `ar` whatever its options
FLOOR = -20.0  # least log-probability: a token that top-k or top-p excludes here may be allowed there
PickWinners = Callable[[Tensor, Tensor], Tensor]  # (ratio [B, W, V], positions [B, W]) -> the tokens that win [B, W]
SOURCE = "this project, 2026: docs/explanation/jacobi.md. Without branches it is GS of Speculative Coupled Decoding"


class Likeliest(NamedTuple):
    """The tokens that are likeliest to win the draw of a slot, best first."""

    score: Tensor  # [..., K + 1] log-probability
    tokens: Tensor  # [..., K + 1]


class Branches(NamedTuple):
    """Nodes beside the chain, [B, m] each."""

    tokens: Tensor
    parents: Tensor  # numbers below W are nodes of the chain, node i before slot i; others are branches
    slots: Tensor  # the slot of each token


def grow_branches(chain: Likeliest, foresight: "Foresight", count: int, rounds: int) -> Branches:
    """Choose the `count` nodes beside the chain that are likeliest to be reached, best first, in `rounds` rounds, each
    of which may continue the nodes chosen before.

    chain [B, W, K + 1]: the likeliest winners of its slots, of which the first are the chain's own tokens. The winner
    of rank r after node n is candidate n (K + 1) + r; nodes have the numbers of `Branches.parents`.
    """
    n_ranks = chain.score.shape[2]
    rounds = min(rounds, count)
    chain = Likeliest(chain.score.clamp(min=FLOOR), chain.tokens)
    foresight.begin_branches(chain)
    score = chain.score + pad(chain.score[:, :, :1].cumsum(1), (0, 0, 1, -1))  # and of the chain before the slot
    score[:, :, 0] = -torch.inf  # these are the chain
    score[:, -1] = -torch.inf  # no branch goes past the window
    score = score.flatten(1)
    chosen = []
    for r in range(rounds):
        best = score.topk(count * (r + 1) // rounds - count * r // rounds)
        chosen.append(best.indices)
        if r + 1 < rounds:
            children = best.values[..., None] + foresight.predict_children(best.indices)
            score = torch.cat([score.scatter_(1, best.indices, -torch.inf), children.flatten(1)], 1)
    candidates = torch.cat(chosen, 1)
    tokens, slots = foresight.look_up(candidates)
    return Branches(tokens, candidates // n_ranks, slots)


def carry_probs(slots: Window, probs: ProbsByPosition, warm: bool) -> Tensor:
    """Compute q [B, W, V], the expected distribution of each slot: the distribution that the last pass left for it; for
    a new slot the distribution of the position above, or else the distribution at the frontier. With `warm`, all slots
    take the frontier's distribution after the first pass, because the others were computed on random tokens. Before a
    row's first pass all tokens are as likely."""
    line = slots.line
    last = line.frontier[:, None] - 1
    above, exists = slots.find_sources()
    if line.grammar:
        exists &= slots.read_forced() < 0
    source = torch.where(slots.find_new_slots(), torch.where(exists, above, last), slots.positions)
    if warm:
        source = torch.where(line.age == 1, last, source)
    return torch.where(line.age[..., None] == 0, 1, probs.read(source))


def choose_sources(tree: Tree, path: Tensor, deepest: Tensor, unlike: Tensor, W: int) -> Tensor:
    """Choose for each slot the node [B, W] whose distribution it takes: on the final path (`path` [B, S] bool) its own
    node; after it the likeliest node below the draft that is least `unlike` [B, S] the token drawn after node `deepest`
    [B]; otherwise the chain's node. W: slots."""
    S = unlike.shape[1]
    distances = torch.where(tree.follows == deepest[:, None], unlike, torch.inf)
    # if no draft follows the deepest node, the nearest is node 0, of which nothing is asked
    misses_nearest = tree.hold_throughout(tree.nodes != distances.argmin(1, keepdim=True))
    order = torch.where(misses_nearest & ~path, S, tree.nodes)
    source = torch.full((len(path), W), S, device=unlike.device).scatter_reduce(1, tree.offset, order, "amin")
    return torch.where(source == S, tree.nodes[:W], source)


class Foresight(Protocol):
    """Predicts which tokens win the draws of a pass's slots. A wrong prediction costs speed, never the distribution.

    predicts_first_pass  whether it can predict before a row's first pass; otherwise that pass has no branches
    """

    predicts_first_pass: bool

    def prepare(self, slots: Window, S: int, K: int) -> None:
        """Make buffers of what lives from pass to pass, each of S nodes. K: alternatives of a slot."""
        ...

    def update(self, tree: Tree, evaluated: TreePass, path: Tensor, p: Tensor, source: Tensor) -> None:
        """Take in the result of a pass: its tree, which nodes are final [B, S], the distributions after all nodes [B,
        S, V], and the node whose distribution each slot takes [B, W]."""
        ...

    def predict_chain(
        self, slots: Window, probs: Tensor, e: Tensor, changed: Tensor, pick_winners: PickWinners
    ) -> tuple[Tensor, Tensor]:
        """Predict the likeliest winner of each slot [B, W], and log-probabilities [B, W, V] of winning, before a pass.

        probs [B, W, V] of the last pass; changed [B, W]: whether the slot's left or upper neighbour changed in it.
        """
        ...

    def begin_branches(self, chain: Likeliest) -> None:
        """Begin to predict what follows branches, given the likeliest winners of the chain's slots [B, W, K + 1]."""
        ...

    def predict_children(self, candidates: Tensor) -> Tensor:
        """Predict the log-probabilities [B, m, K + 1], FLOOR at least, of the likeliest winners after each of the
        candidates [B, m], which are the next branches; -inf past the window."""
        ...

    def look_up(self, candidates: Tensor) -> tuple[Tensor, Tensor]:
        """Look up tokens and slots of candidates [B, m], see `grow_branches`."""
        ...


class LastProbs:
    """Predicts that distributions stay as in the last pass, less certain for a slot whose left or upper neighbour was
    replaced in that pass, or whose left neighbour is on the branch."""

    predicts_first_pass = False

    def __init__(self, sure: float, unsure: float):
        """Set the temperatures `sure` and `unsure`, see `mtj`."""
        self.sure = sure
        self.unsure = unsure

    def prepare(self, slots: Window, S: int, K: int) -> None:
        """Assign a number to the winners of all slots, a branch's too: i (K + 1) + r to rank r of slot i. See
        Foresight."""
        self.rows = slots.line.rows
        numbers = torch.arange(slots.size * (K + 1), device=self.rows.device).view(-1, K + 1)
        self.first = numbers.flatten().expand(len(self.rows), -1)
        self.next = (numbers + K + 1).repeat_interleave(K + 1, 0)  # those of the next slot, after each winner

    def update(self, tree: Tree, evaluated: TreePass, path: Tensor, p: Tensor, source: Tensor) -> None:
        """Do nothing: the window stores the distributions. See Foresight."""

    def predict_chain(
        self, slots: Window, probs: Tensor, e: Tensor, changed: Tensor, pick_winners: PickWinners
    ) -> tuple[Tensor, Tensor]:
        """Predict the winner of each slot [B, W] from the distribution of the last pass, and log-probabilities [B, W,
        V] of winning, flatter where `changed`. See Foresight."""
        ratio = probs / e
        log = ratio.log()
        self.doubtful = (log / self.unsure).log_softmax(-1)
        chances = torch.where(changed[..., None], log / self.unsure, log / self.sure).log_softmax(-1)
        return pick_winners(ratio, slots.positions), chances

    def begin_branches(self, chain: Likeliest) -> None:
        """Score the winners of the chain's slots as they are likely after each winner of the slot before, flatter
        unless that is the chain's own. See Foresight."""
        K = chain.score.shape[2] - 1
        doubtful = self.doubtful.gather(-1, chain.tokens).clamp_(min=FLOOR)
        after = torch.cat([chain.score[:, :, None], doubtful[:, :, None].expand(-1, -1, K, -1)], 2)
        self.after = pad(after[:, 1:-1], (0, 0, 0, 0, 0, 1), value=-torch.inf).flatten(1, 2)
        self.tokens, self.numbers = chain.tokens.flatten(1), self.first

    def predict_children(self, candidates: Tensor) -> Tensor:
        """Predict the winners after each candidate [B, m] as those of the chain's next slot. See Foresight."""
        numbers = self.numbers.gather(1, candidates)
        self.numbers = torch.cat([self.numbers, self.next[numbers].flatten(1)], 1)
        return self.after[self.rows, numbers]

    def look_up(self, candidates: Tensor) -> tuple[Tensor, Tensor]:
        """Look up tokens and slots of candidates [B, m]. See Foresight."""
        numbers = self.numbers.gather(1, candidates)
        return self.tokens.gather(1, numbers), numbers // self.next.shape[1]


def mtj(
    model: TokenModel,
    start: Tensor,
    *,
    noise: Noise,
    window: Annotated[int, Interval(ge=1, le=4096), Counts("positions", small=3, most="length")] = 32,
    branches: Annotated[int, Interval(ge=0, le=4096)] = 32,
    depth: Annotated[int, Interval(ge=1, le=64), Counts("positions", small=2)] = 8,
    ranks: Annotated[int, Interval(ge=1, le=64)] = 3,
    sure: Annotated[float, Interval(gt=0, le=100)] = 0.3,
    unsure: Annotated[float, Interval(gt=0, le=100)] = 1.0,
    warm: bool = True,
) -> Iterator[Step]:
    """Verify a chain of drafts and its likeliest corrections in one pass. Every position has one draw in all passes, so
    the tokens are those of `ar` under the same noise, whatever is evaluated.

    window    the chain: each slot's winner under the distribution of the last pass
    branches  nodes evaluated beside the chain: those likeliest to be reached
    depth     nodes on the longest branch
    ranks     alternatives considered per slot
    sure      temperature of a slot's draw if its left and upper neighbours stayed in the last pass
    unsure    the same if one of them changed
    warm      after the first pass, draft every slot from the distribution at the frontier, since the others were
              computed on noise
    """
    foresight = LastProbs(sure, unsure)
    return decode_trajectories(model, start, noise, window, branches, depth, ranks, warm, foresight)


@torch.inference_mode()
def decode_trajectories(
    model: TokenModel,
    start: Tensor,
    noise: Noise,
    window: int,
    branches: int,
    depth: int,
    ranks: int,
    warm: bool,
    foresight: Foresight,
) -> Iterator[Step]:
    """Run multi-trajectory Jacobi decoding with the given predictor of draw winners. Options: see `mtj`."""
    L, V, W = model.length, model.vocab, window
    codes = getattr(model, "codebook", None)
    K = min(ranks, V - 1)
    slot = torch.arange(W, device=start.device).expand(len(start), -1)
    chain_parents = slot - 1
    slots = Window(model, start, noise, W, "sample_above", shared=True)
    line, probs = slots.line, slots.probs
    assert probs is not None
    branches = min(branches, (W - 1) * K)
    foresight.prepare(slots, W + branches, K)
    grid = find_grid(model)
    widest = grid.find_widest()
    # [B, ...] at position + widest: whether the position's token changed in the last pass
    moved = torch.zeros(len(start), L + W + widest + 1, dtype=torch.bool, device=start.device)

    def pick_winners(ratio: Tensor, positions: Tensor) -> Tensor:
        """Pick the token [B, n] of the largest ratio [B, n, V], or the one that the grammar forces at its position [B,
        n]."""
        drawn = find_largest(ratio)
        if not line.grammar:
            return drawn
        forced = model.forced[positions.clamp(max=L - 1)]
        return torch.where(forced >= 0, forced, drawn)

    def measure_distance(tokens: Tensor, reference: Tensor) -> Tensor:
        """Measure how far tokens are from a reference: between codes, or 0 and 1 without a codebook."""
        if codes is None:
            return (tokens != reference).to(noise.dtype)
        return (codes[tokens] - codes[reference]).norm(dim=-1)

    def run_pass() -> Step:
        e = slots.draw_exponentials()
        q = carry_probs(slots, probs, warm)
        width, _ = grid.look_up(slots.positions)
        left_moved, upper_moved = (moved.gather(1, slots.positions + widest - n) for n in (1, width))
        draft, chances = foresight.predict_chain(slots, q, e, left_moved | upper_moved, pick_winners)
        drafts = draft[:, :-1]
        parents, offset = chain_parents, slot
        if branches:
            side_nodes = grow_branches(Likeliest(*chances.topk(K + 1)), foresight, branches, depth)
            tokens = side_nodes.tokens if foresight.predicts_first_pass else line.mask_new_rows(side_nodes.tokens)
            drafts = torch.cat([drafts, tokens], 1)
            parents = torch.cat([parents, side_nodes.parents], 1)
            offset = torch.cat([offset, side_nodes.slots + 1], 1)  # a node gives the distribution of the next slot
        tree = Tree(line, drafts, parents, offset)
        p, evaluated = tree.evaluate()
        drawn = pick_winners(p / e[line.rows, offset], tree.positions + 1)
        path = tree.follow(drawn)
        # [B] the deepest node of the path; the token drawn after it is final too
        deepest = torch.where(path, offset, -1).argmax(1)
        end = deepest[:, None]
        source = choose_sources(tree, path, deepest, measure_distance(tree.tokens, drawn.gather(1, end)), W)
        foresight.update(tree, evaluated, path, p, source)
        tokens = drawn.gather(1, source)
        moved.zero_().scatter_(1, slots.positions + widest, tokens != draft)
        model.keep(evaluated, torch.where(path, tree.nodes, -1))
        n_kept = offset.gather(1, end)[:, 0] + 1
        return slots.advance(tokens, n_kept, p[line.rows, source], nodes=tree.count_evaluated())

    return slots.repeat(run_pass)
